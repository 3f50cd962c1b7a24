import json
import runpy
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import radixflow_sdk
from radixflow_sdk import RadixFlow, RadixFlowClient, cli
from radixflow_sdk.cli import score as score_command
from radixflow_sdk.testing import FakeServer, FakeTransport

RUN = CliRunner()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    transport = FakeTransport({"Oslo": -0.1, "[b]Rome": -2.0})

    def connect(base_url: str | None, **rest: Any) -> RadixFlow:
        return RadixFlow(base_url, transport=transport, **rest)

    monkeypatch.setattr(score_command, "RadixFlow", connect)
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--base-url", "nowhere"], "--base-url is 'nowhere'; give something like "),
        (["--timeout", "0"], "--timeout is 0.0; give a finite number above 0."),
        (["--option", "", "--normalize", "char"], "--option is ''; it is empty."),
        (
            ["--normalize", "label"],
            "--normalize is 'label'; with --scoring='likelihood' use one of sum, ",
        ),
        (
            ["--normalize", "pmi"],
            "--unconditional is missing; --normalize='pmi' compares with it, so give "
            "the context that an option has without the document, such as "
            "--unconditional='Answer:'.",
        ),
        (
            ["--scoring", "label", "--unconditional", "timeout=9"],
            "--unconditional is 'timeout=9'; --scoring='label' has no use for it",
        ),
    ],
)
@pytest.mark.usefixtures("fake")
def test_what_is_wrong_is_named_as_on_the_command_line(
    document: str, words: list[str], told: str
) -> None:
    done = score(document, *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"radixflow: {told}")


def test_a_key_that_is_wrong_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    monkeypatch.setenv("RADIXFLOW_API_KEY", "se\ncret")
    told = score(document).stderr
    assert told.startswith("radixflow: RADIXFLOW_API_KEY is empty or has characters")
    assert "cret" not in told


def test_a_limit_is_named_as_on_the_command_line(document: str) -> None:
    with FakeServer(delay=5).listen_in_thread() as url:
        done = score(document, "--base-url", url, "--timeout", "0.2")
    assert done.exit_code == 1
    assert "the total timeout of 0.2 s; raise --timeout or send less" in done.stderr


class Page(BaseHTTPRequestHandler):
    """A server of pages, as Python's own."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_request(self, *args: Any) -> None: ...

    def log_error(self, *args: Any) -> None: ...


@pytest.fixture
def pages() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "URL"],
        ["bench", "--base-url", "URL", "--groups", "1"],
        ["score", "--base-url", "URL", "--option", "a", "--document", "DOCUMENT"],
        [
            *("score", "--base-url", "URL", "--option", "a", "--document", "DOCUMENT"),
            *("--model", "m"),
        ],
    ],
)
def test_a_server_of_pages_is_told_from_one_of_models(
    pages: str, document: str, words: list[str]
) -> None:
    for scheme, advice in (
        ("http", "it is no vLLM server; check host, port and path."),
        ("https", "the server may speak http, so try http:// in place of https://."),
    ):
        given = {"URL": f"{scheme}://{pages}", "DOCUMENT": document}
        done = RUN.invoke(cli.app, [given.get(word, word) for word in words])
        assert done.exit_code == 1
        [line] = [line for line in done.output.splitlines() if pages in line]
        assert line.endswith(advice)
        assert "<" not in done.output


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


@pytest.mark.parametrize("command", ["score", "doctor", "bench", "eval"])
def test_help_says_which_server_is_asked(command: str) -> None:
    done = RUN.invoke(cli.app, [command, "--help"], env={"COLUMNS": "300"})
    told = (
        "--base-url",
        "RADIXFLOW_BASE_URL",
        "RADIXFLOW_API_KEY",
        "http://127.0.0.1:8000",
    )
    for words in told:
        assert words in done.output


def test_the_version() -> None:
    done = RUN.invoke(cli.app, ["--version"])
    assert done.exit_code == 0
    assert done.output == f"radixflow {metadata.version('radixflow-sdk')}\n"


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


def test_doctor_looks_at_every_server() -> None:
    with FakeServer().listen_in_thread() as gone:
        pass
    with FakeServer().listen_in_thread() as url:
        done = RUN.invoke(cli.app, ["doctor", f"{url},{gone}"])
    assert done.exit_code == 1
    first, _, second = done.stdout.partition(f"{gone}\n")
    assert first.startswith(f"{url}\n")
    assert "BAD" not in first
    assert "does not answer" in second
