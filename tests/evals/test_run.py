"""``radixflow eval``: one pass, results that a second run goes on from."""

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from radixflow_sdk import APIError, RetryPolicy, cli
from radixflow_sdk._config import read_settings
from radixflow_sdk.cli import evaluate as evaluate_command
from radixflow_sdk.evals import run as run_module
from radixflow_sdk.evals.files import read_questions
from radixflow_sdk.evals.limits import BELOW
from radixflow_sdk.evals.run import Results, Setup, evaluate
from radixflow_sdk.evals.summary import summarize
from radixflow_sdk.testing import FakeServer, Fault

DATA = Path(__file__).parent / "data"
RUN = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [
        {
            "document": f"Document {number}.",
            "question": "Where?",
            "options": ["Rome", right],
            "gold": int(number < 3),
            "qid": f"q{number}",
        }
        for number, right in enumerate(["Oslo", "Oslo", "Paris", "Oslo"])
    ]
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(
    server: FakeServer, file: Path, *words: str, output: str = "out.jsonl"
) -> tuple[Any, list[dict[str, Any]]]:
    """What the command gave, and the lines of its results file."""
    path = file.parent / output
    with server.listen_in_thread() as url:
        command = ["eval", str(file), "--output", str(path), "--base-url", url, *words]
        done = RUN.invoke(cli.app, command)
    lines = path.read_text().splitlines() if path.exists() else []
    return done, [json.loads(line) for line in lines]


