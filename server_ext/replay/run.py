"""One arm over one trace: the engine's loop in virtual time.

Arrivals go into the real scheduler, rounds come out, a cost model says how long each
takes.  Everything depends on trace, card and arm alone but for the figures in
`Outcome.measured`, which are this machine's.
"""

from __future__ import annotations

import gc
import heapq
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from server_ext.api.group import BRANCHES_IN_FLIGHT
from server_ext.engine.audit import RoundEnds
from server_ext.policy.hints import MAX_BOUNDARIES, Hints
from server_ext.replay.cards import Card
from server_ext.replay.clock import Clock, Device
from server_ext.replay.figures import RoundRow
from server_ext.replay.keys import Keys
from server_ext.replay.ledger import Ledger, Outcome
from server_ext.replay.loop import EngineLoop
from server_ext.replay.policies import Arm
from server_ext.replay.rig import make_request, make_scheduler, model_output, wire
from server_ext.replay.trace import Group, Trace
from server_ext.replay.worker import Cost, attended_pairs

__all__ = ["Engine", "ReplayError", "replay"]

_PAUSE = 0.001
"""An engine that found nothing to run pauses this long, as vLLM does."""
_STUCK = 100_000
"""Consecutive steps without work after which an arm counts as stuck."""


class ReplayError(RuntimeError):
    """An arm failed: it stays failed, and nothing is put in its place."""


