"""Which waiting requests may run in a round; vLLM's loop skips the others and goes on.

A branch is left out while its recurrent state is BLOCKED, while it waits for a shared
prefix that another request computes, where the budget left would cut it short, and
where a crowded cache has no room for its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from server_ext.engine.chunking import FragmentDeferral
from server_ext.engine.compat import Hit
from server_ext.engine.lookup import Lookups
from server_ext.engine.pins import Pins
from server_ext.engine.planner import StopPlanner
from server_ext.engine.queue import PrefixQueue
from server_ext.engine.scan import Scan
from server_ext.policy.admission import Gate
from server_ext.policy.config import Policy
from server_ext.policy.counters import RoundLog

if TYPE_CHECKING:
    from server_ext.engine.scheduler import RadixFlowScheduler

__all__ = ["Traversal", "make_traversal"]


class Traversal:
    """The questions that a policy asks of each waiting request.

    Args:
        policy: what to ask.
        clock: seconds of the scheduler's clock.
        gate: requests that are held.
        waiting: the scheduler's queue.
        planner: plans for chunks and checkpoints, None where the native ones stay.
        pins: checkpoints kept from eviction.
        lookups: what the prefix cache holds.
        deferral: +Frag.
        log: counts, and who was BLOCKED.
        round_tokens: the budget of a round.
        connected: a KV connector decides what is resumed: every request may run.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Callable[[], float],
        *,
        gate: Gate,
        waiting: RequestQueue,
        planner: StopPlanner | None,
        pins: Pins,
        lookups: Lookups,
        deferral: FragmentDeferral,
        log: RoundLog,
        round_tokens: int,
        connected: bool,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._gate = gate
        self._queue = waiting if isinstance(waiting, PrefixQueue) else None
        self._planner = planner
        self._pins = pins
        self._lookups = lookups
        self._deferral = deferral
        self._log = log
        self._round_tokens = round_tokens
        self._connected = connected
        self.scan = Scan(round_tokens)

    def new_round(self) -> None:
        """Nothing found out in one round holds in the next."""
        self.scan = Scan(self._round_tokens)
        self._lookups.new_round()
        if self._planner is not None:
            self._planner.new_round()

    def allocated(self, request: Request, tokens: int, hit: int, *, new: bool) -> None:
        """vLLM has taken a request into the round.

        Args:
            request: the request.
            tokens: tokens of its chunk.
            hit: tokens that it resumes behind.
            new: whether it was waiting.
        """
        self.scan.tokens_left -= tokens
        if new:
            self.scan.admitted = True
            if self._planner is not None:
                self._planner.admitted(request, hit)

    def visit(self, request: Request, running: int) -> bool:
        """Whether a request may run beside `running` others; bounds the scan."""
        if self._may_run(request, running):
            self.scan.passed.append(request.request_id)
            return True
        visits = self._log.blocked_in_round + self.scan.deferred
        if visits >= self._policy.scan_limit:
            self.scan.cut = True
            self._log.counters.scans_cut += 1
            if self._queue is not None:
                self._queue.closed = True
        return False

    def is_eligible(self, request: Request) -> bool:
        """The same for the audit, without a trace in counters, plans or pins."""
        hit = self._lookups.of(request)
        if not self._lookups.is_ready(hit):
            return False
        planner = self._planner
        if planner is not None and planner.plans(request):
            if planner.blocking_point(request.request_id) is not None:
                return False
            # A deferred request keeps the chunk that it was deferred for, even where a
            # new point has shortened it since.
            needs = planner.known_needs(request) or planner.start(request, hit[1])
            return needs is not None and not self._deferral.cuts(self.scan, needs)
        return not self._policy.frag or not self._deferral.cuts_natively(
            self.scan, request, hit[1]
        )

    def chunk_of(self, request: Request, hit: int, tokens: int) -> int | None:
        """The chunk that a planned request gets of `tokens`; None: vLLM's rule holds.

        A planned chunk may end anywhere, but fragment deferral keeps it whole.
        """
        if self._planner is None or not self._planner.plans(request):
            return None
        wanted = request.num_tokens - hit
        return min(wanted, tokens) if wanted <= tokens or not self._policy.frag else 0

    def waits_in_bucket(self, request: Request) -> bool:
        """Whether a request waits, unseen by vLLM, for a shared prefix."""
        return self._queue is not None and self._queue.is_blocked(request)

    def is_held(self, request: Request) -> bool:
        """Whether the gate holds a request whose time has not come."""
        name = request.request_id
        return name in self._gate and not self._gate.is_due(name, self._clock())

    @property
    def unseen(self) -> int:
        """Requests that wait, unseen by vLLM, for a shared prefix."""
        return 0 if self._queue is None else self._queue.blocked

    # -- the questions, cheapest first -----------------------------------------------

    def _may_run(self, request: Request, running: int) -> bool:
        if request.num_computed_tokens or self._connected:
            return True
        if request.request_id in self._gate:
            return self._gate.expired(request.request_id, self._clock())
        policy = self._policy
        if not self._lookups.recurrent or not (policy.traversal or policy.frag):
            return True
        if self._waits_at_a_point(request) or self._is_deferred_again(request):
            return False
        hit = self._lookups.of(request)
        if policy.traversal and not self._lookups.is_ready(hit):
            self._log.blocked(request.request_id, running)
            return False
        planner = self._planner
        if planner is not None and planner.plans(request):
            if not self._starts(planner, request, hit, running):
                return False
        elif self._deferral.defers(
            self.scan,
            is_cut=self._deferral.cuts_natively(self.scan, request, hit[1]),
        ):
            return False
        self._lookups.keep(request, hit)
        return True

    def _waits_at_a_point(self, request: Request) -> bool:
        """Under priority scheduling the queue is vLLM's, and shows every request."""
        if self._planner is None or self._queue is not None:
            return False
        return self._planner.blocking_point(request.request_id) is not None

    def _is_deferred_again(self, request: Request) -> bool:
        """Whether a request that was deferred would be cut short once more."""
        planner = self._planner
        if planner is None or not planner.plans(request):
            return False
        needs = planner.known_needs(request)
        return needs is not None and self._deferral.defers(
            self.scan, is_cut=self._deferral.cuts(self.scan, needs)
        )

    def _starts(
        self, planner: StopPlanner, request: Request, hit: Hit, running: int
    ) -> bool:
        """Whether a planned request begins its first chunk now."""
        needs = planner.start(request, hit[1])
        if needs is None:
            return False
        if (point := planner.point_of(request, hit[1])) is not None:
            self._pins.pin(point, hit[0].blocks)
        # Where nothing else runs nobody gives way, so that nobody waits for ever.
        if (self.scan.admitted or running) and self._queue is not None:
            crowded = planner.leads(request) and planner.is_crowded(
                point, self._queue.open_points
            )
            if crowded and planner.gives_way(request):
                self.scan.deferred += 1
                self.scan.crowded.add(request.request_id)
                return False
        if self._deferral.defers(
            self.scan, is_cut=self._deferral.cuts(self.scan, needs)
        ):
            planner.deferred(request, needs)
            return False
        return True


def make_traversal(
    scheduler: RadixFlowScheduler,
    planner: StopPlanner | None,
    pins: Pins,
    native_split: Callable[[Request, int, int], int] | None,
) -> Traversal:
    """The questions of the scheduler's policy.

    Args:
        scheduler: whose queue, gate, log and budget count.
        planner: its planner.
        pins: its pins.
        native_split: vLLM's rule where a chunk ends, None where it has none.
    """

    def now() -> float:  # asked anew each time: a replay sets the clock
        return scheduler.clock()

    policy, tokens = scheduler.policy_preset, scheduler.max_num_scheduled_tokens
    counters = scheduler.log.counters
    return Traversal(
        policy,
        now,
        gate=scheduler.gate,
        waiting=scheduler.waiting,
        planner=planner,
        pins=pins,
        lookups=scheduler.lookups,
        deferral=FragmentDeferral(policy, tokens, native_split, counters),
        log=scheduler.log,
        round_tokens=tokens,
        connected=scheduler.connector is not None,
    )
