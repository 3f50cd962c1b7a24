"""A temperature and a threshold, fitted and checked."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixflow_sdk import InvalidInputError, RadixFlow, cli
from radixflow_sdk.evals.calibration import (
    Calibration,
    Labeled,
    fit,
    read_calibration,
    scaled,
)
from radixflow_sdk.testing import FakeTransport

RUN = CliRunner()


def answers(count: int, temperature: float) -> list[Labeled]:
    """Options whose right one is drawn from the softmax of scores / temperature."""
    draw = random.Random(1)
    found = []
    for number in range(count):
        scores = [draw.gauss(0, 3) for _ in range(4)]
        [gold] = draw.choices(range(4), scaled(scores, temperature))
        found.append(Labeled(f"d{number}", scores, gold))
    return found


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    found = fit(answers(4000, temperature), model="m", normalizer="sum", accuracy=0.9)
    assert found.calibration.temperature == pytest.approx(temperature, rel=0.1)
    assert found.after.ece < 0.05
    assert found.nll_after <= found.nll_before + 1e-3
    assert found.after.accuracy == found.before.accuracy  # no ranking changes
    assert found.fitted + found.before.count == 4000


def test_the_threshold_reaches_its_accuracy_on_other_questions() -> None:
    found = fit(answers(4000, 3.0), model="m", normalizer="sum", accuracy=0.8)
    assert found.before.accuracy < 0.7
    assert 50 < found.kept < found.before.count
    assert found.kept_right / found.kept == pytest.approx(0.8, abs=0.05)


def test_no_threshold_where_nothing_is_sure() -> None:
    wrong = [Labeled(f"d{n}", [1.0, 0.0], 1) for n in range(60)]
    found = fit(wrong, model="m", normalizer="sum", accuracy=0.5)
    assert (found.calibration.threshold, found.kept) == (None, 0)


def test_documents_are_not_divided() -> None:
    one = [Labeled("d", [1.0, 0.0], 0)] * 100
    with pytest.raises(InvalidInputError, match="10 are needed"):
        fit(one, model="m", normalizer="sum", accuracy=0.5)


def test_a_calibration_in_an_app(tmp_path: Path) -> None:
    with RadixFlow(
        transport=FakeTransport({"Oslo": -1.0, "Rome": -3.0}), model="m"
    ) as c:
        result = c.score_candidates("d", ["Rome", "Oslo"])
    own = Calibration(
        model="m", normalizer="sum", temperature=2.0, threshold=0.7, accuracy=0.9
    )
    own.write(tmp_path / "c.json")
    again = read_calibration(tmp_path / "c.json")
    assert again == own
    sure = 1 / (1 + math.exp(-1))
    assert again.probabilities(result) == pytest.approx((1 - sure, sure))
    assert again.decide(result) == 1
    unsure: dict[str, Any] = {"model": "m", "normalizer": "sum", "accuracy": 0.9}
    for threshold in (0.8, None):
        other = Calibration(temperature=2.0, threshold=threshold, **unsure)
        assert other.decide(result) is None
    other = Calibration(temperature=2.0, threshold=0.1, **unsure | {"model": "x"})
    with pytest.raises(InvalidInputError, match="calibration is for 'x'"):
        other.decide(result)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"radixflow_calibration": 1}'])
def test_what_is_no_calibration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="radixflow calibrate"):
        read_calibration(path)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rows: list[dict[str, Any]] = [{"radixflow_eval": 2, "setup": {}}]
    rows += [
        {"qid": own.document, "doc_id": "", "digest": "", "model": "m"}
        | {"gold": own.gold, "scores": {"sum": own.scores}, "picked": {"sum": 0}}
        for own in answers(400, 3.0)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "c.json"
    words = ["calibrate", str(path), "--output", str(output), "--accuracy", "0.6"]
    done = RUN.invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    assert "temperature " in done.stdout
    assert "of these are right" in done.stdout
    found = json.loads(RUN.invoke(cli.app, [*words, "--json"]).stdout)
    assert read_calibration(output).temperature == found["calibration"]["temperature"]
    done = RUN.invoke(cli.app, [*words, "--normalizer", "pmi"])
    assert (done.exit_code, "the results have sum" in done.stderr) == (2, True)
