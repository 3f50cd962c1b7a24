"""Rows, read: exact numbers, or a failure with a name."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from server_ext.api.scoring import (
    BranchFailure,
    read_id_rows,
    read_labels,
    read_next,
    read_rows,
    sampling,
)

HINTS = {"radixflow_v": 1, "radixflow_group": "g"}


def row(**logprobs: float) -> dict[int, Any]:
    return {
        int(token[1:]): SimpleNamespace(logprob=value)
        for token, value in logprobs.items()
    }


def prompt(*rows: dict[int, Any] | None) -> Any:
    return SimpleNamespace(prompt_logprobs=list(rows))


def generated(token: int, logprobs: dict[int, Any] | None) -> Any:
    rows = None if logprobs is None else [logprobs]
    completion = SimpleNamespace(token_ids=[token], logprobs=rows)
    return SimpleNamespace(outputs=[completion])


def failure(read: Any, *args: Any) -> BranchFailure:
    with pytest.raises(BranchFailure) as caught:
        read(*args)
    assert not caught.value.retryable
    return caught.value


def test_the_last_rows_are_the_branchs() -> None:
    output = prompt(None, row(t5=-9.0), row(t6=-1.5, t9=-0.1), row(t7=0.0))
    reading = read_rows(output, [6, 7])
    assert reading.token_ids == (6, 7)
    assert reading.token_logprobs == (-1.5, 0.0)
    assert reading.token_is_top == (False, True)
    assert reading.labels is None


def test_a_tie_for_the_top_is_the_top() -> None:
    output = prompt(row(t6=-0.7, t9=-0.7), row(t7=-0.70001, t9=-0.7))
    assert read_rows(output, [6, 7]).token_is_top == (True, False)


@pytest.mark.parametrize(
    ("output", "scored"),
    [
        (SimpleNamespace(prompt_logprobs=None), [5]),
        (prompt(), [5]),
        (prompt(row(t5=-1.0)), [5, 6]),
        (prompt(row(t5=-1.0)), []),
        (prompt(None), [5]),
        (prompt(row(t6=-1.0)), [5]),
        (prompt({}), [5]),
    ],
    ids=["none", "no rows", "short", "nothing scored", "first row", "other", "empty"],
)
def test_a_missing_row(output: Any, scored: list[int]) -> None:
    assert failure(read_rows, output, scored).code == "missing_logprob"


NOT_NUMBERS = [math.nan, -math.inf, math.inf, -9999.0, -1e30, 0.1]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_row_that_is_not_a_log_probability(value: float) -> None:
    output = prompt(row(t4=-1.0), row(t5=value))
    assert failure(read_rows, output, [4, 5]).code == "non_finite_logprob"
    labels = generated(3, row(t3=-0.5, t8=value))
    assert failure(read_labels, labels, [8]).code == "non_finite_logprob"


def test_rounding_above_zero_is_no_failure() -> None:
    assert read_rows(prompt(row(t5=1e-6)), [5]).token_logprobs == (1e-6,)


def test_labels_come_in_the_order_sent() -> None:
    reading = read_labels(generated(3, row(t3=-0.5, t8=-1.0, t7=-2.0)), [7, 8, 7, 3])
    assert reading.token_ids == (3,)
    assert reading.token_logprobs == (-0.5,)
    assert reading.labels == (-2.0, -1.0, -2.0, -0.5)


def test_a_label_without_a_row() -> None:
    empty = SimpleNamespace(
        outputs=[SimpleNamespace(token_ids=[], logprobs=[row(t3=-1.0)])]
    )
    for output in (generated(3, None), generated(3, row(t3=-1.0)), empty):
        assert failure(read_labels, output, [8]).code == "missing_logprob"


def test_one_token_is_read_from_the_row_before_it() -> None:
    output = generated(3, row(t3=-0.5, t8=-1.0, t7=-0.5))
    assert read_next(output, 8).token_logprobs == (-1.0,)
    tops = [read_next(output, token).token_is_top for token in (3, 8, 7)]
    assert tops == [(True,), (False,), (True,)]
    assert failure(read_next, output, 9).code == "missing_logprob"
    assert failure(read_next, generated(3, None), 3).code == "missing_logprob"
    bad = generated(3, row(t3=-0.5, t8=-math.inf))
    assert failure(read_next, bad, 8).code == "non_finite_logprob"


def test_a_likelihood_reads_prompt_rows_only() -> None:
    params = sampling(hints=HINTS, scored=[7], cached=True)
    assert (params.prompt_logprobs, params.logprobs) == (1, None)
    assert (params.max_tokens, params.temperature, params.detokenize) == (1, 0.0, False)
    assert params.skip_reading_prefix_cache is False
    assert params.extra_args == HINTS | {"radixflow_internal": {"trim_rows": True}}


def test_labels_read_one_row_of_exactly_those_tokens() -> None:
    params = sampling(hints=HINTS, labels=(8, 7, 8), cached=True)
    assert params.logprob_token_ids == [8, 7]
    assert params.logprobs == 2
    assert params.prompt_logprobs is None
    assert params.extra_args == HINTS


def test_without_the_cache() -> None:
    params = sampling(hints=HINTS, scored=[7], cached=False)
    assert params.skip_reading_prefix_cache is True


# --- the V2 model runner (it needs a GPU; its answers here are made up) ---------------


def test_the_v2_runner_is_asked_for_the_scored_rows_alone() -> None:
    hints = HINTS | {"radixflow_scored_from": 5}
    params = sampling(hints=hints, scored=[7, 9], cached=True, by_ids=True)
    assert params.prompt_logprob_token_ids == [[7], [9]]
    assert params.prompt_logprob_start == 4
    assert params.prompt_logprobs is None
    assert params.skip_reading_prefix_cache is False
    assert params.extra_args == hints


def test_its_rows_are_in_the_order_of_the_tokens() -> None:
    output = SimpleNamespace(prompt_token_id_logprobs=np.array([[-1.5], [-0.25]]))
    reading = read_id_rows(output, [6, 7])
    assert reading.token_ids == (6, 7)
    assert reading.token_logprobs == (-1.5, -0.25)
    assert reading.token_is_top is None


def test_the_likeliest_token_comes_in_a_second_column() -> None:
    rows = np.array([[-1.5, -0.5], [-0.25, -0.25]])
    reading = read_id_rows(SimpleNamespace(prompt_token_id_logprobs=rows), [6, 7])
    assert reading.token_logprobs == (-1.5, -0.25)
    assert reading.token_is_top == (False, True)


@pytest.mark.parametrize("rows", [None, np.zeros((1, 1)), np.zeros((3, 1))])
def test_rows_that_it_withholds_are_missing(rows: Any) -> None:
    output = SimpleNamespace(prompt_token_id_logprobs=rows)
    assert failure(read_id_rows, output, [6, 7]).code == "missing_logprob"


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_its_rows_are_checked_too(value: float) -> None:
    output = SimpleNamespace(prompt_token_id_logprobs=np.array([[-1.0], [value]]))
    assert failure(read_id_rows, output, [6, 7]).code == "non_finite_logprob"
