"""Two results files, compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest
from typer.testing import CliRunner

from radixflow_sdk import InvalidInputError, cli
from radixflow_sdk.evals.compare import compare, mcnemar

RUN = CliRunner()


def results(path: Path, picks: list[int], **changes: Any) -> Path:
    """A run whose right options are all 0."""
    rows = [
        {"qid": f"q{n}", "doc_id": f"d{n // 2}", "digest": "x", "gold": 0}
        | {"picked": {"sum": pick, "char": 0}, "model": "m", "scores": {}}
        | changes
        for n, pick in enumerate(picks)
    ]
    head = {"radixflow_eval": 2, "setup": {}}
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *rows]))
    return path


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 1), (3, 3), (40, 71)])
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    both = gained + lost
    wanted = binomtest(gained, both).pvalue if both else 1.0
    assert mcnemar(gained, lost) == pytest.approx(wanted)


def test_a_paired_difference(tmp_path: Path) -> None:
    first = results(tmp_path / "a", [0] * 50 + [1] * 50)
    second = results(tmp_path / "b", [0] * 45 + [1] * 5 + [0] * 20 + [1] * 30 + [0])
    found = compare(first, second)
    assert (found.questions, found.left_out) == (100, 1)
    own = found.differences["sum"]
    assert (own.first, own.second) == (0.5, 0.65)
    assert (len(own.gained), own.lost) == (20, ("q45", "q46", "q47", "q48", "q49"))
    assert own.low < 0.15 < own.high
    assert own.low > 0
    assert own.p == pytest.approx(binomtest(5, 25).pvalue)
    same = found.differences["char"]
    assert (same.low, same.high, same.p) == (0, 0, 1)
    assert compare(first, second) == found


def test_the_interval_is_of_documents(tmp_path: Path) -> None:
    picks = ([0] * 40 + [1] * 40, [0] * 20 + [1] * 20 + [0] * 40)
    widths = []
    for doc_id in ({}, {"doc_id": ""}):
        paths = [
            results(tmp_path / f"{n}", own, **doc_id) for n, own in enumerate(picks)
        ]
        own = compare(*paths).differences["sum"]
        widths.append(own.high - own.low)
    assert widths[0] > 1.2 * widths[1]  # two questions a document change together


def test_the_command(tmp_path: Path) -> None:
    first = results(tmp_path / "a", [0, 1, 1])
    second = results(tmp_path / "b", [0, 0, 1])
    second.write_text(second.read_text() + "damaged\n")
    words = ["eval", "--compare", str(first), str(second)]
    done = RUN.invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    assert "3 questions in both" in done.stdout
    assert "sum gained: q1" in done.stdout
    figures = json.loads(RUN.invoke(cli.app, [*words, "--json"]).stdout)
    assert figures["differences"]["sum"]["gained"] == ["q1"]
    done = RUN.invoke(cli.app, words[:-1])
    assert (done.exit_code, "name two results files" in done.stderr) == (2, True)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    first = results(tmp_path / "a", [0, 1])
    other = tmp_path / "b"
    with pytest.raises(InvalidInputError, match="No such file"):
        compare(first, other)
    other.write_text("[]")
    with pytest.raises(InvalidInputError, match="no results file"):
        compare(first, other)
    with pytest.raises(InvalidInputError, match="answers another question 'q0'"):
        compare(first, results(other, [0], digest="y"))
    with pytest.raises(InvalidInputError, match="no question in common"):
        compare(first, results(other, [0], qid="z"))
