"""Audit of a round: why it ended, and whether it left a READY branch out.

An *avoidable bubble* is a round with slots and tokens to spare that left out a READY
branch whose next chunk would have fitted (arXiv 2610.18143).  Debug mode
(``RADIXFLOW_DEBUG=1``) asks `left_out`, which knows how the scan went and looks up
every waiting branch.  The replay asks `RoundEnds`, which also works in native order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from server_ext.engine.queue import PrefixQueue

if TYPE_CHECKING:
    from server_ext.engine.scheduler import RadixFlowScheduler

__all__ = ["AvoidableBubbleError", "RoundEnds", "Scan", "left_out"]

MAX_VISITS = 32
"""Waiting branches that `RoundEnds` visits to find out why a round ended."""


class AvoidableBubbleError(AssertionError):
    """Traversal left a READY branch out; the message names the round and branches."""


@dataclass(slots=True)
class Scan:
    """How a round's scan of the waiting queue went.

    Attributes:
        passed: requests that may run, as far as we can say; one that was not scheduled
            was skipped by the native loop for a reason of its own (such as the number
            of adapters in a round), and the last one may have ended its scan.
        deferred: branches deferred because they would have been cut short (+Frag).
        crowded: requests left for the next round since the cache is crowded.
        cut: the scan ended at the scan limit.
    """

    passed: list[str] = field(default_factory=list)
    deferred: int = 0
    crowded: set[str] = field(default_factory=set)
    cut: bool = False


def left_out(
    output: SchedulerOutput,
    scan: Scan,
    waiting: Iterable[Request],
    *,
    rows_left: int,
    tokens_left: int,
    is_eligible: Callable[[Request], bool],
) -> list[str]:
    """Ids of the READY requests that the round had room for and did not reach.

    Args:
        output: the round.
        scan: how its scan went.
        waiting: what waits after it, held branches excluded.
        rows_left: free slots.
        tokens_left: tokens of the budget that are left.
        is_eligible: whether the policy would let a request run: its state is READY, and
            under +Frag the tokens left do not cut it short.
    """
    full = rows_left <= 0 or tokens_left <= 0
    stopped = scan.passed and scan.passed[-1] not in output.num_scheduled_tokens
    if full or stopped or scan.cut or output.preempted_req_ids:
        return []
    return [
        request.request_id
        for request in waiting
        if request.request_id not in scan.passed
        and request.request_id not in scan.crowded
        and is_eligible(request)
    ]


class RoundEnds:
    """Finds out after each round why it ended, without changing the scheduler's plan.

    Args:
        scheduler: the scheduler, with the synchronous engine.
    """

    def __init__(self, scheduler: RadixFlowScheduler) -> None:
        self._scheduler = scheduler
        self._refused: str | None = None
        manager = scheduler.kv_cache_manager
        native = manager.allocate_slots

        def allocate_slots(request: Any, *args: Any, **options: Any) -> Any:
            blocks = native(request, *args, **options)
            self._refused = request.request_id if blocks is None else None
            return blocks

        manager.allocate_slots = allocate_slots

    def of(self, planned: SchedulerOutput) -> tuple[str, bool]:
        """A cause (see the replay's `CAUSES`), and whether the round left a bubble.

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
        cause, states, bubble = None, set[bool | None](), False  # None: held
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
        if name in gate and not gate.is_due(name, scheduler.clock()):
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