def replay(
    trace: Trace,
    card: Card,
    arm: Arm,
    *,
    asynchronous: bool = False,
    cost: Cost | None = None,
    keep_rounds: int = 0,
    record_ends: bool = True,
) -> Outcome:
    """Run one arm over a trace, from an empty cache to an empty queue.

    Args:
        trace: what is sent.
        card: model, GPU and bounds.
        arm: how it is sent and scheduled.
        asynchronous: the engine of time.
        cost: costs to use in place of the card's.
        keep_rounds: keep this many rounds in full, for the timeline.
        record_ends: record what ended each round, and avoidable bubbles (costs host
            time; the synchronous engine only).

    Raises:
        ReplayError: the scheduler hangs.
    """
    engine = Engine(
        trace,
        card,
        arm,
        cost=cost or card.cost,
        asynchronous=asynchronous,
        ledger=Ledger(keep_rounds, rows=card.rows, budget=card.token_budget),
        record_ends=record_ends,
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


@dataclass
class Engine:
    """The engine's loop over one trace; `replay` is what makes and runs one."""

    trace: Trace
    card: Card
    arm: Arm
    cost: Cost
    asynchronous: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    record_ends: bool = False

    clock: Clock = field(default_factory=Clock)
    device: Device = field(default_factory=Device)
    _due: list[tuple[float, int, Group]] = field(default_factory=list)
    _sessions: dict[int, deque[Group]] = field(default_factory=dict)
    _open: dict[str, _Sent] = field(default_factory=dict)
    _owner: dict[str, tuple[_Sent, int]] = field(default_factory=dict)
    _round_ends: deque[float] = field(default_factory=deque)
    _order: Iterator[int] = field(default_factory=count)
    _pauses: int = 0

    def __post_init__(self) -> None:
        self.scheduler = make_scheduler(
            self.card, self.arm, asynchronous=self.asynchronous
        )
        self.scheduler.clock = self.clock
        self.scheduler.sleep = self.clock.sleep
        self.loop = EngineLoop(
            self.scheduler,
            self._execute,
            asynchronous=self.asynchronous,
            before=self._wait_for_device,
            after=self._deliver,
        )
        watched = self.record_ends and not self.asynchronous
        self.ends = RoundEnds(self.scheduler) if watched else None
        self.unit = self.scheduler.hash_block_size
        self.keys = Keys(self.unit)
        self.hinted = self.arm.hints and self.card.layout.recurrent > 0
        for group in self.trace.groups:
            if group.longest > self.card.max_model_len:
                self.ledger.rejected()
            elif group.session is None:
                self._plan(group.at, group)
            else:
                self._sessions.setdefault(group.session, deque()).append(group)
        for session in self._sessions.values():
            self._next_of(session)

    def _next_of(self, session: deque[Group]) -> None:
        if session:
            group = session.popleft()
            self._plan(max(self.clock.now, group.at), group)

    def _plan(self, at: float, group: Group) -> None:
        heapq.heappush(self._due, (at, next(self._order), group))

    # -- the loop ------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run until nothing is left; the ledger's figures."""
        began = time.perf_counter()
        while self._due or self._open or self.loop.in_flight:
            self._receive()
            if self.loop.busy:
                self.loop.step()
            else:
                self.clock.reach(self._due[0][0])
        return self.ledger.outcome(
            trace=self.trace,
            card=self.card,
            counters=self.scheduler.snapshot()["counters"],
            makespan=self.clock.now,
            device=self.device,
            wall_seconds=time.perf_counter() - began,
            asynchronous=self.asynchronous,
        )

    def _execute(self, planned: SchedulerOutput) -> ModelRunnerOutput:
        """Hand a round to the device."""
        scheduled = planned.num_scheduled_tokens
        end = self.clock.now
        if scheduled:
            self.clock.sleep(self.cost.planning(len(scheduled)))
            pairs = self._note(planned)
            seconds = self.cost.device(
                planned.total_num_scheduled_tokens, len(scheduled), pairs
            )
            start, end = self.device.run(self.clock.now, seconds)
            ended, bubble = self.ends.of(planned) if self.ends else (None, False)
            self.ledger.round(
                RoundRow(
                    start=start,
                    end=end,
                    rows=dict(scheduled),
                    blocked=self.scheduler.history[-1].blocked,
                    waiting=len(self.scheduler.waiting),
                    ended=ended,
                    bubble=bubble,
                )
            )
        self._round_ends.append(end)
        return model_output(self.scheduler, planned)

    def _wait_for_device(self) -> None:
        self.clock.reach(self._round_ends.popleft())

    def _deliver(self, planned: SchedulerOutput, outputs: Any) -> None:
        for answers in outputs.values():
            for answer in answers.outputs:
                if answer.finish_reason is not None:
                    self._finished(answer.request_id)
        if planned.num_scheduled_tokens:
            self._pauses = 0
        elif not any(other.num_scheduled_tokens for other, _ in self.loop.in_flight):
            self._pause()

    def _pause(self) -> None:
        self._pauses += 1
        if self._pauses > _STUCK:
            raise ReplayError(
                f"{self.arm.name}: nothing ran for {_STUCK} turns, "
                f"{len(self._open)} groups are open"
            )
        until = self.clock.now + _PAUSE
        if self._due:
            until = max(self.clock.now, min(until, self._due[0][0]))
        self.clock.reach(until)

    def _note(self, planned: Any) -> int:
        """Record who starts where; the pairs that attention visits."""
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

    # -- a group -------------------------------------------------------------------

    def _receive(self) -> None:
        while self._due and self._due[0][0] <= self.clock.now:
            at, _, group = heapq.heappop(self._due)
            self._send(at, group)

    def _send(self, at: float, group: Group) -> None:
        branches = deque(range(len(group.branches)))
        sent = _Sent(group, waiting=branches, left=len(branches))
        self._open[group.name] = sent
        self.ledger.arrived(group, offered=at, sent=self.clock.now)
        window = BRANCHES_IN_FLIGHT if self.hinted else len(branches)
        for _ in range(min(window, len(branches))):
            self._add_next(sent)

    def _add_next(self, sent: _Sent) -> None:
        group, index = sent.group, sent.waiting.popleft()
        name, prompt = f"{group.name}#{index}", group.prompt(index)
        hints = None
        if self.hinted:
            hints = Hints(
                group=re.sub(r"[^A-Za-z0-9._:-]", ".", group.name),
                role="consumer",
                branches=len(group.branches),
                boundaries=group.boundaries[-MAX_BOUNDARIES:],
            )
        self._owner[name] = (sent, index)
        self.scheduler.add_request(
            make_request(
                name,
                sum(tokens for _, tokens in prompt),
                self.keys.of(group.salt, prompt),
                self.unit,
                arrival=self.clock.now,
                extra_args=None if hints is None else wire(hints),
            )
        )

    def _finished(self, name: str) -> None:
        sent, _ = self._owner.pop(name)
        self.ledger.finished(name)
        sent.left -= 1
        if sent.waiting:
            self._add_next(sent)
        if not sent.left:
            self._group_finished(sent.group)

    def _group_finished(self, group: Group) -> None:
        del self._open[group.name]
        self.ledger.group_finished(group, now=self.clock.now)
        if group.session is not None:
            self._next_of(self._sessions[group.session])