def test_every_normalizer_in_one_pass(file: Path) -> None:
    server = FakeServer({"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2})
    done, (head, *records) = run(server, file, "--json")
    assert done.exit_code == 0, done.output
    assert len(server.requests) == 4
    measures = json.loads(done.stdout)["measures"]
    assert list(measures) == ["sum", "mean", "char", "byte"]
    assert measures["char"]["right"] == 3
    assert measures["char"]["accuracy"] == 0.75
    assert measures["sum"]["chance"] == 0.5
    assert head["setup"] == {"scoring": "likelihood", "unconditional": None}
    by_name = {record["qid"]: record for record in records}
    assert by_name["q0"]["scores"]["char"] == pytest.approx([-0.75, -0.025])
    assert by_name["q0"]["picked"] == dict.fromkeys(measures, 1)


def test_a_table_and_a_report(file: Path) -> None:
    report = file.parent / "report.html"
    done, _ = run(FakeServer(default=-1.0), file, "--report", str(report))
    assert done.exit_code == 0, done.output
    assert "4 of 4 questions of asked.jsonl, answered by fake" in done.stdout
    assert "0.250" in done.stdout
    assert report.read_text().count("<svg") == 4


def test_pmi_and_labels(file: Path) -> None:
    words = ["--json", "--unconditional", "Answer:"]
    done, _ = run(FakeServer(), file, *words)
    assert list(json.loads(done.stdout)["measures"])[-1] == "pmi"
    done, _ = run(
        FakeServer(), file, "--json", "--scoring", "label", output="label.jsonl"
    )
    assert list(json.loads(done.stdout)["measures"]) == ["sum", "label"]


def test_a_run_goes_on_where_it_ended(file: Path) -> None:
    retried = [Fault(status=422, code="invalid_request")]
    server = FakeServer({"Oslo": -0.1}, default=-1.0, faults=retried)
    done, first = run(server, file, "--concurrency", "1")
    assert done.exit_code == 1
    assert len(first) == 1 + 3
    assert "q0: " in done.stderr
    # A killed run leaves half a line.
    path = file.parent / "out.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    server.requests.clear()
    done, second = run(server, file)
    assert done.exit_code == 0, done.output
    assert len(server.requests) == 2
    assert {record["qid"] for record in second[1:]} == {"q0", "q1", "q2", "q3"}
    server.requests.clear()
    done, third = run(server, file)
    assert (done.exit_code, third, len(server.requests)) == (0, second, 0)
    done, _ = run(server, file, "--restart")
    assert (done.exit_code, len(server.requests)) == (0, 4)


def test_results_of_another_run_are_not_mixed_in(file: Path) -> None:
    assert run(FakeServer(), file)[0].exit_code == 0
    for words, told in (
        (
            ["--scoring", "label"],
            "is of --scoring likelihood, this run has --scoring l",
        ),
        (
            ["--unconditional", "A:"],
            "is of no --unconditional, this run has --unconditional A:",
        ),
    ):
        done, lines = run(FakeServer(), file, *words)
        assert done.exit_code == 2
        assert f"out.jsonl' {told}" in done.stderr
        assert "give --output another FILE, or --restart to throw it" in done.stderr
        assert len(lines) == 5
    more = file.read_text().splitlines()
    changed = json.loads(more[0]) | {"document": "Another."}
    file.write_text("\n".join([json.dumps(changed), *more[1:]]))
    assert "answers question 'q0' as it was before" in run(FakeServer(), file)[0].stderr
    file.write_text("\n".join(more[1:]))
    done, lines = run(FakeServer(), file)
    assert "answers question 'q0', which is not asked any more" in done.stderr
    assert len(lines) == 5


def test_results_without_an_answer_bind_to_nothing(file: Path) -> None:
    head = {"radixflow_eval": 1, "setup": {"scoring": "label", "unconditional": "x"}}
    (file.parent / "out.jsonl").write_text(json.dumps(head) + "\n")
    done, lines = run(FakeServer(), file)
    assert done.exit_code == 0, done.output
    assert lines[0]["setup"]["scoring"] == "likelihood"


@pytest.mark.parametrize("content", [b'["no results"]\n', b"\xff\n", b"precious"])
def test_what_is_no_results_file_is_never_thrown_away(
    file: Path, content: bytes
) -> None:
    path = file.parent / "out.jsonl"
    path.write_bytes(content)
    for words in ([], ["--restart"]):
        command = ["eval", str(file), "--output", str(path), *words]
        done = RUN.invoke(cli.app, command)
        assert done.exit_code == 2
        assert "holds no results of this command" in done.stderr
    assert path.read_bytes() == content


@pytest.mark.parametrize("record", ["{}", "[]", "7", '{"qid": "q0"}', None])
def test_a_damaged_line_is_named_and_its_question_asked_again(
    file: Path, record: str | None
) -> None:
    done, lines = run(FakeServer(), file)
    path = file.parent / "out.jsonl"
    text = path.read_text().splitlines()
    text[2] = record or json.dumps(lines[2] | {"scores": {}})
    path.write_text("\n".join(text) + "\n")
    server = FakeServer()
    done, again = run(server, file)
    assert done.exit_code == 0
    assert "line 3 cannot be read" in " ".join(done.stderr.split())
    assert len(server.requests) == 1
    assert again[-1] == lines[2]
    done, _ = run(server, file)
    assert (done.exit_code, len(server.requests)) == (0, 1)


def test_a_damaged_head_is_no_results_file(file: Path) -> None:
    run(FakeServer(), file)
    path = file.parent / "out.jsonl"
    path.write_text(path.read_text().replace('"setup"', '"set', 1))
    done = RUN.invoke(cli.app, ["eval", str(file), "--output", str(path)])
    assert done.exit_code == 2
    assert "holds no results of this command" in done.stderr


def body(server: FakeServer) -> dict[str, Any]:
    return server.requests[-1].body


def test_without_a_document_no_blank_lines_stand_first(file: Path) -> None:
    file.write_text('{"question": "Where?", "options": ["a", "b"], "gold": "B"}\n')
    server = FakeServer()
    for words, output in (([], "a"), (["--scoring", "label"], "b")):
        assert run(server, file, *words, output=output)[0].exit_code == 0
        asked = body(server)
        assert asked["document"] == {"text": ""}
        assert asked["question"].startswith("Question: Where?")


def test_a_template_shots_and_a_description(file: Path) -> None:
    server = FakeServer()
    words = ["--template", "mmlu", "--shots", "1", "--description", "Choose.\n\n"]
    done, (head, *_) = run(server, file, *words, "--limit", "1")
    assert done.exit_code == 0, done.output
    shown = "Where?\nA. Rome\nB. Oslo\nAnswer: B\n\n"
    asked = body(server)
    assert (
        asked["document"]["text"]
        == f"Choose.\n\n{shown}Where?\nA. Rome\nB. Oslo\nAnswer:"
    )
    assert [branch["text"] for branch in asked["branches"]] == [" A", " B"]
    assert head["setup"]["template"] == "mmlu"
    done, _ = run(server, file, *words[2:], "--limit", "1")
    assert "is of --template mmlu, this run has no --template" in done.stderr


def test_a_template_of_a_file(file: Path) -> None:
    template = file.parent / "words.txt"
    template.write_text("{{document}}\n{{ qid }}: {{question}}\n=>\n")
    server = FakeServer()
    words = ["--template", str(template), "--limit", "1"]
    assert run(server, file, *words)[0].exit_code == 0
    assert body(server)["document"]["text"] == "Document 0.\nq0: Where?\n=>"
    template.write_text("{{none}}")
    done, _ = run(server, file, *words, "--restart")
    assert done.exit_code == 2
    assert "has no 'none'" in done.stderr
    template.write_text("nothing")
    done, _ = run(server, file, *words)
    assert "without {{question}}" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--template", "none"], "neither a file"),
        (["--shots", "4"], "has 4 questions, and one more"),
        (["--shots", "1", "--scoring", "label"], "for likelihood scoring"),
        (["--format", "none"], "--format is 'none'; there are quality, race"),
        (["--map", "gold"], "--map is 'gold'; write NAME=KEY"),
    ],
)
def test_a_style_that_cannot_be(file: Path, words: list[str], told: str) -> None:
    server = FakeServer()
    done, lines = run(server, file, *words)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert not lines
    assert not server.requests


