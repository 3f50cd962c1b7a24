"""Audit of a round: why it ended, and whether it left a READY branch out.

An *avoidable bubble* is a round with slots and tokens to spare that left out a READY
branch whose next chunk would have fitted (arXiv 2610.18143).  Debug mode
(``RADIXFLOW_DEBUG=1``) asks `avoidable_bubble`, which knows how the scan went and looks
up every waiting branch.  The replay asks `RoundEnds`, which also works in native order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from server_ext.engine.compat import Hit
from server_ext.engine.scan import Scan

if TYPE_CHECKING:
    from server_ext.engine.scheduler import RadixFlowScheduler

__all__ = ["AvoidableBubbleError", "RoundEnds", "avoidable_bubble", "left_out"]

MAX_VISITS = 32
"""Waiting branches that `RoundEnds` visits to find out why a round ended."""


class AvoidableBubbleError(AssertionError):
    """Traversal left a READY branch out; the message names the round and branches."""


def avoidable_bubble(scheduler: RadixFlowScheduler, output: SchedulerOutput) -> bool:
    """Debug mode: whether a round left a READY branch out though it had room.

    Args:
        scheduler: the scheduler that planned it.
        output: the round.

    Raises:
        AvoidableBubbleError: it did, under a policy with traversal.
    """
    counters, policy = scheduler.log.counters, scheduler.policy_preset
    lookups = counters.lookups
    left = left_out(
        output,
        scheduler.traversal.scan,
        [request for request in scheduler.waiting if _in_sight(scheduler, request)],
        rows_left=scheduler.max_num_running_reqs - len(scheduler.running),
        is_eligible=scheduler.traversal.is_eligible,
    )
    counters.lookups = lookups
    counters.audited += 1
    counters.bubbles += bool(left)
    if left and policy.traversal:
        raise AvoidableBubbleError(
            f"round {counters.rounds} of policy {policy.name} had room "
            f"and left READY branches out: {', '.join(left[:5])}"
        )
    return bool(left)


def _in_sight(scheduler: RadixFlowScheduler, request: Request) -> bool:
    """Whether the round could have had this waiting request, were it READY."""
    return (
        scheduler.pause_state == PauseState.UNPAUSED
        and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        and request.request_id not in scheduler.gate
        and not scheduler.traversal.waits_in_bucket(request)
        and not request.num_computed_tokens
        and scheduler.connector is None
    )


def left_out(
    output: SchedulerOutput,
    scan: Scan,
    waiting: Iterable[Request],
    *,
    rows_left: int,
    is_eligible: Callable[[Request], bool],
) -> list[str]:
    """Ids of the READY requests that the round had room for and did not reach.

    Args:
        output: the round.
        scan: how its scan went.
        waiting: what waits after it, held branches excluded.
        rows_left: free slots.
        is_eligible: whether the policy would let a request run: its state is READY, and
            under +Frag the tokens left do not cut it short.
    """
    full = rows_left <= 0 or scan.tokens_left <= 0
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
        if scheduler.traversal.unseen:
            states.add(False)
            in_bucket = scheduler.traversal.waits_in_bucket
            waiting = (r for r in waiting if not in_bucket(r))
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

        Nothing here may change the plan of the scheduler.
        """
        scheduler, traversal = self._scheduler, self._scheduler.traversal
        if traversal.is_held(request):
            return None, 0
        hit = scheduler.lookups.of(request)
        chunk = traversal.chunk_of(request, hit[1], left)
        if chunk is None:
            chunk = self._native_chunk(request, hit, left)
        return scheduler.lookups.is_ready(hit), chunk

    def _native_chunk(self, request: Any, hit: Hit, left: int) -> int:
        chunk = min(request.num_tokens - hit[1], left)
        if not self._scheduler.need_mamba_block_aligned_split:
            return chunk
        junction = request.shared_prefix_boundary
        request.shared_prefix_boundary = hit[2]
        split = self._scheduler._mamba_block_aligned_split
        chunk = split(request, chunk, hit[1], 0)
        request.shared_prefix_boundary = junction
        return chunk
