"""Why a round ended, and whether it left an avoidable bubble.

An avoidable bubble is a round with rows and tokens to spare that left out an arrived
branch that is READY and whose next chunk would have fitted (arXiv 2610.18143).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from server_ext.engine.queue import PrefixQueue
from server_ext.engine.scheduler import RadixFlowScheduler
from server_ext.replay.clock import Clock

__all__ = ["RoundEnds"]

MAX_VISITS = 32
"""Waiting branches that are visited to find out why a round ended."""


class RoundEnds:
    """Looks at a scheduler after each round it planned, and changes nothing there.

    Args:
        scheduler: the scheduler.
        clock: its clock.
    """

    def __init__(self, scheduler: RadixFlowScheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._refused: str | None = None
        manager = scheduler.kv_cache_manager
        native = manager.allocate_slots

        def allocate_slots(request: Any, *args: Any, **options: Any) -> Any:
            blocks = native(request, *args, **options)
            self._refused = request.request_id if blocks is None else None
            return blocks

        manager.allocate_slots = allocate_slots

    def of(self, planned: SchedulerOutput) -> tuple[str, bool]:
        """One of `CAUSES`, and whether the round left a bubble.

        Where memory ran out, whether the branch would have fitted there too is not
        known; it is counted, under its cause.
        """
        scheduler = self._scheduler
        refused, self._refused = self._refused, None
        left = scheduler.max_num_scheduled_tokens - planned.total_num_scheduled_tokens
        if len(scheduler.running) >= scheduler.max_num_running_reqs:
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
        for request in islice(waiting, MAX_VISITS):
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
        scheduler, name = self._scheduler, request.request_id
        gate = scheduler._gate
        if name in gate and not gate._due(gate._held[name].at, self._clock.now):
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
