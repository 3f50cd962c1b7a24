"""What the scheduler counts: growing totals, the last round, one trace a request.

Pure bookkeeping, called by the scheduler and read by the stats route.  Totals only
grow; a branch that is visited in many rounds is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["Counters", "Round", "RoundLog", "Trace"]


@dataclass(slots=True)
class Counters:
    """Totals since the server started.

    Attributes:
        rounds: worker rounds (scheduler steps that had work).
        rows: requests scheduled, summed over the rounds.
        tokens: tokens scheduled, summed over the rounds.
        prompt_tokens: prompt tokens of the requests that were admitted.
        cached_tokens: of these, read from the prefix cache at admission.
        blocked: branches that were found BLOCKED at least once.
        blocked_visits: times that a visit found a branch BLOCKED.
        woken: branches that were BLOCKED and have been scheduled since.
        recovered_rows: rows admitted behind a BLOCKED branch in the same round.
        deferred: times that a branch was deferred, since it would have been cut short.
        lookups: prefix-cache lookups of waiting requests.
        hints: requests with usable hints.
        hints_ignored: requests whose hints were malformed.
        capped_hits: hits cut back so that a scored row is computed.
        scans_cut: rounds whose scan ended at the scan limit.
        audited: rounds that debug mode audited.
        bubbles: of these, rounds with room that left a READY branch out.
        host_us: time in ``schedule()``, in microseconds, rounds without work included.
    """

    rounds: int = 0
    rows: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    blocked: int = 0
    blocked_visits: int = 0
    woken: int = 0
    recovered_rows: int = 0
    deferred: int = 0
    lookups: int = 0
    hints: int = 0
    hints_ignored: int = 0
    capped_hits: int = 0
    scans_cut: int = 0
    audited: int = 0
    bubbles: int = 0
    host_us: int = 0

    def as_dict(self) -> dict[str, int]:
        """A copy as JSON-ready data."""
        return asdict(self)


@dataclass(slots=True)
class Trace:
    """The rounds of one request.

    Attributes:
        first: round of its first selection, 0 before that.
        last: round of its last selection.
        blocked: visits that found it BLOCKED.
        tokens: tokens computed for it.
        blocked_at: when it was first found BLOCKED while it waits, else None.
    """

    first: int = 0
    last: int = 0
    blocked: int = 0
    tokens: int = 0
    blocked_at: float | None = None

    def as_dict(self) -> dict[str, int]:
        """The numbers that travel back to the sender."""
        return {
            "first": self.first,
            "last": self.last,
            "blocked": self.blocked,
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One worker round, as it is traced.

    Attributes:
        number: the round's number.
        at: start, in seconds of a steady clock.
        host_us: time in ``schedule()`` in microseconds.
        scheduled: tokens for each request id.
        blocked: request ids found BLOCKED.
        running: requests running after the round was planned.
        waiting: requests waiting then.
        recovered_rows: rows admitted behind a BLOCKED branch.
        woken: rows that were BLOCKED before.
        lookups: prefix-cache lookups that it took.
        held: branches that admission holds back after it.
        parked: branches in prefix buckets, which it did not visit.
        overtakes: releases before it that passed an earlier branch.
        oldest_blocked_s: seconds that the longest BLOCKED branch has waited.
        bubble: whether it left a READY branch out; None without an audit.
    """

    number: int
    at: float
    host_us: int
    scheduled: Mapping[str, int]
    blocked: tuple[str, ...]
    running: int
    waiting: int
    recovered_rows: int
    woken: int = 0
    lookups: int = 0
    held: int = 0
    parked: int = 0
    overtakes: int = 0
    oldest_blocked_s: float = 0.0
    bubble: bool | None = None

    def as_dict(self) -> dict[str, object]:
        """The round as JSON-ready data."""
        return {**asdict(self), "scheduled": dict(self.scheduled)}


