"""Who may enter: held branches, released when there is a round worth running."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server_ext.policy.admission import Gate, Room
from server_ext.policy.config import POLICIES

IDLE = Room(running=0, rows=4, tokens=1000)
BUSY = replace(IDLE, running=1)


def gate(policy: str = "radixflow", **settings: object) -> Gate:
    return Gate(replace(POLICIES[policy], **settings))  # type: ignore[arg-type]


def test_a_policy_that_holds_nobody() -> None:
    held = gate("radixflow+")
    assert not held.hold("a", 0.0, 10)
    assert "a" not in held
    assert held.next_deadline() is None


def test_flex_waits_for_the_deadline_on_an_idle_engine() -> None:
    held = gate()
    assert held.hold("a", 1.0, 10)
    assert held.release(1.0049, IDLE) == []
    assert held.next_deadline() == pytest.approx(1.005)
    assert held.release(1.0051, IDLE) == ["a"]
    assert held.deferrals == 1
    assert held.longest == pytest.approx(0.0051)


@pytest.mark.parametrize(
    ("residuals", "room", "released"),
    [
        ([10], BUSY, True),  # work is running
        ([10, 10, 10], IDLE, False),
        ([10, 10, 10, 10], IDLE, True),  # the rows are full
        ([500, 499], IDLE, False),
        ([500, 500], IDLE, True),  # the token budget is full
    ],
)
def test_flex_releases_early(residuals: list[int], room: Room, released: bool) -> None:
    held = gate()
    for number, residual in enumerate(residuals):
        held.hold(number, 1.0, residual)
    everybody = list(range(len(residuals)))
    assert held.release(1.001, room) == (everybody if released else [])
    assert held.deferrals == 0  # nobody was kept out of a round that ran


def test_flex_holds_each_branch_on_its_own() -> None:
    held = gate()
    held.hold("a", 1.0, 10)
    held.hold("b", 1.003, 10)
    assert held.release(1.006, IDLE) == ["a"]
    assert held.release(1.009, IDLE) == ["b"]


def test_live_timers_are_read_one_by_one_and_can_overtake() -> None:
    """The paper's Timer: a later branch whose turn to be looked at comes after its
    deadline passes an earlier one that was looked at before.
    """
    held = gate("timer5")
    held.hold("a", 1.0, 10)
    held.hold("b", 1.0001, 10)
    assert held.release(1.006, IDLE) == held.release(1.006, BUSY) == []
    assert not held.expired("a", 1.0049)
    assert held.expired("b", 1.0052)
    assert held.overtakes == 1
    assert held.expired("a", 1.0053)
    assert held.overtakes == 1
    assert len(held) == 0


def test_an_aborted_branch_is_dropped_and_another_policy_counts_on() -> None:
    held = gate("timer5")
    held.hold("a", 1.0, 10)
    held.drop("a")
    held.drop("a")
    assert held.next_deadline() is None
    held.hold("b", 1.0, 10)
    assert held.expired("b", 2.0)
    other = held.under(POLICIES["radixflow"])
    assert (other.longest, len(other)) == (pytest.approx(1.0), 0)
