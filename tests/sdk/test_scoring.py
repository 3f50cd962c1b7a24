import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import LabelScore, TokenScore
from radixflow_sdk._scoring import brier, every_score, label_mass, rank, softmax

SCORES = st.lists(st.floats(min_value=-9999, max_value=0), min_size=1, max_size=50)


def tokens(*logprobs: float) -> list[TokenScore]:
    return [TokenScore(token_id=0, logprob=value) for value in logprobs]


def labels(*logprobs: float) -> list[LabelScore]:
    return [
        LabelScore(label="x", token_id=token, logprob=value)
        for token, value in enumerate(logprobs)
    ]


def test_normalizers_divide_by_the_option_alone() -> None:
    # "naïf" has 4 characters and 5 bytes; its delimiter is never counted.
    got = every_score(
        tokens(-1.0, -2.0, -3.0), None, option="naïf", unconditional=-10.0
    )
    expected = {"sum": -6.0, "mean": -2.0, "char": -1.5, "byte": -1.2, "pmi": 4.0}
    assert got == pytest.approx(expected)


def test_there_are_scores_only_where_there_are_numbers() -> None:
    assert list(every_score(tokens(-1.0), None, option=(7,))) == ["sum", "mean"]
    assert every_score(tokens(-0.1), labels(-1.0), option="x") == {"sum": -1.0}


def test_label_scores() -> None:
    both = labels(math.log(0.3), math.log(0.1))
    got = every_score(tokens(-0.1), both, option="x")
    assert got == pytest.approx({"sum": math.log(0.3), "label": math.log(0.75)})
    assert label_mass(both) == pytest.approx(0.4)
    assert label_mass([*both, both[1]]) == pytest.approx(0.4)
    assert label_mass(labels(1e-4)) == 1.0


@given(SCORES)
def test_softmax_sums_to_one_and_keeps_the_order(scores: list[float]) -> None:
    assert math.fsum(softmax(scores)) == pytest.approx(1.0)
    got = [standing.probability for standing in rank(scores)]
    assert got == sorted(softmax(scores), reverse=True)


@given(SCORES)
def test_rank_is_a_permutation_with_ties_by_index(scores: list[float]) -> None:
    order = [standing.place for standing in rank(scores)]
    assert sorted(order) == list(range(len(scores)))
    for first, second in pairwise(order):
        assert (-scores[first], first) < (-scores[second], second)


def test_ties_are_exact() -> None:
    standings = rank([-1.0, -2.0, -1.0, -1.0000001])
    assert [(s.place, s.tied) for s in standings] == [
        (0, True),
        (2, True),
        (3, False),
        (1, False),
    ]


@given(st.permutations([-0.1, -1e-9, -700.0, -3.3, -1e-17]))
def test_a_sum_does_not_depend_on_its_order(values: list[float]) -> None:
    total = every_score(tokens(*values), None, option="x")["sum"]
    assert total == math.fsum([-0.1, -1e-9, -700.0, -3.3, -1e-17])


def test_brier() -> None:
    assert brier([1.0, 0.0], 0) == 0.0
    assert brier([1.0, 0.0], 1) == 2.0
    assert brier([0.5, 0.25, 0.25], 0) == pytest.approx(0.375)
