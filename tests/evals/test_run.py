"""``radixflow eval``: one pass, results that a second run goes on from."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixflow_sdk import cli
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


def test_every_normaliser_in_one_pass(file: Path) -> None:
    server = FakeServer({"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2})
    done, (head, *records) = run(server, file, "--json")
    assert done.exit_code == 0, done.output
    assert len(server.requests) == 4
    measures = json.loads(done.stdout)["measures"]
    assert list(measures) == ["sum", "mean", "char", "byte"]
    assert measures["char"]["right"] == 3
    assert measures["char"]["accuracy"] == 0.75
    assert measures["sum"]["chance"] == 0.5
    assert head["setup"] == {
        "scoring": "likelihood",
        "unconditional": None,
        "model": None,
    }
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
    for words in (["--scoring", "label"], ["--unconditional", "A:"]):
        done, lines = run(FakeServer(), file, *words)
        assert done.exit_code == 2
        assert "restart, or name another file" in done.stderr
        assert len(lines) == 5
    more = file.read_text().splitlines()
    changed = json.loads(more[0]) | {"document": "Another."}
    file.write_text("\n".join([json.dumps(changed), *more[1:]]))
    done, _ = run(FakeServer(), file)
    assert "'question': 'q0'" in done.stderr
    (file.parent / "out.jsonl").write_text('["no results"]\n')
    assert "holds ['no results']" in run(FakeServer(), file)[0].stderr
    (file.parent / "out.jsonl").write_bytes(b"\xff\n")
    done = RUN.invoke(
        cli.app, ["eval", str(file), "--output", str(file.parent / "out.jsonl")]
    )
    assert "holds no results" in done.stderr


def test_another_model_does_not_go_on(file: Path) -> None:
    assert run(FakeServer(), file, "--limit", "2")[0].exit_code == 0
    server = FakeServer()
    assert run(server, file, "--limit", "1")[0].exit_code == 0
    assert not server.requests
    done, lines = run(FakeServer(model="other"), file)
    assert done.exit_code == 2
    assert "are of the model 'fake', and the server has 'other'" in done.stderr
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("limit", "status"),
    [("char=0.75", 0), ("char=0.76", cli.BELOW), ("sum=1", cli.BELOW)],
)
def test_a_limit_decides_the_exit_status(file: Path, limit: str, status: int) -> None:
    server = FakeServer({"Oslo": -0.1, "Rome": -3.0, "Paris": -0.2})
    done, _ = run(server, file, "--fail-under", limit, "--fail-under", "mean=0.1")
    assert done.exit_code == status
    assert ("is under" in done.stderr) is bool(status)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fail-under", "char"], "fail-under is 'char'"),
        (["--fail-under", "char=60"], "write NORMALISER=ACCURACY"),
        (["--fail-under", "pmi=0.5"], "this run has sum, mean, char, byte"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_first(
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
    assert json.loads(done.stdout) == {"failed": 4, "measures": {}}


def test_a_report_that_cannot_be_written_loses_nothing(file: Path) -> None:
    report = str(file.parent / "none" / "report.html")
    done, lines = run(FakeServer(), file, "--report", report)
    assert done.exit_code == 2
    assert "No such file or directory; the results are in" in done.stderr
    assert len(lines) == 5


def test_many_failures_are_counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SHOWN_FAILURES", 1)
    faults = [Fault(status=422, code="invalid_request")] * 4
    done, _ = run(FakeServer(faults=faults), file)
    assert "3 more questions failed" in done.stderr


def test_the_excerpts_are_asked(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text((DATA / "xquad.jsonl").read_text())
    done, records = run(FakeServer(), tmp_path / "x.jsonl")
    assert done.exit_code == 0, done.output
    assert len(records) == 43
