"""Who goes next: lanes, and groups by the work they have left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_ext.order import ROW_WORK, GroupOrder, Lanes

# --- lanes ---------------------------------------------------------


def filled(*items: str) -> Lanes:
    """Items such as ``a1``: lane ``a``, in this order of arrival."""
    lanes = Lanes()
    for item in items:
        lanes.add(item, item[0])
    return lanes


def drained(lanes: Lanes) -> list[str]:
    found = []
    while lanes.head() is not None:
        found.append(str(lanes.pop()))
    return found


def test_order_of_arrival_over_all_lanes() -> None:
    items = ["a1", "b1", "a2", "c1", "b2"]
    lanes = filled(*items)
    assert list(lanes) == items
    assert drained(lanes) == items
    assert len(lanes) == 0


def test_a_parked_lane_is_hidden_until_the_next_round() -> None:
    lanes = filled("a1", "b1", "a2", "a3", "b2")
    assert lanes.pop(park=True) == "a1"
    lanes.restore("a1")
    assert lanes.parked == 3
    assert drained(lanes) == ["b1", "b2"]
    lanes.next_round()
    assert lanes.parked == 0
    assert drained(lanes) == ["a1", "a2", "a3"]


def test_what_is_put_back_goes_where_it_was() -> None:
    lanes = filled("a1", "b1", "a2")
    popped = [lanes.pop(), lanes.pop()]
    for item in reversed(popped):  # vLLM puts back the last skipped first
        assert lanes.was_popped(item)
        lanes.restore(item)
    lanes.push_front("z", "z")
    assert drained(lanes) == ["z", "a1", "b1", "a2"]


def test_removed_items_are_not_shown() -> None:
    lanes = filled("a1", "b1", "a2")
    lanes.remove(["a1", "never here"])
    assert "a1" not in lanes
    assert drained(lanes) == ["b1", "a2"]
    with pytest.raises(IndexError, match="nothing visible"):
        lanes.pop()


# --- groups ---------------------------------------------------------


def ranked(order: GroupOrder, *groups: str) -> list[str]:
    order.next_round()
    return sorted(groups, key=order.rank)


def test_the_least_work_left_goes_first_within_the_bound() -> None:
    order = GroupOrder(overtake=3.0)
    order.arrived("long", "l", 10_000)
    order.arrived("short", "s", 100)
    assert ranked(order, "long", "short") == ["short", "long"]
    order.served("l", 9_950)
    assert ranked(order, "long", "short") == ["long", "short"]


def test_a_group_that_would_be_late_is_urgent() -> None:
    order = GroupOrder(overtake=1.0)
    order.arrived("long", "l", 10_000)
    order.arrived("short", "s", 100)
    assert ranked(order, "long", "short") == ["short", "long"]
    order.served("elsewhere", 1_000)
    assert ranked(order, "long", "short") == ["long", "short"]
    order.served("l", 10_000)  # once urgent it stays so
    assert ranked(order, "long", "short") == ["long", "short"]


def test_a_group_that_is_gone_is_forgotten() -> None:
    order = GroupOrder()
    order.arrived("a", "a1", 10)
    order.arrived("a", "a2", 10)
    order.gone("a1")
    assert order.next_round() == {"a"}
    order.gone("a2")
    order.gone("never here")
    assert order.next_round() == set()
    assert not order._groups
    assert not order._branches


def test_shared_tokens_are_counted_once_in_a_group() -> None:
    order = GroupOrder(overtake=9.0)
    for name in ("d1", "d2"):
        order.arrived("on a document", name, 1_010, shared=1_000)
    order.arrived("alone", "one", 1_050)
    assert ranked(order, "on a document", "alone") == ["alone", "on a document"]
    assert order.missing == ("d1",)


def test_what_others_have_computed_is_not_this_groups_work() -> None:
    order = GroupOrder(overtake=9.0)
    order.arrived("on a document", "d1", 1_010, shared=1_000, cached=200)
    order.arrived("alone", "one", 500)
    assert ranked(order, "on a document", "alone") == ["alone", "on a document"]
    order.cached("d1", 640)
    assert order.missing == ("d1",)
    order.cached("d1", 1_200)
    assert order.missing == ()
    assert ranked(order, "on a document", "alone") == ["on a document", "alone"]


def test_work_that_is_not_done_leaves_the_virtual_queue() -> None:
    """An abort, or a document that was cached after all: nobody may be held to a stay
    in a queue of phantoms.
    """
    order = GroupOrder(overtake=1.0)
    order.arrived("aborted", "a", 50_000)
    order.arrived("long", "l", 10_000)
    order.arrived("short", "s", 100)
    order.gone("a")
    order.served("elsewhere", 1_000)
    assert ranked(order, "long", "short") == ["long", "short"]


@dataclass
class Job:
    """A group of one branch."""

    at: float
    work: int


def stays(jobs: list[Job], overtake: float | None, quantum: int = 100) -> list[float]:
    """How long each job takes on one server, in work; None: in order of arrival."""
    order = GroupOrder() if overtake is None else GroupOrder(overtake)
    left, ends = {}, {}
    now, come = 0.0, 0
    while len(ends) < len(jobs):
        while come < len(jobs) and jobs[come].at <= now:
            order.arrived(come, come, jobs[come].work - ROW_WORK)
            left[come] = jobs[come].work
            come += 1
        if not left:
            now = order._now = jobs[come].at
            continue
        order.next_round()
        chosen = min(left) if overtake is None else min(left, key=order.rank)
        step = min(quantum, left[chosen])
        order.served(chosen, step - ROW_WORK)
        now += step
        left[chosen] -= step
        if not left[chosen]:
            del left[chosen]
            order.gone(chosen)
            ends[chosen] = now
    return [ends[number] - job.at for number, job in enumerate(jobs)]


_jobs = st.lists(
    st.tuples(st.integers(0, 3_000), st.sampled_from([100, 300, 2_000, 9_000])),
    min_size=1,
    max_size=30,
).map(
    lambda drawn: [
        Job(float(sum(gap for gap, _ in drawn[: place + 1])), work)
        for place, (_, work) in enumerate(drawn)
    ]
)


@given(jobs=_jobs, overtake=st.sampled_from([0.5, 1.0, 1.5, 3.0]))
def test_nobody_starves(jobs: list[Job], overtake: float) -> None:
    """The last to end is no later than the work of all that were there before."""
    work = sum(job.work for job in jobs)
    assert max(stays(jobs, overtake)) <= work


@given(jobs=_jobs)
def test_without_a_bound_the_mean_is_the_least(jobs: list[Job]) -> None:
    """Shortest remaining first is optimal for the mean."""
    mean = math.fsum(stays(jobs, 1e9)) / len(jobs)
    for overtake in (None, 0.5, 1.0):
        assert mean <= math.fsum(stays(jobs, overtake)) / len(jobs) + 100