def test_seeded_shots_are_the_same_each_time(file: Path) -> None:
    def shown(seed: str) -> str:
        server = FakeServer()
        words = ["--shots", "2", "--seed", seed, "--limit", "1", "--restart"]
        assert run(server, file, *words)[0].exit_code == 0
        return str(body(server)["document"])

    assert shown("1") == shown("1")
    assert len({shown(str(seed)) for seed in range(6)}) > 1


def test_questions_that_are_too_long_are_one_reason(file: Path) -> None:
    faults = [Fault(status=422, code="context_too_long")] * 2
    done, _ = run(FakeServer(faults=faults), file)
    assert done.exit_code == 1
    assert "2 questions (" in done.stderr
    assert done.stderr.count("does not fit the model's context") == 1
    done, _ = run(FakeServer(faults=faults), file, "--too-long", "skip", output="b")
    assert done.exit_code == 0
    assert "2 too long and skipped" in done.stdout
    words = ["--too-long", "skip", "--json"]
    done, _ = run(FakeServer(faults=faults), file, *words, output="c")
    assert json.loads(done.stdout)["too_long"] == 2


def test_a_limit_says_of_how_many(file: Path) -> None:
    done, _ = run(FakeServer(), file, "--limit", "2")
    assert "2 of the first 2 of 4 questions of asked.jsonl" in done.stdout
    done, _ = run(FakeServer(), file, "--limit", "2", "--json")
    assert json.loads(done.stdout)["first_of"] == 4


def test_the_question_file_is_not_written_over(file: Path) -> None:
    asked = file.read_text()
    for words in (
        ["--output", str(file), "--restart"],
        ["--report", str(file), "--output", str(file.parent / "out.jsonl")],
    ):
        done = RUN.invoke(cli.app, ["eval", str(file), *words])
        assert done.exit_code == 2
        assert "that is the question file" in done.stderr
    done, _ = run(FakeServer(), file, "--report", str(file.parent / "out.jsonl"))
    assert "that is the results file" in done.stderr
    assert file.read_text() == asked


def test_another_model_does_not_go_on(file: Path) -> None:
    assert run(FakeServer(), file, "--limit", "2")[0].exit_code == 0
    server = FakeServer()
    assert run(server, file, "--limit", "1")[0].exit_code == 0
    assert not server.requests
    other = FakeServer(model="other")
    done, lines = run(other, file)
    assert done.exit_code == 2
    assert "is of the model 'fake', and this run is of 'other'" in done.stderr
    assert len(lines) == 3
    assert not other.requests


