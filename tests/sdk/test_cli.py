import json
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import radixflow_sdk
from radixflow_sdk import RadixFlow, RadixFlowClient, cli
from radixflow_sdk.testing import FakeTransport

RUN = CliRunner()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    transport = FakeTransport({"Oslo": -0.1, "[b]Rome": -2.0})

    def connect(base_url: str | None, **rest: Any) -> RadixFlow:
        return RadixFlow(base_url, transport=transport, **rest)

    monkeypatch.setattr(cli, "RadixFlow", connect)
    return transport


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "document.txt"
    path.write_text("Anna lives in Oslo.\n")
    return str(path)


def score(document: str, *rest: str, text: str | None = None) -> Any:
    options = ["--option", "[b]Rome", "--option", "Oslo"]
    arguments = ["score", "--document", document, *options, *rest]
    return RUN.invoke(cli.app, arguments, input=text)


def test_score_shows_a_table(fake: FakeTransport, document: str) -> None:
    done = score(document, "--question", "Where?")
    assert done.exit_code == 0
    assert done.output.index("Oslo") < done.output.index("[b]Rome")
    assert fake.requests[0].document == "Anna lives in Oslo."
    assert fake.requests[0].question == "\n\nQuestion: Where?\nAnswer:"


def test_score_writes_json(fake: FakeTransport, document: str) -> None:
    done = score(document, "--json", "--scoring", "label", "--normalize", "label")
    result = json.loads(done.stdout)
    assert result["candidates"][0]["text"] == "Oslo"
    assert fake.requests[0].scoring == "label"


def test_score_compares_with_an_unconditional_context(
    fake: FakeTransport, document: str
) -> None:
    done = score(document, "--normalize", "pmi", "--unconditional", "Answer:")
    assert done.exit_code == 0
    assert {request.document for request in fake.requests} == {
        "Answer:",
        "Anna lives in Oslo.",
    }
    assert score(document, "--normalize", "pmi").exit_code == 2


def test_score_reads_standard_input(fake: FakeTransport) -> None:
    assert score("-", text="From a pipe.\n").exit_code == 0
    assert fake.requests[0].document == "From a pipe."


@pytest.mark.usefixtures("fake")
def test_bad_input_is_a_sentence(tmp_path: Path, document: str) -> None:
    done = score(str(tmp_path / "none"))
    assert done.exit_code == 2
    assert "No such file" in done.stderr
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert "not UTF-8 at byte 3" in score(str(tmp_path / "latin")).stderr
    assert "normalize" in score(document, "--normalize", "label").stderr
    assert "base_url" in score(document, "--base-url", "nowhere").stderr


def test_a_server_that_is_not_there_is_a_sentence(document: str) -> None:
    done = score(document, "--base-url", "http://127.0.0.1:9", "--timeout", "0.05")
    assert done.exit_code == 1
    assert done.stderr.startswith("radixflow: ")
    assert "Traceback" not in done.output


SERVE = ["m", "--help", "--port", "1", "-tp", "4", "-O3", "--a=b", "--x.y", "z", "-"]


def test_serve_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []

    def launch(argv: list[str]) -> int:
        got.append(argv)
        return 7

    launcher = types.SimpleNamespace(main=launch)
    monkeypatch.setitem(sys.modules, "server_ext", types.ModuleType("server_ext"))
    monkeypatch.setitem(sys.modules, "server_ext.serve", launcher)
    done = RUN.invoke(cli.app, ["serve", *SERVE])
    assert done.exit_code == 7
    assert got == [SERVE]
    assert RUN.invoke(cli.app, ["serve"]).exit_code == 7


def test_serve_without_the_server_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("server_ext", "server_ext.serve"):
        monkeypatch.setitem(sys.modules, name, None)
    done = RUN.invoke(cli.app, ["serve", "model"])
    assert done.exit_code == 1
    assert "needs server_ext" in done.stderr
    assert "pip install" in done.stderr


def test_without_the_cli_extra_there_is_one_sentence() -> None:
    code = "import sys; sys.modules['typer'] = None; import radixflow_sdk.cli"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'radixflow-sdk[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_names_all_commands() -> None:
    done = RUN.invoke(cli.app, ["--help"])
    for name in ("score", "serve", "doctor"):
        assert f" {name} " in done.output


def test_the_quickstart_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeTransport({"Port Alma": -0.1})
    monkeypatch.setattr(
        radixflow_sdk, "RadixFlowClient", lambda: RadixFlowClient(transport=fake)
    )
    script = Path(__file__).parents[2] / "examples" / "quickstart.py"
    runpy.run_path(str(script), run_name="__main__")
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("Port Alma")
    assert len(others) == 2
