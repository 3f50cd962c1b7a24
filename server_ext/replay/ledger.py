"""The ledger: what happened, and the figures made from it.

Clocks are kept apart: client latency (virtual), host time (virtual and assumed), host
time of the scheduler on this machine (measured, the one figure that is not
reproducible).  What is not known is None, never zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from server_ext.replay.cards import Card
from server_ext.replay.clock import Device
from server_ext.replay.figures import End, Figures, Measured, RoundRow, quantile
from server_ext.replay.keys import limit
from server_ext.replay.trace import Group, Trace, spans

__all__ = ["Ledger", "Outcome", "Row"]


@dataclass(slots=True)
class _Request:
    group: Group
    index: int
    hit: int
    at: int
    first: float


@dataclass(slots=True)
class Row:
    """One group, from offer to last branch.

    Attributes:
        name: the group's.
        offered: offered arrival.
        sent: when the engine received it, between two rounds.
        first: first selection of any of its branches.
        last_first: first selection of the last branch to be selected.
        done: when its last branch ended.
    """

    name: str
    offered: float
    sent: float
    first: float | None = None
    last_first: float | None = None
    done: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm over one trace.

    Attributes:
        figures: what depends on trace, card and arm alone.
        measured: time of the replay itself.
        latencies: client latency of each group, in order of completion.
        rounds: the rounds that were kept in full.
    """

    figures: Figures
    measured: Measured
    latencies: tuple[float, ...]
    rounds: tuple[RoundRow, ...] = ()


