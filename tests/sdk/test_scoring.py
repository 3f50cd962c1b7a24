import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import LabelScore, TokenScore
from radixflow_sdk._scoring import rank, score, softmax, ties
from radixflow_sdk.types import Normalize

SCORES = st.lists(st.floats(min_value=-9999, max_value=0), min_size=1, max_size=50)


def tokens(*logprobs: float) -> list[TokenScore]:
    return [TokenScore(token_id=0, logprob=value) for value in logprobs]


def labels(*logprobs: float) -> list[LabelScore]:
    return [LabelScore(label="x", token_id=0, logprob=value) for value in logprobs]


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [("sum", -6.0), ("mean", -2.0), ("char", -1.5), ("byte", -1.2)],
)
def test_normalisers_divide_by_the_option_alone(
    normalize: Normalize, expected: float
) -> None:
    # "naïf" has 4 characters and 5 bytes; its delimiter is never counted.
    got = score(tokens(-1.0, -2.0, -3.0), None, option="naïf", normalize=normalize)
    assert got == pytest.approx(expected)


def test_label_scores() -> None:
    both = labels(math.log(0.3), math.log(0.1))
    raw = score(tokens(-0.1), both, option="x", normalize="sum")
    share = score(tokens(-0.1), both, option="x", normalize="label")
    assert raw == pytest.approx(math.log(0.3))
    assert share == pytest.approx(math.log(0.75))


@given(SCORES)
def test_softmax_sums_to_one_and_keeps_the_order(scores: list[float]) -> None:
    got = softmax(scores)
    assert math.fsum(got) == pytest.approx(1.0)
    order = rank(scores)
    assert [got[place] for place in order] == sorted(got, reverse=True)


@given(SCORES)
def test_rank_is_a_permutation_with_ties_by_index(scores: list[float]) -> None:
    order = rank(scores)
    assert sorted(order) == list(range(len(scores)))
    for first, second in pairwise(order):
        assert (-scores[first], first) < (-scores[second], second)


def test_ties_are_exact() -> None:
    assert ties([-1.0, -2.0, -1.0, -1.0000001]) == (True, False, True, False)


@given(st.permutations([-0.1, -1e-9, -700.0, -3.3, -1e-17]))
def test_a_sum_does_not_depend_on_its_order(values: list[float]) -> None:
    total = score(tokens(*values), None, option="x", normalize="sum")
    assert total == math.fsum([-0.1, -1e-9, -700.0, -3.3, -1e-17])
