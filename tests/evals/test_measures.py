"""Accuracies, intervals and calibration, against figures worked out elsewhere."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixflow_sdk.evals.measures import measure, wilson
from radixflow_sdk.evals.questions import Question
from radixflow_sdk.evals.report import page
from radixflow_sdk.evals.run import Setup
from radixflow_sdk.evals.summary import Answer, Summary


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # statsmodels' proportion_confint(method="wilson")
        (0, 10, 0.0, 0.27753),
        (5, 10, 0.23659, 0.76341),
        (10, 10, 0.72247, 1.0),
        (81, 263, 0.25527, 0.36622),
        (1, 1, 0.20655, 1.0),
    ],
)
def test_wilson(right: int, count: int, low: float, high: float) -> None:
    assert wilson(right, count) == pytest.approx((low, high), abs=5e-5)


def test_accuracy_brier_and_chance() -> None:
    # Probabilities (0.75, 0.25) right, (0.5, 0.5) tied and right, (0.25, 0.75) wrong.
    third = math.log(3)
    found = measure([((third, 0.0), 0), ((0.0, 0.0), 0), ((0.0, third), 0)])
    assert (found.right, found.count, found.tied) == (2, 3, 1)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.chance == pytest.approx(0.5)
    assert found.brier == pytest.approx((0.125 + 0.5 + 1.125) / 3)


def test_ece_by_hand() -> None:
    # Bin 0.7 to 0.8: two at 0.75, one of them right. Bin 0.9 to 1: one, right.
    sure = (math.log(0.95), math.log(0.05))
    third = math.log(3)
    found = measure([((third, 0.0), 0), ((0.0, third), 0), (sure, 0)])
    assert found.ece == pytest.approx((2 * 0.25 + 0.05) / 3)
    assert [b.count for b in found.bins] == [0, 0, 0, 0, 0, 0, 0, 2, 0, 1]
    assert found.bins[7].accuracy == 0.5
    assert found.bins[9].confidence == pytest.approx(0.95)


@settings(deadline=None, database=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e3, 0), min_size=2, max_size=6), st.integers(0, 1)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_measures_stay_in_their_bounds(
    answers: list[tuple[list[float], int]],
) -> None:
    found = measure(answers)
    assert 0 <= found.low <= found.accuracy <= found.high <= 1
    assert 0 <= found.ece <= 1 + 1e-12
    assert 0 <= found.brier <= 2
    assert sum(b.count for b in found.bins) == found.count == len(answers)
    assert sum(b.count * b.accuracy for b in found.bins) == pytest.approx(found.right)


def test_the_page_escapes_names_and_draws_each_normalizer() -> None:
    found = measure([((0.0, -1.0), 0), ((-1.0, 0.0), 0)])
    question = Question(
        qid="q & a",
        doc_id="",
        document="d" * 9000,
        question="<i>",
        options=("r", "</script>"),
        gold=0,
    )
    scores = {name: [0.0, -1.0] for name in ("sum", "char")}
    record = {"digest": "0", "route": "branches", "gold": 0, "scores": scores}
    record |= {"prompt_tokens": 2, "computed_tokens": 1}
    text = page(
        Summary(
            name="<b>.jsonl",
            results="r.jsonl",
            setup=Setup(),
            model="m & n",
            made=datetime(2026, 1, 2, tzinfo=UTC),
            questions=2,
            total=2,
            answered=2,
            earlier=0,
            failures={},
            too_long=(),
            stopped=None,
            measures={"sum": found, "char": found},
            subsets={},
            answers=[Answer(question, record)] * 60,
            seconds=1.0,
        )
    )
    assert "&lt;b&gt;.jsonl" in text
    assert "answered by m &amp; n" in text
    assert text.count('"qid": "q \\u0026 a"') == 60
    assert text.count("d" * 5000) == 2  # once for all questions, and the first prompt
    assert text.count("</script>") == 2
    assert text.count("<svg") == text.count("<figure") == 2
    assert "0.500" in text
    assert "http://www.w3.org/2000/svg" in text
    assert text.count("http") == 2  # namespaces only: nothing is loaded
