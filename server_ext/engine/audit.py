"""Looking back at a round: did it leave a READY branch out although it had room?

Only in debug mode (``RADIXFLOW_DEBUG=1``), since it looks up every branch that waits.
An *avoidable bubble* is a round with rows and tokens to spare that ended its scan
before a READY branch, where nothing else stopped it (arXiv 2610.18143).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

__all__ = ["AvoidableBubbleError", "Scan", "left_out"]


class AvoidableBubbleError(AssertionError):
    """Traversal left a READY branch out; the message names the round and branches."""


@dataclass(slots=True)
class Scan:
    """How a round's scan of the waiting queue went.

    Attributes:
        passed: requests that may run, as far as we can say; one that was not scheduled
            was skipped by the native loop for a reason of its own (such as the number
            of adapters in a round), and the last one may have ended its scan.
        deferred: branches put off because they would have been cut short (+Frag).
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
        rows_left: rows that are still free.
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
