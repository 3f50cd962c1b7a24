"""One arm over one trace: the engine's loop in virtual time.

Arrivals go into the real scheduler, rounds come out, a cost model says how long each
takes.  Nothing here reads a clock of this machine but for `Outcome.host_seconds`, the
one figure that is measured; everything else depends on trace, card and arm alone.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from server_ext.api.group import BRANCHES_IN_FLIGHT, ProducedDocuments
from server_ext.api.tokens import QUESTION_TOKENS_WORTH_A_ROW
from server_ext.hints import STATE_ONLY, VERSION
from server_ext.replay.cards import Card
from server_ext.replay.clock import Clock, Device
from server_ext.replay.ledger import Ledger, Outcome
from server_ext.replay.policies import Arm
from server_ext.replay.rig import Keys, make_request, make_scheduler, model_output
from server_ext.replay.trace import Group, Trace
from server_ext.replay.worker import Cost, attended_pairs

__all__ = ["ReplayError", "replay", "shared_boundary"]

_PAUSE = 0.001
"""An engine that found nothing to run looks again after this long (vLLM's pause)."""
_STUCK = 100_000
"""Turns in a row without work after which an arm counts as hung."""


class ReplayError(RuntimeError):
    """An arm failed: it stays failed, and nothing is put in its place."""


def shared_boundary(group: Group) -> int:
    """Tokens that all branches share, by the rule of our endpoint."""
    repeated = group.question_tokens * (len(group.branches) - 1)
    dear = repeated > QUESTION_TOKENS_WORTH_A_ROW
    return group.context_tokens if dear else group.document_tokens


def replay(
    trace: Trace,
    card: Card,
    arm: Arm,
    *,
    asynchronous: bool = False,
    cost: Cost | None = None,
    keep_rounds: int = 0,
    find_bubbles: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Run one arm over a trace, from an empty cache to an empty queue.

    Args:
        trace: what is sent.
        card: model, GPU and bounds.
        arm: how it is sent and scheduled.
        asynchronous: the engine of time.
        cost: costs to use in place of the card's.
        keep_rounds: keep this many rounds row by row, for the timeline.
        find_bubbles: look for avoidable bubbles (costs host time).
        progress: called with the number of finished groups.

    Raises:
        ReplayError: the scheduler hangs.
    """
    engine = _Engine(
        trace,
        card,
        arm,
        cost=cost or card.cost,
        asynchronous=asynchronous,
        ledger=Ledger(keep_rounds=keep_rounds),
        find_bubbles=find_bubbles and not asynchronous,
        progress=progress,
    )
    with _no_collector():
        return engine.run()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without the cycle collector: it would walk the whole cache again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(slots=True)
class _Sent:
    """A group that is in the engine."""

    group: Group
    waiting: deque[int]
    left: int
    shared: int
    document: bytes


@dataclass
class _Engine:
    trace: Trace
    card: Card
    arm: Arm
    cost: Cost
    asynchronous: bool
    ledger: Ledger
    find_bubbles: bool
    progress: Callable[[int], None] | None

    clock: Clock = field(default_factory=Clock)
    device: Device = field(default_factory=Device)
    _due: list[tuple[float, int, Group]] = field(default_factory=list)
    _sessions: dict[int, deque[Group]] = field(default_factory=dict)
    _open: dict[str, _Sent] = field(default_factory=dict)
    _owner: dict[str, tuple[_Sent, int]] = field(default_factory=dict)
    _flying: deque[tuple[Any, Any, float]] = field(default_factory=deque)
    _order: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.scheduler = make_scheduler(
            self.card, self.arm, asynchronous=self.asynchronous
        )
        self.scheduler.clock = self.clock
        self.scheduler.sleep = self.clock.sleep
        self.unit = self.scheduler.hash_block_size
        self.keys = Keys(self.unit)
        self.documents = ProducedDocuments()
        self.hinted = self.arm.hints and self.card.layout.recurrent > 0
        for group in self.trace.groups:
            if group.longest > self.card.max_model_len:
                self.ledger.rejected(group)
            elif group.session is None:
                self._plan(group.at, group)
            else:
                self._sessions.setdefault(group.session, deque()).append(group)
        for session in self._sessions.values():
            self._plan(0.0, session.popleft())

    def _plan(self, at: float, group: Group) -> None:
        heapq.heappush(self._due, (at, next(self._order), group))

    # -- the loop ------------------------------------------------------------------

    def run(self) -> Outcome:
        began = time.perf_counter()
        idle = 0
        while self._due or self._open or self._flying:
            self._receive()
            if not self.scheduler.has_requests() and not self._flying:
                self.clock.reach(self._due[0][0])
                continue
            worked = self._step()
            idle = 0 if worked else idle + 1
            if idle > _STUCK:
                raise ReplayError(
                    f"{self.arm.name}: nothing ran for {_STUCK} turns, "
                    f"{len(self._open)} groups are open"
                )
        return self.ledger.outcome(
            trace=self.trace,
            card=self.card,
            arm=self.arm,
            counters=self.scheduler.snapshot()["counters"],
            makespan=self.clock.now,
            busy=self.device.busy,
            idle=self.device.idle_between,
            wall_seconds=time.perf_counter() - began,
            asynchronous=self.asynchronous,
        )

    def _step(self) -> bool:
        """One turn; false where nothing could run and a pause was made."""
        dispatched = False
        if self.scheduler.has_requests():
            dispatched = self._dispatch()
            ahead = self.asynchronous and dispatched and len(self._flying) < 2
            if ahead:
                return True
        if self._flying:
            self._process()
            return True
        return dispatched

    def _dispatch(self) -> bool:
        """Plan a round and hand it to the device."""
        planned = self.scheduler.schedule()
        scheduled = planned.num_scheduled_tokens
        if not scheduled:
            self._deliver(
                self.scheduler.update_from_output(
                    planned, model_output(self.scheduler, planned)
                )
            )
            if not self._flying:
                self._pause()
            return False
        self.clock.sleep(self.cost.planning(len(scheduled)))
        pairs = self._note(planned)
        seconds = self.cost.device(
            planned.total_num_scheduled_tokens, len(scheduled), pairs
        )
        start, end = self.device.run(self.clock.now, seconds)
        bubble = self.find_bubbles and self._bubble(planned)
        self.ledger.round(
            start=start,
            end=end,
            scheduled=scheduled,
            blocked=self.scheduler.history[-1].blocked,
            waiting=len(self.scheduler.waiting),
            bubble=bubble,
        )
        self._flying.append((planned, model_output(self.scheduler, planned), end))
        return True

    def _process(self) -> None:
        """Wait for the oldest round and read its output."""
        planned, output, end = self._flying.popleft()
        self.clock.reach(end)
        self._deliver(self.scheduler.update_from_output(planned, output))

    def _pause(self) -> None:
        until = self.clock.now + _PAUSE
        if self._due:
            until = max(self.clock.now, min(until, self._due[0][0]))
        self.clock.reach(until)

    def _note(self, planned: Any) -> int:
        """Tell the ledger who starts where; the pairs that attention visits."""
        for new in planned.scheduled_new_reqs:
            sent, index = self._owner[new.req_id]
            self.ledger.admitted(
                new.req_id,
                sent.group,
                index,
                hit=new.num_computed_tokens,
                now=self.clock.now,
            )
        pairs = 0
        for name, tokens in planned.num_scheduled_tokens.items():
            pairs += attended_pairs(self.ledger.computed(name, tokens), tokens)
        return pairs

    def _deliver(self, outputs: Any) -> None:
        for answers in outputs.values():
            for answer in answers.outputs:
                if answer.finish_reason is not None:
                    self._finished(answer.request_id)

    # -- a group -------------------------------------------------------------------

    def _receive(self) -> None:
        while self._due and self._due[0][0] <= self.clock.now:
            at, _, group = heapq.heappop(self._due)
            self._send(at, group)

    def _send(self, at: float, group: Group) -> None:
        shared = shared_boundary(group)
        sent = _Sent(
            group=group,
            waiting=deque(range(len(group.branches))),
            left=len(group.branches),
            shared=shared,
            document=f"{group.salt}|{group.document}|{shared}".encode(),
        )
        self._open[group.name] = sent
        self.ledger.arrived(group, offered=at, sent=self.clock.now)
        if self.hinted and self._needs_producer(sent):
            self.documents.remember(sent.document)
            self._add(sent, -1, self._segments(group, None, shared), STATE_ONLY)
        window = BRANCHES_IN_FLIGHT if self.hinted else len(sent.waiting)
        for _ in range(min(window, len(sent.waiting))):
            self._add_next(sent)

    def _needs_producer(self, sent: _Sent) -> bool:
        return (
            len(sent.group.branches) > 1
            and sent.shared > self.unit
            and sent.document not in self.documents
        )

    def _add_next(self, sent: _Sent) -> None:
        index = sent.waiting.popleft()
        self._add(sent, index, self._segments(sent.group, index, 0), {})

    @staticmethod
    def _segments(
        group: Group, index: int | None, shared: int
    ) -> tuple[tuple[str, int], ...]:
        document = (group.document, group.document_tokens)
        question = (group.question, group.question_tokens)
        if index is None:
            alone = shared <= group.document_tokens
            return (document,) if alone else (document, question)
        tail = (f"{group.name}#{index}", group.branches[index])
        return (document, question, tail)

    def _add(
        self,
        sent: _Sent,
        index: int,
        segments: tuple[tuple[str, int], ...],
        internal: dict[str, Any],
    ) -> None:
        group = sent.group
        role = "producer" if index < 0 else "consumer"
        name = f"{group.name}#{role if index < 0 else index}"
        extra_args = None
        if self.hinted:
            extra_args = {
                "radixflow_v": VERSION,
                "radixflow_group": group.name.replace("/", "."),
                "radixflow_role": role,
                "radixflow_branches": len(group.branches),
                "radixflow_shared_tokens": sent.shared,
                **internal,
            }
        request = make_request(
            name,
            sum(tokens for _, tokens in segments),
            self.keys.of(group.salt, segments),
            self.unit,
            arrival=self.clock.now,
            extra_args=extra_args,
        )
        self._owner[name] = (sent, index)
        self.scheduler.add_request(request)

    def _finished(self, name: str) -> None:
        sent, index = self._owner.pop(name)
        hit = self.ledger.finished(name, index, now=self.clock.now)
        if index < 0:
            return
        if hit + 2 * self.unit < sent.shared:
            self.documents.forget(sent.document)
        sent.left -= 1
        if sent.waiting:
            self._add_next(sent)
        if not sent.left:
            self._group_finished(sent.group)

    def _group_finished(self, group: Group) -> None:
        del self._open[group.name]
        done = self.ledger.group_finished(group, now=self.clock.now)
        if self.progress is not None:
            self.progress(done)
        if group.session is not None and self._sessions[group.session]:
            self._plan(self.clock.now, self._sessions[group.session].popleft())

    # -- bubbles -------------------------------------------------------------------

    def _bubble(self, planned: Any) -> bool:
        """Whether rows were left although an arrived branch was READY and would fit."""
        scheduler = self.scheduler
        tokens = self.card.token_budget - planned.total_num_scheduled_tokens
        if len(scheduler.running) >= self.card.rows or tokens <= 0:
            return False
        lookups = scheduler.log.counters.lookups
        found = any(
            self._ready(request, tokens) for request in _first(scheduler.waiting)
        )
        scheduler.log.counters.lookups = lookups
        return found

    def _ready(self, request: Any, tokens: int) -> bool:
        scheduler = self.scheduler
        if request.request_id in scheduler._gate or request.num_computed_tokens:
            return False
        hit = scheduler._look_up(request)
        wanted = request.num_tokens - hit[1]
        block = self.card.layout.block_size
        fits = wanted <= tokens or tokens >= block
        return fits and scheduler._is_ready(hit)


_LOOKED_AT = 32
"""Waiting branches that the search for a bubble looks at in a round."""


def _first(waiting: Iterable[Any]) -> Iterator[Any]:
    for index, request in enumerate(waiting):
        if index >= _LOOKED_AT:
            return
        yield request
