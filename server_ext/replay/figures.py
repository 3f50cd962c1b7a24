"""The figures of one arm over one trace, and the flat row in which they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

__all__ = ["CAUSES", "End", "Figures", "Measured", "RoundRow", "quantile", "read_row"]


CAUSES = ("rows", "tokens", "queue", "held", "blocked", "chunk", "memory")
"""What ends a round: no free slot; the token budget; an empty queue; all that wait are
held, or BLOCKED; the next READY branch fits no whole chunk; no free block."""


@dataclass(frozen=True, slots=True)
class End:
    """The rounds that one cause ended.

    Attributes:
        rounds: how many.
        bubbles: of these, rounds with an avoidable bubble.
        unused: rounds' worth of slots or tokens, whichever was fuller, left unused: a
            round that filled 12 of 16 slots and a third of its budget leaves a quarter.
    """

    rounds: int = 0
    bubbles: int = 0
    unused: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that depends on trace, card and arm alone; None where there is no figure.

    Attributes:
        trace: name of the trace.
        engine: ``synchronous`` or ``asynchronous``.
        groups: groups of the trace.
        completed: groups that were answered.
        rejected: groups that do not fit the model.
        latency_mean: seconds from a group's offered arrival to its last branch.
        latency_p50: the median, by nearest rank.
        latency_p95: the 95th percentile.
        latency_p99: the 99th percentile.
        latency_max: the longest.
        wait_mean: from the engine taking a group to its first selection.
        rest_mean: from there to its last branch.
        late_mean: from offered arrival to the engine taking the group, which it does
            between rounds.
        late_max: the longest of these.
        rounds: rounds with work.
        bound: rounds that full slots or full budgets would take.
        packed: rounds of a packer that knows no dependencies and keeps the order.
        row_steps: slots filled, summed over the rounds.
        tokens: tokens computed.
        prompt_tokens: tokens of all prompts.
        hit_tokens: of these, read from the cache at admission.
        overlap_tokens: tokens of a shared context that were computed again.
        limit: tokens that full attention with 16-token blocks computes.
        blocked_visits: visits that found a branch BLOCKED.
        recovered_rows: slots filled behind a BLOCKED branch in the same round.
        lookups: prefix-cache lookups of waiting branches.
        deferred: branches that fragment deferral skipped for a round.
        overtakes: releases of the gate that passed an earlier branch.
        makespan: seconds until all was done.
        busy: seconds that the device worked.
        idle: seconds between rounds in which nothing ran.
        ends: rounds by what ended them, empty where it was not recorded.
    """

    trace: str
    engine: str
    groups: int
    completed: int
    rejected: int
    latency_mean: float | None
    latency_p50: float | None
    latency_p95: float | None
    latency_p99: float | None
    latency_max: float | None
    wait_mean: float | None
    rest_mean: float | None
    late_mean: float | None
    late_max: float | None
    rounds: int
    bound: int
    packed: int
    row_steps: int
    tokens: int
    prompt_tokens: int
    hit_tokens: int
    overlap_tokens: int
    limit: int
    blocked_visits: int
    recovered_rows: int
    lookups: int
    deferred: int
    overtakes: int
    makespan: float
    busy: float
    idle: float
    ends: Mapping[str, End] = field(default_factory=dict)

    @property
    def bubbles(self) -> int | None:
        """Avoidable bubbles; None where they were not recorded."""
        return sum(end.bubbles for end in self.ends.values()) if self.ends else None

    def unused(self, cause: str) -> float:
        """Rounds' worth that this cause left unused."""
        return self.ends[cause].unused if cause in self.ends else 0.0

    def as_row(self) -> dict[str, Any]:
        """One flat row, as in a CSV file."""
        row = {one.name: getattr(self, one.name) for one in fields(self)}
        del row["ends"]
        for cause in CAUSES:
            end = self.ends.get(cause, End()) if self.ends else None
            for one in fields(End):
                row[f"{one.name}_{cause}"] = end and getattr(end, one.name)
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Figures:
        """Read a row that `as_row` wrote; further columns are ignored."""
        ends = {}
        if row["rounds_rows"] != "":
            for cause in CAUSES:
                cells = {one.name: row[f"{one.name}_{cause}"] for one in fields(End)}
                ends[cause] = End(**read_row(End, cells))
        return cls(**read_row(cls, row), ends=ends)


@dataclass(frozen=True, slots=True)
class Measured:
    """Time of the replay itself on this machine; the only figures that vary.

    Attributes:
        wall_seconds: the whole replay.
        host_us_a_round: microseconds of ``schedule()`` a round.
    """

    wall_seconds: float
    host_us_a_round: float


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round, kept in full.

    Attributes:
        start: when the device began it.
        end: when the device ended it.
        rows: tokens of each request.
        blocked: requests found BLOCKED.
        waiting: requests that wait after it.
        ended: what ended it, None where it was not recorded.
        bubble: whether it left an avoidable bubble.
    """

    start: float
    end: float
    rows: Mapping[str, int]
    blocked: tuple[str, ...]
    waiting: int
    ended: str | None
    bubble: bool


def read_row(kind: type, row: Mapping[str, str]) -> dict[str, Any]:
    """The values of a dataclass's fields out of the text of a CSV row.

    Raises:
        KeyError: a column is missing.
        ValueError: a value is not of the field's type.
    """
    types = get_type_hints(kind)
    return {
        one.name: _value(types[one.name], row[one.name])
        for one in fields(kind)
        if one.name != "ends"
    }


def _value(kind: Any, text: str) -> Any:
    if kind is bool:
        return {"True": True, "False": False}[text]
    if kind in (int, float):
        return kind(text)
    if kind == float | None:
        return None if text == "" else float(text)
    return text


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of all do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-round(share * 1e6) * len(ordered) // 1_000_000)
    return ordered[min(len(ordered), max(1, rank)) - 1]
