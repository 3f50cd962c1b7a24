"""What the scheduler counts: growing totals and one trace a request.

Pure bookkeeping, called by the scheduler and read by the stats route.  Totals only
grow; a branch that is visited in many rounds is counted once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

__all__ = ["Counters", "RoundLog", "Trace"]


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
        recovered_rows: rows admitted behind a BLOCKED branch in the same round.
        lookups: prefix-cache lookups of waiting requests.
        hints: requests with usable hints.
        hints_ignored: requests whose hints were malformed.
        capped_hits: hits cut back so that a scored row is computed.
    """

    rounds: int = 0
    rows: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    blocked: int = 0
    blocked_visits: int = 0
    recovered_rows: int = 0
    lookups: int = 0
    hints: int = 0
    hints_ignored: int = 0
    capped_hits: int = 0

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
    """

    first: int = 0
    last: int = 0
    blocked: int = 0
    tokens: int = 0

    def as_dict(self) -> dict[str, int]:
        """A copy as JSON-ready data."""
        return asdict(self)


@dataclass(slots=True)
class RoundLog:
    """Counters, and the traces of the requests that are in the scheduler now."""

    counters: Counters = field(default_factory=Counters)
    traces: dict[str, Trace] = field(default_factory=dict)
    _running_at_first_block: int | None = None

    def round_starts(self) -> None:
        """A scheduler step begins."""
        self._running_at_first_block = None

    def blocked(self, request_id: str, running: int) -> None:
        """A visit found `request_id` BLOCKED while `running` requests were running."""
        trace = self.traces.setdefault(request_id, Trace())
        self.counters.blocked += trace.blocked == 0
        self.counters.blocked_visits += 1
        trace.blocked += 1
        if self._running_at_first_block is None:
            self._running_at_first_block = running

    def round_ends(self, scheduled: dict[str, int], running: int) -> None:
        """A scheduler step ended with `scheduled` tokens for each request id."""
        if not scheduled:
            return
        counters = self.counters
        counters.rounds += 1
        counters.rows += len(scheduled)
        counters.tokens += sum(scheduled.values())
        if self._running_at_first_block is not None:
            counters.recovered_rows += max(0, running - self._running_at_first_block)
        for request_id, tokens in scheduled.items():
            trace = self.traces.setdefault(request_id, Trace())
            trace.first = trace.first or counters.rounds
            trace.last = counters.rounds
            trace.tokens += tokens

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A request entered the running set for the first time."""
        self.counters.prompt_tokens += prompt_tokens
        self.counters.cached_tokens += cached_tokens

    def finished(self, request_id: str) -> Trace:
        """The request left the scheduler; forget it and return its trace."""
        return self.traces.pop(request_id, Trace())