def test_earlier_results_are_of_the_model_that_is_served_now(file: Path) -> None:
    report = file.parent / "report.html"
    assert run(FakeServer(), file)[0].exit_code == 0
    done, _ = run(FakeServer(), file, "--fail-under", "char=0")
    assert done.exit_code == 0
    assert "answered by fake, all 4 from earlier results" in done.stdout
    done, _ = run(FakeServer(model="new"), file, "--fail-under", "char=0")
    assert done.exit_code == 2
    # Where no server says so, the figures are shown, and are no success.
    words = ["--base-url", "http://127.0.0.1:9", "--fail-under", "char=0"]
    words += ["--output", str(file.parent / "out.jsonl"), "--report", str(report)]
    done = RUN.invoke(cli.app, ["eval", str(file), *words])
    assert done.exit_code == 1
    assert "maybe not of the model it has now" in done.stderr
    assert "all 4 from earlier results" in done.stdout
    assert "ConnectError" in report.read_text()
    done = RUN.invoke(cli.app, ["eval", str(file), *words, "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (told["model"], told["earlier"], told["failed"]) == ("fake", 4, 0)
    assert "ConnectError" in told["stopped"]
    # Nor does a restart throw away what no new answer stands for.
    done = RUN.invoke(cli.app, ["eval", str(file), *words, "--restart"])
    assert done.exit_code == 1
    assert len((file.parent / "out.jsonl").read_text().splitlines()) == 5


def test_a_model_that_is_not_served_is_refused_once(file: Path) -> None:
    server = FakeServer()
    done, lines = run(server, file, "--model", "none")
    assert done.exit_code == 2
    assert done.stderr.count("the server serves 'fake'") == 1
    assert (len(server.requests), lines) == (0, [])
    assert run(FakeServer(), file, "--model", "fake")[0].exit_code == 0
    assert run(FakeServer(), file)[0].exit_code == 0


def test_a_server_that_is_down_is_one_sentence(file: Path) -> None:
    output = str(file.parent / "out.jsonl")
    words = ["eval", str(file), "--base-url", "http://127.0.0.1:9", "--output", output]
    done = RUN.invoke(cli.app, words)
    assert done.exit_code == 1
    assert done.stderr.count("radixflow:") == done.stderr.count("ConnectError") == 1
    assert done.stdout == ""


def test_a_server_that_hangs_is_not_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(FakeServer):
        async def __call__(self, *_: Any) -> None:
            await anyio.sleep(60)

    monkeypatch.setattr(run_module, "MODELS_TIMEOUT", 0.2)
    done, _ = run(Hanging(), file)
    assert done.exit_code == 1
    assert "did not say within 0.2 s what it serves" in done.stderr


@pytest.fixture
def many(tmp_path: Path) -> Path:
    row = {"question": "Where?", "options": ["Rome", "Oslo"], "gold": 1}
    rows = [{**row, "document": f"D{n}.", "qid": f"q{n}"} for n in range(200)]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_server_that_dies_ends_the_run(many: Path) -> None:
    class Dying(FakeServer):
        """Answers 40 questions, then as a router does whose server is gone."""

        async def _branches(self, *words: Any) -> None:
            if len(self.requests) > 40:
                gone = Fault(status=502, headers={"Retry-After": "0"})
                self.faults.append(gone)
            await super()._branches(*words)

    server = Dying()
    done, lines = run(server, many, "--concurrency", "4")
    assert done.exit_code == 1
    assert 35 < len(lines) - 1 < 45
    assert len(server.requests) < 100
    assert done.stderr.count("answered 502") == 1
    assert "4 questions in a row failed" in done.stderr
    assert f"{len(lines) - 1} of 200 are in" in done.stderr
    assert "the same command goes on" in done.stderr
    done, lines = run(FakeServer(), many)
    assert done.exit_code == 0
    assert len(lines) == 201


def test_a_connection_that_is_gone_ends_the_run(many: Path) -> None:
    questions = read_questions(many)
    setup = Setup()
    with (
        ExitStack() as server,
        Results(many.parent / "out.jsonl", setup, questions) as results,
    ):
        settings = read_settings(
            base_url=server.enter_context(FakeServer().listen_in_thread()),
            api_key=None,
            timeout=None,
            retry=RetryPolicy(initial=0.01),
            max_connections=4,
        )
        with pytest.raises(APIError, match="4 questions in a row failed"):
            evaluate(settings, questions, setup, results, done=server.close)
    assert 1 <= len(results.records) < 20
    assert 4 <= len(results.failures) < 20
    reasons = summarize("many", setup, questions, results).failures
    assert all("ConnectError" in reason for reason in reasons)
    assert not any("have no score" in reason for reason in reasons)


def test_questions_that_take_too_long_are_their_own(many: Path) -> None:
    class Slow(FakeServer):
        """Takes too long for the first documents, and for no other."""

        async def _branches(self, headers: Any, raw: bytes, send: Any) -> None:
            if len(self.requests) < 8:
                self.faults.append(Fault(delay=60))
            await super()._branches(headers, raw, send)

    done, lines = run(Slow(), many, "--concurrency", "2", "--timeout", "2")
    assert done.exit_code == 1
    assert len(lines) - 1 == 200 - 8
    assert "8 questions (" in done.stderr


def test_a_results_file_that_cannot_be_written(many: Path) -> None:
    done, _ = run(FakeServer(), many, output="/dev/null")
    assert done.exit_code == 2
    assert "The results file '/dev/null': " in done.stderr


def test_a_results_file_has_one_writer(file: Path) -> None:
    questions = read_questions(file)
    path = file.parent / "out.jsonl"
    with Results(path, Setup(), questions):
        before = path.read_bytes()
        for words in ((), ("--restart",)):
            done, _ = run(FakeServer(), file, *words)
            assert done.exit_code == 2
            assert "is being written by another run" in done.stderr
            assert path.read_bytes() == before
    done, lines = run(FakeServer(), file)
    assert (done.exit_code, len(lines)) == (0, 5)


def test_a_report_is_written_over_a_report_only(many: Path) -> None:
    before = many.read_bytes()
    other = many.parent / "notes.txt"
    other.write_text("mine")
    done, _ = run(FakeServer(), many, "--report", str(other))
    assert done.exit_code == 2
    assert "no page of a report" in done.stderr
    assert (other.read_text(), many.read_bytes()) == ("mine", before)
    for _ in range(2):
        done, _ = run(FakeServer(), many, "--report", str(many.parent / "page.html"))
        assert done.exit_code == 0


def test_ctrl_c_is_one_line(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Results.add
    monkeypatch.setattr(Results, "add", lambda self, *words: _third(self, kept, *words))
    done, lines = run(FakeServer(), many, "--restart")
    assert done.exit_code == 130
    assert len(lines) == 1 + 3
    assert "radixflow: stopped; 3 of 200 are in" in done.stderr
    assert "the same command without --restart goes on" in done.stderr
    assert done.stdout == ""


def _third(results: Results, add: Any, *words: Any) -> None:
    add(results, *words)
    if len(results.records) == 3:
        raise KeyboardInterrupt


def test_a_folder_is_not_taken_for_its_results(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f.2"
    folder.mkdir()
    (folder / "q.jsonl").write_text(file.read_text())
    monkeypatch.chdir(folder)
    server = FakeServer()
    for _ in range(2):
        with server.listen_in_thread() as url:
            done = RUN.invoke(cli.app, ["eval", ".", "--base-url", url])
        assert done.exit_code == 0, done.output
        assert "4 of 4 questions of f.2" in done.stdout
    assert len(server.requests) == 4
    assert {path.name for path in folder.iterdir()} == {"q.jsonl", "f.2.results.jsonl"}


def test_what_is_odd_in_a_file_is_told(file: Path) -> None:
    odd = {"document": "D.", "question": "Q?", "options": ["a", "a", "b"], "gold": 2}
    file.write_text(file.read_text() + json.dumps(odd) + "\n")
    done, lines = run(FakeServer(), file)
    assert done.exit_code == 0
    assert "note: " in done.stderr
    assert "asked.jsonl:5: option 'a' is there twice" in done.stderr
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("limit", "status"),
    [("char=0.75", 0), ("char=0.76", BELOW), ("sum=1", BELOW)],
)
def test_a_limit_decides_the_exit_status(file: Path, limit: str, status: int) -> None:
    server = FakeServer({"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2})
    done, _ = run(server, file, "--fail-under", limit, "--fail-under", "mean=0.1")
    assert done.exit_code == status
    name, _, least = limit.partition("=")
    told = f"radixflow: {name} is 0.75 (3 of 4), under {least}"
    assert (told in done.stderr) is bool(status)


def test_of_two_limits_the_higher_one_counts(file: Path) -> None:
    server = FakeServer({"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2})
    words = ["--fail-under", "char=0.9", "--fail-under", "char=0.1"]
    assert run(server, file, *words)[0].exit_code == BELOW


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fail-under", "char"], "--fail-under is 'char'"),
        (["--fail-under", "char=60"], "the accuracy from 0 to 1"),
        (["--fail-under", "pmi=0.5"], "this run has sum, mean, char, byte"),
        (["--unconditional", ""], "unconditional is ''"),
        (["--unconditional", "A:", "--scoring", "label"], "has no use for it"),
    ],
)
def test_what_cannot_be_is_refused_first(
    file: Path, words: list[str], told: str
) -> None:
    done, lines = run(FakeServer(), file, *words)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert not lines


def test_a_file_that_cannot_be_read_or_written(file: Path) -> None:
    done, _ = run(FakeServer(), file.parent / "none.jsonl")
    assert done.exit_code == 2
    assert "No such file" in done.stderr
    done, _ = run(FakeServer(), file, output="none/out.jsonl")
    assert done.exit_code == 2
    assert "The results file" in done.stderr


def test_all_failed_is_no_figure(file: Path) -> None:
    faults = [Fault(status=422, code="invalid_request")] * 4
    done, _ = run(FakeServer(faults=faults), file, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "model": None,
        "questions": 4,
        "answered": 0,
        "earlier": 0,
        "failed": 4,
        "stopped": None,
        "measures": {},
    }


def test_a_report_that_cannot_be_written_is_refused_first(file: Path) -> None:
    report = str(file.parent / "none" / "report.html")
    server = FakeServer()
    done, lines = run(server, file, "--report", report)
    assert done.exit_code == 2
    assert f"report is {report!r}: No such file or directory" in done.stderr
    assert (len(server.requests), lines) == (0, [])


def test_a_report_that_cannot_be_written_after_all_loses_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = file.parent / "report.html"
    monkeypatch.setattr(evaluate_command, "check_writable", lambda path: path.mkdir())
    done, lines = run(FakeServer(), file, "--report", str(report))
    assert done.exit_code == 2
    assert f"report {str(report)!r}: Is a directory" in done.stderr
    assert "4 of 4 questions" in done.stdout
    assert len(lines) == 5


def test_like_failures_are_told_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Fault(status=422, code="invalid_request")] * 4
    done, _ = run(FakeServer(faults=faults), file)
    assert done.stderr.count("answered 422") == 1
    assert "4 questions (q" in done.stderr
    monkeypatch.setattr(evaluate_command, "SHOWN", 1)
    faults[0] = Fault(status=413, code="invalid_request")
    done, _ = run(FakeServer(faults=faults), file)
    assert "1 more reasons of failures" in done.stderr


def test_the_report_says_what_failed_and_what_was_wrong(file: Path) -> None:
    report = file.parent / "report.html"
    server = FakeServer(
        {"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2},
        faults=[Fault(status=422, code="invalid_request")],
    )
    words = ["--report", str(report), "--concurrency", "1", "--unconditional", "A:"]
    done, _ = run(server, file, *words)
    assert done.exit_code == 1
    assert f"report in {report}" in done.stdout
    text = report.read_text()
    for told in (
        "3 of 4 questions of asked.jsonl, answered by fake",
        "<th>scoring<td>likelihood",
        "<th>unconditional text<td>&#x27;A:&#x27;",
        "<th>chance",
        ">accuracy</text>",
        "<h2>1 failed</h2>",
        "answered 422",
        "<th>first prompt<td>Document 1.\n\nQuestion: Where?\nAnswer:",
        "<th>route<td>branches",
    ):
        assert told in text, told
    assert f"{datetime.now(UTC):%Y-%m-%d}" in text


def test_the_excerpts_are_asked(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text((DATA / "xquad.jsonl").read_text())
    done, records = run(FakeServer(), tmp_path / "x.jsonl")
    assert done.exit_code == 0, done.output
    assert len(records) == 43
