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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from server_ext.api.group import BRANCHES_IN_FLIGHT
from server_ext.engine.queue import PrefixQueue
from server_ext.hints import MAX_BOUNDARIES, Hints
from server_ext.replay.cards import Card
from server_ext.replay.clock import Clock, Device
from server_ext.replay.keys import Keys
from server_ext.replay.ledger import Ledger, Outcome
from server_ext.replay.policies import Arm
from server_ext.replay.rig import make_request, make_scheduler, model_output, wire
from server_ext.replay.trace import Group, Trace
from server_ext.replay.worker import Cost, attended_pairs

__all__ = ["Engine", "ReplayError", "replay"]

_PAUSE = 0.001
"""An engine that found nothing to run looks again after this long (vLLM's pause)."""
_STUCK = 100_000
"""Turns in a row without work after which an arm counts as hung."""


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
    look_on: bool = True,
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
        look_on: find out what ended each round, and avoidable bubbles (costs host
            time; the synchronous engine only).
        progress: called with the number of finished groups.

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
        look_on=look_on and not asynchronous,
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


@dataclass
class Engine:
    """The engine's loop over one trace; `replay` is what makes and runs one."""

    trace: Trace
    card: Card
    arm: Arm
    cost: Cost
    asynchronous: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    look_on: bool = False
    progress: Callable[[int], None] | None = None

    clock: Clock = field(default_factory=Clock)
    device: Device = field(default_factory=Device)
    _due: list[tuple[float, int, Group]] = field(default_factory=list)
    _sessions: dict[int, deque[Group]] = field(default_factory=dict)
    _open: dict[str, _Sent] = field(default_factory=dict)
    _owner: dict[str, tuple[_Sent, int]] = field(default_factory=dict)
    _flying: deque[tuple[Any, Any, float]] = field(default_factory=deque)
    _order: Iterator[int] = field(default_factory=count)
    _refused: str | None = None

    def __post_init__(self) -> None:
        self.scheduler = make_scheduler(
            self.card, self.arm, asynchronous=self.asynchronous
        )
        self.scheduler.clock = self.clock
        self.scheduler.sleep = self.clock.sleep
        if self.look_on:
            self._watch_allocation()
        self.unit = self.scheduler.hash_block_size
        self.keys = Keys(self.unit)
        self.hinted = self.arm.hints and self.card.layout.recurrent > 0
        for group in self.trace.groups:
            if group.longest > self.card.max_model_len:
                self.ledger.rejected(group)
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
        ended, bubble = self._ended(planned) if self.look_on else (None, False)
        self.ledger.round(
            start=start,
            end=end,
            scheduled=scheduled,
            blocked=self.scheduler.history[-1].blocked,
            waiting=len(self.scheduler.waiting),
            ended=ended,
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
        done = self.ledger.group_finished(group, now=self.clock.now)
        if self.progress is not None:
            self.progress(done)
        if group.session is not None:
            self._next_of(self._sessions[group.session])

    # -- why a round ended -----------------------------------------------------------

    def _ended(self, planned: Any) -> tuple[str, bool]:
        """What ended the scan of a planned round, and whether it left a bubble.

        A bubble: rows and tokens are left, and an arrived branch is READY whose next
        chunk the tokens left would hold.  Where memory ran out, whether it would have
        fitted there too is not known; it is counted, under its cause.
        """
        scheduler = self.scheduler
        refused, self._refused = self._refused, None
        left = self.card.token_budget - planned.total_num_scheduled_tokens
        if len(scheduler.running) >= self.card.rows:
            return "rows", False
        if left <= 0:
            return "tokens", False
        if not len(scheduler.waiting):
            return "queue", False
        known = set(scheduler.history[-1].blocked)
        lookups = scheduler.log.counters.lookups
        cause, states, bubble = None, set[bool | None](), False
        waiting: Iterable[Any] = scheduler.waiting
        if isinstance(scheduler.waiting, PrefixQueue) and scheduler.waiting.blocked:
            states.add(False)
            waiting = (r for r in waiting if not scheduler._waits_in_bucket(r))
        for request in islice(waiting, _LOOKED_AT):
            name = request.request_id
            ready, chunk = (False, 0) if name in known else self._state(request, left)
            if name == refused:
                cause = "memory" if ready else "blocked"
            states.add(ready)
            bubble = bubble or bool(ready and chunk)
            if bubble and (cause or refused is None):
                break
        scheduler.log.counters.lookups = lookups
        if cause is None:
            blocked = "blocked" if False in states else "held"
            cause = "chunk" if True in states else blocked
        return cause, bubble

    def _state(self, request: Any, left: int) -> tuple[bool | None, int]:
        """Whether a waiting branch is READY (None: held), and its chunk of `left`.

        Nothing here may change the plan of the scheduler.  A planned chunk may end
        anywhere, but fragment deferral keeps it whole.
        """
        scheduler, name = self.scheduler, request.request_id
        gate = scheduler._gate
        if name in gate and not gate._due(gate._held[name].at, self.clock.now):
            return None, 0
        hit = scheduler._look_up(request)
        wanted = request.num_tokens - hit[1]
        chunk = min(wanted, left)
        planner = scheduler._planner
        if planner is not None and planner.plans(request):
            whole = chunk == wanted or not scheduler.policy_preset.frag
            return scheduler._is_ready(hit), chunk if whole else 0
        junction = request.shared_prefix_boundary
        request.shared_prefix_boundary = hit[2]
        if scheduler.need_mamba_block_aligned_split:
            chunk = scheduler._mamba_block_aligned_split(request, chunk, hit[1], 0)
        request.shared_prefix_boundary = junction
        return scheduler._is_ready(hit), chunk

    def _watch_allocation(self) -> None:
        """Note the last request of a round that was refused blocks."""
        manager = self.scheduler.kv_cache_manager
        native = manager.allocate_slots

        def allocate_slots(request: Any, *args: Any, **options: Any) -> Any:
            blocks = native(request, *args, **options)
            self._refused = request.request_id if blocks is None else None
            return blocks

        manager.allocate_slots = allocate_slots


_LOOKED_AT = 32
"""Waiting branches that are looked at to find out why a round ended."""