@dataclass(slots=True)
class RoundLog:
    """Counters, and the traces of the requests that are in the scheduler now."""

    counters: Counters = field(default_factory=Counters)
    traces: dict[str, Trace] = field(default_factory=dict)
    _waiting_blocked: dict[str, None] = field(default_factory=dict)
    _blocked: list[str] = field(default_factory=list)
    _running_at_first_block: int | None = None
    _started: float = 0.0
    _lookups_before: int = 0
    _overtakes_before: int = 0

    @property
    def blocked_in_round(self) -> int:
        """Visits of this round that found a branch BLOCKED."""
        return len(self._blocked)

    def round_starts(self, now: float) -> None:
        """A scheduler step begins."""
        self._started = now
        self._lookups_before = self.counters.lookups
        self._blocked = []
        self._running_at_first_block = None

    def blocked(self, request_id: str, running: int) -> None:
        """A visit found `request_id` BLOCKED while `running` requests were running."""
        trace = self.traces.setdefault(request_id, Trace())
        self.counters.blocked += trace.blocked == 0
        self.counters.blocked_visits += 1
        trace.blocked += 1
        if trace.blocked_at is None:
            trace.blocked_at = self._started
            self._waiting_blocked[request_id] = None
        self._blocked.append(request_id)
        if self._running_at_first_block is None:
            self._running_at_first_block = running

    def round_ends(
        self,
        scheduled: Mapping[str, int],
        *,
        host_us: int,
        running: int,
        waiting: int,
        held: int = 0,
        parked: int = 0,
        overtakes: int = 0,
        bubble: bool | None = None,
    ) -> Round | None:
        """A scheduler step ended with `scheduled` tokens for each request id.

        Args:
            scheduled: tokens of each request id.
            host_us: time in ``schedule()``.
            running: requests that run now.
            waiting: requests that wait.
            held: of these, held back by admission.
            parked: of these, in prefix buckets.
            overtakes: the gate's total so far.
            bubble: see `Round`.

        Returns:
            The round, or None if it had no work.
        """
        self.counters.host_us += host_us
        if not scheduled:
            return None
        counters = self.counters
        counters.rounds += 1
        counters.rows += len(scheduled)
        counters.tokens += sum(scheduled.values())
        first_block = self._running_at_first_block
        recovered = 0 if first_block is None else max(0, running - first_block)
        counters.recovered_rows += recovered
        woken_before, overtakes_before = counters.woken, self._overtakes_before
        self._overtakes_before = overtakes
        for request_id, tokens in scheduled.items():
            self._selected(request_id, tokens)
        return Round(
            number=counters.rounds,
            at=self._started,
            host_us=host_us,
            scheduled=scheduled,
            blocked=tuple(self._blocked),
            running=running,
            waiting=waiting,
            recovered_rows=recovered,
            woken=counters.woken - woken_before,
            lookups=counters.lookups - self._lookups_before,
            held=held,
            parked=parked,
            overtakes=overtakes - overtakes_before,
            oldest_blocked_s=self.oldest_blocked(self._started),
            bubble=bubble,
        )

    def _selected(self, request_id: str, tokens: int) -> None:
        trace = self.traces.setdefault(request_id, Trace())
        trace.first = trace.first or self.counters.rounds
        trace.last = self.counters.rounds
        trace.tokens += tokens
        if trace.blocked_at is not None:
            trace.blocked_at = None
            self.counters.woken += 1
            self._waiting_blocked.pop(request_id, None)

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A request entered the running set for the first time."""
        self.counters.prompt_tokens += prompt_tokens
        self.counters.cached_tokens += cached_tokens

    def finished(self, request_id: str) -> Trace:
        """The request left the scheduler; forget it and return its trace."""
        self._waiting_blocked.pop(request_id, None)
        return self.traces.pop(request_id, Trace())

    def oldest_blocked(self, now: float) -> float:
        """Seconds that the longest BLOCKED branch has been waiting since, or 0."""
        first = next(iter(self._waiting_blocked), None)
        at = None if first is None else self.traces[first].blocked_at
        return 0.0 if at is None else now - at
