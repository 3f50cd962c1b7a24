"""The RadixFlow scheduler: vLLM's own, with a say in who is visited.

A thin conductor on ``AsyncScheduler`` (with ``async_scheduling`` off it behaves as the
plain scheduler).  It never copies ``schedule()``: it overrides hooks, calls
``super()`` first, and under the ``radix`` policy adds nothing but its notes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from server_ext.engine import block_copy, compat
from server_ext.engine.audit import AvoidableBubbleError, Scan, left_out
from server_ext.engine.pins import Pins
from server_ext.engine.planner import StopPlanner
from server_ext.engine.publication import (
    PlannedStops,
    is_decoding,
    publish_planned_stops,
)
from server_ext.engine.queue import PrefixQueue
from server_ext.engine.scheduler_name import REFUSAL_FILE
from server_ext.policy.admission import Gate, Room
from server_ext.policy.arrivals import Arrival, Arrivals, packed
from server_ext.policy.config import (
    POLICIES,
    ConfigurationError,
    Policy,
    policy_from_config,
    policy_named,
)
from server_ext.policy.counters import Round, RoundLog
from server_ext.policy.hints import IGNORED, Hints, read_hints
from server_ext.policy.readiness import CommitFence, Readiness, classify
from server_ext.policy.tree import Point, PrefixTree

__all__ = ["RadixFlowScheduler"]

logger = init_logger("vllm.radixflow")

HISTORY = 512
"""Rounds kept for the trace and the live page."""
PAGE_ROWS = 2048
"""Rows after which a page of rounds ends."""
DEBUG = "RADIXFLOW_DEBUG"
"""Environment variable: 1 audits every round for an avoidable bubble."""
CROWDED = 0.15
"""Share of the pool that checkpoints in use may take before others are computed."""
SHORT_WAIT = 0.002
"""An idle engine turns about every this many seconds (vLLM's pause, and its work)."""


class RadixFlowScheduler(AsyncScheduler):
    """Traversal, admission and hints on the native schedule; see `Policy`.

    Raises:
        ConfigurationError: at construction, when the version or the configuration
            could not reuse states; the message is one sentence.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        self._gate = Gate(POLICIES["radix"])
        try:
            self._version = compat.check_version()
            compat.check_configuration(vllm_config, kwargs.get("block_size"))
            super().__init__(vllm_config, *args, **kwargs)
            self._check_block_copy()
            self._recurrent = compat.recurrent_managers(self.kv_cache_manager)
            if self._recurrent:
                compat.check_pool(vllm_config, self.kv_cache_config)
            self._stops = PlannedStops()
            self._pins = Pins(self.kv_cache_manager.block_pool)
            self.adopt(policy_from_config(vllm_config.additional_config))
        except ConfigurationError as refusal:
            _tell_launcher(refusal)
            raise
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.log = RoundLog()
        self.history: deque[Round] = deque(maxlen=HISTORY)
        self.arrivals = Arrivals()
        self._fence = CommitFence()
        self._hints: dict[str, Hints] = {}
        self._lookup: tuple[str, compat.Hit] | None = None
        self._starts_over: set[str] = set()
        self._budget_left = 0
        self._admitted = False
        self._scan = Scan()
        self._looks_back = os.environ.get(DEBUG, "") not in ("", "0")
        self._began = 0.0
        publish_planned_stops(self.kv_cache_manager, self._stops)
        compat.backport_exact_readiness(
            self.kv_cache_manager, lambda: self.policy_preset.readiness == "exact"
        )
        compat.after_allocation(self.kv_cache_manager, self._allocated, self._make_room)

    def _check_block_copy(self) -> None:
        """A hit inside a block is exact only where whole blocks are copied."""
        if self.mamba_partial_cache_hit and not block_copy.copies_whole_blocks():
            raise ConfigurationError(
                "hits inside a block need RadixFlow's general plug-in, which is not "
                "loaded: start with `radixflow serve`, or set VLLM_PLUGINS=radixflow"
            )

    def adopt(self, policy: Policy) -> None:
        """Run by `policy` from now on; the scheduler must be empty."""
        by_priority = self.policy == SchedulingPolicy.PRIORITY
        if by_priority and policy.admission != "none":
            raise ConfigurationError(
                f"policy {policy.name} holds branches in order of arrival, which "
                "--scheduling-policy priority overrules: use fcfs or radixflow+"
            )
        device = compat.device_type(self.vllm_config)
        policy = policy.on(device, compat.weights(self.vllm_config))
        self.policy_preset = policy
        self._gate = self._gate.under(policy)
        self._planner = self._make_planner(policy)
        if policy.native or by_priority:
            self.waiting = create_request_queue(self.policy)
        else:
            tree = None if self._planner is None else self._planner.tree
            self.waiting = PrefixQueue(tree, self._holds)
        self._fenced = policy.fence == "on" or (
            policy.fence == "auto" and compat.needs_fence(self.vllm_config)
        )
        self._doubts = policy.fence != "off" and not policy.native

    def _make_planner(self, policy: Policy) -> StopPlanner | None:
        """A planner where chunks may end anywhere, None where the native ends stay."""
        self._stops.clear()
        if not policy.tree or not self._recurrent:
            return None
        if reason := compat.keeps_native_checkpoints(self.vllm_config):
            logger.warning(
                "RadixFlow: %s keeps vLLM's own checkpoints; prefix trees are off",
                reason,
            )
            return None
        tree = PrefixTree(
            self.hash_block_size,
            block=self.block_size // self.hash_block_size,
            rows=self.max_num_running_reqs,
            row_tokens=policy.row_tokens or 0,
            round_tokens=policy.round_tokens or 0,
        )
        return StopPlanner(tree, self.block_size, self._stops, use_hints=policy.hints)

    # -- the life of a request -------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Read the request's hints, then queue it natively."""
        if request.request_id in self.requests:  # more input for a session
            super().add_request(request)
            return
        params = request.sampling_params
        hints = read_hints(params.extra_args if params is not None else None)
        if isinstance(hints, Hints):
            self._hints[request.request_id] = hints
            self.log.counters.hints += 1
        elif hints is IGNORED:
            self.log.counters.hints_ignored += 1
        self._record(request)
        super().add_request(request)

    def _record(self, request: Request) -> None:
        hints, keys = self._hints.get(request.request_id), packed(request.block_hashes)
        if self._planner is not None:
            rank: tuple[float, ...] = ()
            if self.policy == SchedulingPolicy.PRIORITY:
                rank = (request.priority, request.arrival_time)
            self._planner.arrived(request, keys, hints, rank)
        self.arrivals.add(
            Arrival(
                name=request.request_id,
                after=self.log.counters.rounds,
                at=self.clock(),
                tokens=request.num_prompt_tokens,
                generates=request.max_tokens,
                reads_cache=not request.skip_reading_prefix_cache,
                keys=keys,
                hints=hints,
            )
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One round; natively, between two notes in the round log."""
        self._wait_for_deadline()
        self._began = time.perf_counter()
        self.log.round_starts(self.clock())
        self._open_round()
        output = super().schedule(throttle_prefills)
        if self._fenced:
            self._fence.planned(compat.published_this_round(self._recurrent))
        if self._planner is not None:
            self._planner.round_planned(
                self.requests[name] for name in output.num_scheduled_tokens
            )
        for new in output.scheduled_new_reqs:
            self.log.admitted(len(new.prompt_token_ids or ()), new.num_computed_tokens)
        bubble = None
        if self._looks_back and output.num_scheduled_tokens:
            bubble = self._look_back(output)
        self._note_round(output, bubble)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Keep only the scored rows of a prompt, then update natively.

        The rows of cached tokens were never computed: they are memory as it was found.
        They stop here and never leave the engine.
        """
        if self._fenced:
            self._fence.processed()
        rows = model_runner_output.prompt_logprobs_dict
        for request_id, tensors in rows.items():
            hints = self._hints.get(request_id)
            if hints is not None and hints.trim_rows and tensors is not None:
                rows[request_id] = _rows_from(tensors, max(hints.scored_from - 1, 0))
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Free natively; tell a hinted request's sender its rounds.

        ``kv_transfer_params`` is the one free-form field that travels with a finished
        request; it is used only where no KV connector uses it.
        """
        if self._doubts and request.num_in_flight_tokens:
            compat.forget_unwritten(self.kv_cache_manager, request, in_flight=True)
        kv_params, encoder_params = super()._free_request(request, delay_free_blocks)
        self._gate.drop(request.request_id)
        self._starts_over.discard(request.request_id)
        if self._planner is not None:
            self._planner.finished(request.request_id)
            self._pins.release_unneeded()
        if isinstance(self.waiting, PrefixQueue):
            self.waiting.forget(request.request_id)
        trace = self.log.finished(request.request_id)
        hinted = self._hints.pop(request.request_id, None) is not None
        if hinted and kv_params is None and self.connector is None:
            kv_params = {"radixflow": trace.as_dict()}
        return kv_params, encoder_params

    # -- a round ---------------------------------------------------------------

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Natively, after taking back the keys of blocks that will not be written.

        vLLM publishes a request's blocks when it selects it; thrown out in the same
        round for one of higher priority, it would leave keys of what nobody wrote.
        """
        compat.forget_unwritten(self.kv_cache_manager, request, in_flight=self._doubts)
        if self._planner is not None:
            self._planner.preempted(request)
        if not self.running:  # vLLM has taken it out: it could not go on alone
            self._start_over(request)
        super()._preempt_request(request, *args, **kwargs)

    def _wait_for_deadline(self) -> None:
        """Meet the first deadline of an idle engine to the point."""
        deadline = self._gate.next_deadline()
        if deadline is None or self.running:
            return
        wait = deadline - self.clock()
        if 0 < wait <= SHORT_WAIT:
            self.sleep(wait)

    def _open_round(self) -> None:
        self._lookup = None
        self._budget_left = self.max_num_scheduled_tokens
        self._admitted = False
        self._scan = Scan()
        if self._planner is not None:
            self._planner.new_round()
        if not isinstance(self.waiting, PrefixQueue):
            return
        room = Room(
            running=len(self.running),
            rows=self.max_num_running_reqs,
            tokens=self.max_num_scheduled_tokens,
        )
        self.waiting.admit(self._gate.release(self.clock(), room))
        self.waiting.next_round()

    def _note_round(self, output: SchedulerOutput, bubble: bool | None) -> None:
        running, waiting = self.get_request_counts()
        ended = self.log.round_ends(
            output.num_scheduled_tokens,
            host_us=round((time.perf_counter() - self._began) * 1e6),
            running=running,
            waiting=waiting,
            held=len(self._gate),
            parked=self._blocked_unseen,
            overtakes=self._gate.overtakes,
            bubble=bubble,
        )
        if ended is not None:
            self.history.append(ended)

    def _look_back(self, output: SchedulerOutput) -> bool:
        """Debug mode: whether the round left a READY branch out though it had room.

        Raises:
            AvoidableBubbleError: it did, under a policy with traversal.
        """
        counters = self.log.counters
        lookups = counters.lookups
        left = left_out(
            output,
            self._scan,
            [r for r in self.waiting if self._in_sight(r)],
            rows_left=self.max_num_running_reqs - len(self.running),
            tokens_left=self._budget_left,
            is_eligible=self._is_eligible,
        )
        counters.lookups = lookups
        counters.audited += 1
        counters.bubbles += bool(left)
        if left and self.policy_preset.traversal:
            raise AvoidableBubbleError(
                f"round {counters.rounds} of policy {self.policy_preset.name} had room "
                f"and left READY branches out: {', '.join(left[:5])}"
            )
        return bool(left)

    def _is_eligible(self, request: Request) -> bool:
        """Whether the policy lets a waiting request run beside what the round has."""
        hit = self._look_up(request)
        if not self._is_ready(hit):
            return False
        if self._planner is not None and self._planner.plans(request):
            if self._planner.blocking_point(request.request_id) is not None:
                return False
            # A deferred request keeps the chunk that it was deferred for, even where a
            # new point has shortened it since.
            needs = self._planner.known_needs(request) or (
                self._planner.start(request, hit[1])
            )
            return needs is not None and not self._would_be_cut(needs)
        return not self.policy_preset.frag or not self._native_chunk_is_cut(
            request, hit[1]
        )

    def _in_sight(self, request: Request) -> bool:
        """Whether the round could have had this waiting request, were it READY."""
        return (
            self._pause_state == PauseState.UNPAUSED
            and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            and request.request_id not in self._gate
            and not self._waits_in_bucket(request)
            and not request.num_computed_tokens
            and self.connector is None
        )

    def _waits_in_bucket(self, request: Request) -> bool:
        queue = self.waiting
        return isinstance(queue, PrefixQueue) and queue.is_blocked(request)

    def _allocated(self, request: Request, tokens: int, hit: int) -> None:
        """vLLM has taken a request into the round with `tokens` tokens."""
        self._budget_left -= tokens
        if request.status == RequestStatus.RUNNING:
            return
        self._admitted = True
        if self._planner is not None:
            self._planner.admitted(request, hit)

    def _make_room(self, request: Request) -> bool:
        """Pins give way to a request that runs, and to one that would run alone.

        A waiting request beside others finds blocks when they end.  Nobody else's end
        helps one that is alone, but a hit inside a block, and a checkpoint inside one,
        take a block more than vLLM counts on.
        """
        alone = not self.running
        if not alone and request.status != RequestStatus.RUNNING:
            return False
        released = self._pins.release_all()
        if alone and not released:
            self._start_over(request)
        return released

    def _start_over(self, request: Request) -> None:
        """Compute a request natively and without a hit: no request needs less."""
        self._starts_over.add(request.request_id)
        if self._planner is not None:
            self._planner.finished(request.request_id)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Natively: vLLM resets the cache only where no block is referenced."""
        self._pins.release_all()
        return bool(super().reset_prefix_cache(*args, **kwargs))

    # -- who may enter ---------------------------------------------------------

    def _holds(self, request: Request) -> bool:
        """Whether the gate keeps an arrival out of the queue."""
        policy = self.policy_preset
        if policy.admission == "none":
            return False
        residual = request.num_tokens - self._look_up(request)[1]
        self._gate.hold(request.request_id, self.clock(), residual)
        return policy.admission == "flex"

    # -- who may be visited ----------------------------------------------------

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Native check first; then skip a branch that should not run yet.

        False makes vLLM's loop skip the request for this round and go on.
        """
        if not super()._handle_blocked_waiting_request(request):
            if self._planner is not None:
                self._planner.resigns(request)
            return False
        may_run = self._may_run(request)
        if may_run:
            self._scan.passed.append(request.request_id)
        else:
            self._bound_scan()
        return may_run

    def _may_run(self, request: Request) -> bool:
        if request.num_computed_tokens or self.connector is not None:
            return True
        if request.request_id in self._gate:
            return self._gate.expired(request.request_id, self.clock())
        policy = self.policy_preset
        if not self._recurrent or not (policy.traversal or policy.frag):
            return True
        if self._waits_at_a_point(request) or self._is_deferred_again(request):
            return False
        hit = self._look_up(request)
        if policy.traversal and not self._is_ready(hit):
            self.log.blocked(request.request_id, len(self.running))
            return False
        needs: int | None
        if self._planner is not None and self._planner.plans(request):
            needs = self._planner.start(request, hit[1])
            if needs is None:
                return False
            if (point := self._planner.point_of(request, hit[1])) is not None:
                self._pins.pin(point, hit[0].blocks)
            crowded = self._planner.leads(request) and self._is_crowded(point)
            if crowded and self._planner.gives_way(request):
                self._scan.deferred += 1
                self._scan.crowded.add(request.request_id)
                return False
            if self._defers(self._would_be_cut(needs)):
                self._planner.deferred(request, needs)
                return False
        elif self._defers(self._native_chunk_is_cut(request, hit[1])):
            return False
        self._lookup = (request.request_id, hit)
        return True

    def _is_deferred_again(self, request: Request) -> bool:
        """Whether a request that was deferred would be cut short once more."""
        if self._planner is None or not self._planner.plans(request):
            return False
        needs = self._planner.known_needs(request)
        return needs is not None and self._defers(self._would_be_cut(needs))

    def _defers(self, cut: bool) -> bool:
        """Whether a branch that would be cut short is left for the next round."""
        policy = self.policy_preset
        if not (policy.frag and cut and self._scan.deferred < policy.max_deferred):
            return False
        self._scan.deferred += 1
        self.log.counters.deferred += 1
        return True

    def _is_crowded(self, point: Point | None) -> bool:
        """Whether a new checkpoint should wait until others are used (depth first).

        So where checkpoints that requests wait for fill their share of the pool, unless
        the request resumes from one with no other below it.  A request gives way a
        bounded number of rounds (`StopPlanner.gives_way`), and at once where nothing
        else runs, so that nobody waits for ever.
        """
        queue = self.waiting
        if not (self._admitted or self.running) or not isinstance(queue, PrefixQueue):
            return False
        assert self._planner is not None
        used = self._planner.blocks_in_use(queue.open_points, len(self._recurrent))
        if used <= self.kv_cache_manager.block_pool.num_gpu_blocks * CROWDED:
            return False
        return point is None or self._planner.is_above(point, queue.open_points)

    def _waits_at_a_point(self, request: Request) -> bool:
        """Under priority scheduling the queue is vLLM's, and shows every request."""
        if self._planner is None or isinstance(self.waiting, PrefixQueue):
            return False
        return self._planner.blocking_point(request.request_id) is not None

    def _is_ready(self, hit: compat.Hit) -> bool:
        states = compat.states_at_end(self._recurrent, hit[0], self._fence)
        return classify(states) is Readiness.READY

    def _bound_scan(self) -> None:
        """End the scan at the limit of BLOCKED and deferred branches."""
        visits = self.log.blocked_in_round + self._scan.deferred
        if visits >= self.policy_preset.scan_limit:
            self._scan.cut = True
            self.log.counters.scans_cut += 1
            if isinstance(self.waiting, PrefixQueue):
                self.waiting.closed = True

    def _would_be_cut(self, needs: int) -> bool:
        """Whether the budget left is too small for a chunk of `needs` tokens (+Frag).

        The first branch of a round is never deferred: the next round, with the same
        requests running, would have no more for it.
        """
        left = self._budget_left
        whole = min(needs, self.max_num_scheduled_tokens)
        return self._admitted and 0 < left < whole

    def _native_chunk_is_cut(self, request: Request, hit: int) -> bool:
        """The same where vLLM cuts a chunk down to whole blocks."""
        wanted = request.num_tokens - hit
        if not self.need_mamba_block_aligned_split or not self._would_be_cut(wanted):
            return False
        split = super()._mamba_block_aligned_split
        return split(request, wanted, hit) > split(request, self._budget_left, hit)

    # -- what the cache holds for it -------------------------------------------

    def _get_local_prefix_cache_hit(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> compat.Hit:
        """The hit found while testing readiness, else a native lookup."""
        found, self._lookup = self._lookup, None
        if (
            found is not None
            and found[0] == request.request_id
            and max_cache_hit_length is None
        ):
            return found[1]
        return self._look_up(request, max_cache_hit_length)

    def _look_up(self, request: Request, native_cap: int | None = None) -> compat.Hit:
        self.log.counters.lookups += 1
        hints = self._hints.get(request.request_id)
        if hints is None or self.connector is not None:
            return self._native_look_up(request, native_cap)
        return self._capped(request, hints, native_cap)

    def _native_look_up(self, request: Request, native_cap: int | None) -> compat.Hit:
        if request.request_id in self._starts_over:
            return compat.shorter_lookup(self.kv_cache_manager, request, 0)
        caps = () if native_cap is None else (native_cap,)
        hit: compat.Hit = super()._get_local_prefix_cache_hit(request, *caps)
        return hit

    def _capped(
        self, request: Request, hints: Hints, native_cap: int | None
    ) -> compat.Hit:
        """A hit that leaves the row of the first scored token to be computed.

        This is a matter of exactness, so it holds under every policy.
        """
        hit = self._native_look_up(request, native_cap)
        cap = min(hints.scored_from, request.num_tokens) - 1
        if not hints.scored_from or hit[1] <= cap:
            return hit
        self.log.counters.capped_hits += 1
        return compat.shorter_lookup(self.kv_cache_manager, request, cap)

    # -- where a chunk ends --------------------------------------------------------

    def _mamba_block_aligned_split(
        self, request: Request, num_new_tokens: int, *computed: int, **named: int
    ) -> int:
        """Planned, where the request is planned for; else natively.

        vLLM ends chunks at block boundaries, since it publishes a block's state under
        the block's key.  `publication` gives keys to planned stops alone, so that a
        planned chunk may begin and end anywhere.
        """
        planner = self._planner
        if planner is None or is_decoding(request) or not planner.plans(request):
            return super()._mamba_block_aligned_split(
                request, num_new_tokens, *computed, **named
            )
        start = request.num_computed_tokens + sum(computed) + sum(named.values())
        return planner.chunk(request, start, num_new_tokens)

    # -- the door of `plugin` --------------------------------------------------

    @property
    def _blocked_unseen(self) -> int:
        return self.waiting.blocked if isinstance(self.waiting, PrefixQueue) else 0

    def snapshot(self) -> dict[str, Any]:
        """What ``GET /v1/radixflow/stats`` shows, as JSON-ready data."""
        running, waiting = self.get_request_counts()
        return {
            "vllm_version": self._version,
            "scheduler": type(self).__name__,
            "policy": self.policy_preset.as_dict(),
            "settings": compat.snapshot_settings(
                self.vllm_config, self.block_size, self.hash_block_size
            ),
            "counters": {
                **self.log.counters.as_dict(),
                "held": self._gate.deferrals,
                "overtakes": self._gate.overtakes,
            },
            "gauges": {
                "running": running,
                "waiting": waiting,
                "held": len(self._gate),
                "parked": self._blocked_unseen,
                "oldest_blocked_s": self.log.oldest_blocked(self.clock()),
                "longest_hold_s": self._gate.longest,
            },
        }

    def rounds_after(self, number: int) -> dict[str, Any]:
        """A page of the kept rounds after `number`, oldest first.

        `newest` is the number of the last round; the engine makes a page between two.
        """
        page: list[dict[str, object]] = []
        size = 0
        for entry in self.history:
            if size >= PAGE_ROWS:
                break
            if entry.number > number:
                page.append(entry.as_dict())
                size += 1 + len(entry.scheduled) + len(entry.blocked)
        newest = self.history[-1].number if self.history else 0
        return {"rounds": page, "newest": newest}

    def arrivals_after(self, number: int, start: int = 0) -> dict[str, Any]:
        """A page of the arrivals after round `number`, and what a replay must know.

        `next` is where the next page starts, `end` where the last one ends.
        """
        page, after_page = self.arrivals.page(number, start)
        return {
            "policy": self.policy_preset.as_dict(),
            "settings": compat.snapshot_settings(
                self.vllm_config, self.block_size, self.hash_block_size
            ),
            "blocks": self.kv_cache_manager.block_pool.num_gpu_blocks,
            "recurrent_groups": len(self._recurrent),
            "retention": self.kv_cache_manager.coordinator.retention_interval,
            "dropped": self.arrivals.dropped,
            "arrivals": [arrival.as_dict() for arrival in page],
            "next": after_page,
            "end": self.arrivals.end,
        }

    def set_policy(self, name: str) -> bool:
        """Switch an idle scheduler to the preset `name`.

        Returns:
            False, with nothing changed, while any request is in the scheduler.

        Raises:
            ConfigurationError: there is no such preset.
        """
        policy: Policy = policy_named(name)
        if self.requests:
            return False
        self.adopt(policy)
        logger.info("RadixFlow policy: %s", policy.name)
        return True


def _rows_from(tensors: LogprobsTensors, first: int) -> LogprobsTensors:
    return LogprobsTensors(
        tensors.logprob_token_ids[first:],
        tensors.logprobs[first:],
        tensors.selected_token_ranks[first:],
    )


def _tell_launcher(refusal: ConfigurationError) -> None:
    if path := os.environ.get(REFUSAL_FILE):
        Path(path).write_text(str(refusal), encoding="utf-8")