@dataclass(slots=True)
class Ledger:
    """Notes of a run, in order.

    Attributes:
        keep_rounds: rounds to keep in full.
        rows: maximum requests of a round (its slots).
        budget: maximum tokens of a round.
    """

    keep_rounds: int = 0
    rows: int = 1
    budget: int = 1
    _rows: dict[str, Row] = field(default_factory=dict)
    _done: list[Row] = field(default_factory=list)
    _requests: dict[str, _Request] = field(default_factory=dict)
    _marks: dict[tuple[str, str], int] = field(default_factory=dict)
    _kept: list[RoundRow] = field(default_factory=list)
    _rejected: int = 0
    _rounds: int = 0
    _row_steps: int = 0
    _tokens: int = 0
    _overlap: int = 0
    _ended: Counter[str] = field(default_factory=Counter)
    _bubbles: Counter[str] = field(default_factory=Counter)
    _unused: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _blocked: int = 0
    _admitted: int = 0
    _prompt_tokens: int = 0
    _hit_tokens: int = 0
    _residuals: list[_Request] = field(default_factory=list)

    # -- notes ---------------------------------------------------------------------

    def rejected(self) -> None:
        """A group does not fit the model; it is counted and not sent."""
        self._rejected += 1

    def arrived(self, group: Group, *, offered: float, sent: float) -> None:
        """The engine received the group."""
        self._rows[group.name] = Row(group.name, offered, sent)

    def admitted(
        self, name: str, group: Group, index: int, *, hit: int, now: float
    ) -> None:
        """A request is selected for the first time, resuming after `hit` tokens."""
        self._requests[name] = _Request(group, index, hit, hit, now)
        self._residuals.append(self._requests[name])
        self._admitted += 1
        self._prompt_tokens += group.context_tokens + group.branches[index]
        self._hit_tokens += hit
        row = self._rows[group.name]
        if row.first is None:
            row.first = now
        row.last_first = now

    def computed(self, name: str, tokens: int) -> int:
        """A request computes `tokens` more; the position that it continues from."""
        request = self._requests[name]
        start, end = request.at, request.at + tokens
        request.at = end
        self._overlap += self._seen(request.group, start, end)
        return start

    def _seen(self, group: Group, start: int, end: int) -> int:
        """Tokens of the shared context that had been computed before."""
        again = 0
        for path, low, high in spans(group.segments):
            first, last = max(start, low), min(end, high)
            if first >= last:
                continue
            key = (group.salt, path)
            mark = self._marks.get(key, low)
            again += max(0, min(last, mark) - first)
            self._marks[key] = max(mark, last)
        return again

    def round(self, row: RoundRow) -> None:
        """A round was dispatched."""
        self._rounds += 1
        self._row_steps += len(row.rows)
        tokens = sum(row.rows.values())
        self._tokens += tokens
        self._blocked += len(row.blocked)
        if row.ended is not None:
            used = max(len(row.rows) / self.rows, tokens / self.budget)
            self._ended[row.ended] += 1
            self._bubbles[row.ended] += row.bubble
            self._unused[row.ended] += 1 - used
        if len(self._kept) < self.keep_rounds:
            self._kept.append(row)

    def finished(self, name: str) -> None:
        """A request ended."""
        del self._requests[name]

    def group_finished(self, group: Group, *, now: float) -> None:
        """The group's last branch ended."""
        row = self._rows.pop(group.name)
        row.done = now
        self._done.append(row)

    # -- figures -------------------------------------------------------------------

    def outcome(
        self,
        *,
        trace: Trace,
        card: Card,
        counters: Mapping[str, int],
        makespan: float,
        device: Device,
        wall_seconds: float,
        asynchronous: bool,
    ) -> Outcome:
        """Close the ledger."""
        latencies = tuple(row.done - row.offered for row in self._done if row.done)
        waits = [row.first - row.sent for row in self._done if row.first is not None]
        rests = [
            row.done - row.first
            for row in self._done
            if row.first is not None and row.done is not None
        ]
        late = [row.sent - row.offered for row in self._done]
        rows_bound = -(-self._admitted // card.rows)
        token_bound = -(-self._tokens // card.token_budget)
        fitting = [g for g in trace.groups if g.longest <= card.max_model_len]
        figures = Figures(
            trace=trace.name,
            engine="asynchronous" if asynchronous else "synchronous",
            groups=len(trace.groups),
            completed=len(self._done),
            rejected=self._rejected,
            latency_mean=_mean(latencies),
            latency_p50=quantile(latencies, 0.50),
            latency_p95=quantile(latencies, 0.95),
            latency_p99=quantile(latencies, 0.99),
            latency_max=max(latencies, default=None),
            wait_mean=_mean(waits),
            rest_mean=_mean(rests),
            late_mean=_mean(late),
            late_max=max(late, default=None),
            rounds=self._rounds,
            bound=max(rows_bound, token_bound),
            packed=_packed(
                [request.at - request.hit for request in self._residuals],
                rows=card.rows,
                tokens=card.token_budget,
            ),
            row_steps=self._row_steps,
            tokens=self._tokens,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            overlap_tokens=self._overlap,
            limit=limit(fitting),
            blocked_visits=self._blocked,
            recovered_rows=counters["recovered_rows"],
            lookups=counters["lookups"],
            deferred=counters["deferred"],
            overtakes=counters["overtakes"],
            makespan=makespan,
            busy=device.busy,
            idle=device.idle_between,
            ends={
                cause: End(count, self._bubbles[cause], self._unused[cause])
                for cause, count in self._ended.items()
            },
        )
        host = counters["host_us"] / self._rounds if self._rounds else 0.0
        return Outcome(
            figures, Measured(wall_seconds, host), latencies, tuple(self._kept)
        )


def _packed(residuals: Sequence[int], *, rows: int, tokens: int) -> int:
    """Rounds of a packer that knows no dependencies and keeps the order.

    It takes the same requests, each with the tokens that it computed, in order of
    first selection, and fills slots and budget; a request may be cut at any token.
    """
    rounds, row, left = 0, rows, 0
    for residual in residuals:
        todo = residual
        while todo > 0:
            if row >= rows or left == 0:
                rounds, row, left = rounds + 1, 0, tokens
            taken = min(todo, left)
            todo, left, row = todo - taken, left - taken, row + 1
    return rounds


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
