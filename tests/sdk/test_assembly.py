from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import InvalidResponseError, PartialGroupError, TokenScore, Usage
from radixflow_sdk._assembly import GroupState, begin, candidates_of, finish, fold
from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    GroupCompleted,
    GroupStarted,
    Plan,
)
from radixflow_sdk._results import GroupUsage
from tests.sdk.wire import plan

START = GroupStarted(
    group_id="g", request_id="r", model="m", document_tokens=8, shared_tokens=8
)
END = GroupCompleted(
    usage=GroupUsage(
        prompt_tokens=1,
        cached_tokens=1,
        computed_tokens=1,
        rounds=None,
    )
)


def result(index: int, logprob: float = -1.0) -> BranchResult:
    return BranchResult(
        index=index,
        request_id=f"r-{index}",
        tokens=(TokenScore(token_id=5, logprob=logprob),),
        labels=None,
        usage=Usage(prompt_tokens=3, cached_tokens=2, computed_tokens=1),
    )


def folded(plan: Plan, *events: BranchEvent) -> GroupState:
    return reduce(fold, events, begin(plan))


def failure(index: int) -> BranchFailed:
    return BranchFailed(
        index=index, request_id="r-0", code="aborted", message="gone", retryable=False
    )


@given(st.permutations([result(0, -3.0), failure(1), result(2, -1.0), result(3)]))
def test_branches_may_come_in_any_order(events: list[BranchEvent]) -> None:
    made = plan(["a", "b", "c", "d"])
    in_order: list[BranchEvent] = [
        result(0, -3.0),
        failure(1),
        result(2, -1.0),
        result(3),
    ]
    expected = folded(made, START, *in_order, END)
    assert folded(made, START, *events, END) == expected


def test_fold_leaves_the_old_state_alone() -> None:
    first = begin(plan())
    later = fold(first, result(0))
    assert first.answers == (None, None)
    assert later.answers == (result(0), None)


def test_a_finished_group_is_ranked() -> None:
    made = plan(["a", "b", "a"])
    state = folded(made, START, result(1, -0.5), result(0, -0.5), END)
    done = finish(state, elapsed=1.5)
    assert [candidate.index for candidate in done.candidates] == [0, 1, 2]
    assert [candidate.duplicate_of for candidate in done.candidates] == [None, None, 0]
    assert all(candidate.tied for candidate in done.candidates)
    assert done.best.text == "a"
    assert done.best.token_ids == (5,)
    assert done.best.cached_tokens == 2
    assert sum(c.probability for c in done.candidates) == pytest.approx(1.0)
    assert (done.elapsed, done.model, done.request_id) == (1.5, "m", "r")


def test_one_branch_scores_all_equal_options() -> None:
    found = candidates_of(begin(plan(["a", "b", "a"])), result(0))
    assert [candidate.index for candidate in found] == [0, 2]


@pytest.mark.parametrize(
    "events",
    [[result(0), result(0)], [result(2)], [result(-1)], [result(0), END]],
    ids=["twice", "above", "below", "missing"],
)
def test_what_cannot_be_is_an_error(events: list[BranchEvent]) -> None:
    with pytest.raises(InvalidResponseError) as caught:
        folded(plan(), START, *events)
    assert (caught.value.request_id, caught.value.group_id) == ("r", "g")


def test_an_unfinished_group_is_no_answer() -> None:
    with pytest.raises(InvalidResponseError):
        finish(fold(begin(plan()), START), elapsed=0.0)


def test_a_failed_branch_keeps_the_others() -> None:
    state = folded(plan(["a", "b", "a"]), START, failure(0), result(1), END)
    with pytest.raises(PartialGroupError) as caught:
        finish(state, elapsed=0.0)
    error = caught.value
    assert [candidate.text for candidate in error.candidates] == ["b"]
    assert [(f.index, f.code) for f in error.failures] == [
        (0, "aborted"),
        (2, "aborted"),
    ]
    assert error.group_id == "g"
    assert "2 of 3" in str(error)
