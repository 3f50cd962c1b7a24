"""The RadixFlow scheduler: vLLM's own, with a say in who is visited.

A thin conductor on ``AsyncScheduler`` (with ``async_scheduling`` off it behaves as the
plain scheduler).  It never copies ``schedule()``: it overrides hooks, calls
``super()`` first, and under the ``radix`` policy adds nothing but its notes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from server_ext.admission import Gate, Room
from server_ext.config import (
    POLICIES,
    ConfigurationError,
    Policy,
    policy_from_config,
    policy_named,
)
from server_ext.engine import block_copy, compat
from server_ext.engine.audit import AvoidableBubbleError, Scan, left_out
from server_ext.engine.queue import LaneQueue
from server_ext.engine.scheduler_name import REFUSAL_FILE
from server_ext.hints import IGNORED, Hints, read_hints
from server_ext.looks import Looks
from server_ext.metrics import Round, RoundLog
from server_ext.order import GroupOrder
from server_ext.readiness import CommitFence, Readiness, classify
from server_ext.recording import Arrival, Arrivals, packed

__all__ = ["RadixFlowScheduler"]

logger = init_logger("vllm.radixflow")

HISTORY = 512
"""Rounds kept for the trace and the live page."""
DEBUG = "RADIXFLOW_DEBUG"
"""Environment variable: 1 looks back at every round for an avoidable bubble."""
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
            self._adopt(policy_from_config(vllm_config.additional_config))
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
        self._leaves: set[str] = set()
        self._looks = Looks()
        self._ended: list[tuple[int, EngineCoreOutput]] = []
        self._lookup: tuple[str, compat.Hit] | None = None
        self._budget_left = 0
        self._admitted = False
        self._scan = Scan()
        self._looks_back = os.environ.get(DEBUG, "") not in ("", "0")
        self._began = 0.0
        self._recurrent = compat.recurrent_managers(self.kv_cache_manager)
        compat.withhold_blocks(
            self.kv_cache_manager, lambda request: request.request_id in self._leaves
        )
        compat.backport_exact_readiness(
            self.kv_cache_manager, lambda: self.policy_preset.readiness == "exact"
        )
        compat.after_allocation(self.kv_cache_manager, self._spend)

    def _check_block_copy(self) -> None:
        """A hit inside a block is exact only where whole blocks are copied."""
        if self.mamba_partial_cache_hit and not block_copy.copies_whole_blocks():
            raise ConfigurationError(
                "hits inside a block need RadixFlow's general plug-in, which is not "
                "loaded: start with `radixflow serve`, or set VLLM_PLUGINS=radixflow"
            )

    def _adopt(self, policy: Policy) -> None:
        """Run by `policy` from now on; the scheduler must be empty."""
        by_priority = self.policy == SchedulingPolicy.PRIORITY
        if by_priority and policy.admission != "none":
            raise ConfigurationError(
                f"policy {policy.name} holds branches in order of arrival, which "
                "--scheduling-policy priority overrules: use fcfs or radixflow+"
            )
        if by_priority and policy.order != "fcfs":
            raise ConfigurationError(
                f"policy {policy.name} orders groups by work, which priority "
                "scheduling overrules: use --scheduling-policy fcfs"
            )
        self.policy_preset = policy
        self._order = GroupOrder(policy.overtake) if policy.order == "group" else None
        self._gate = self._gate.under(policy)
        if policy.native or by_priority:
            self.waiting = create_request_queue(self.policy)
        else:
            self.waiting = LaneQueue(self._lane, self._holds, self._order)
        self._fenced = policy.fence == "on" or (
            policy.fence == "auto" and compat.needs_fence(self.vllm_config)
        )

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
        if self._order is not None:
            self._rank(self._order, request)
        super().add_request(request)

    def _record(self, request: Request) -> None:
        self.arrivals.add(
            Arrival(
                name=request.request_id,
                after=self.log.counters.rounds,
                at=self.clock(),
                tokens=request.num_prompt_tokens,
                generates=request.max_tokens,
                reads_cache=not request.skip_reading_prefix_cache,
                keys=packed(request.block_hashes),
                hints=self._hints.get(request.request_id),
            )
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One round; natively, between two notes in the round log."""
        self._wait_for_deadline()
        self._began = time.perf_counter()
        self.log.round_starts(self.clock())
        self._finish_published_producers()
        self._open_round()
        output = super().schedule(throttle_prefills)
        if self._fenced:
            self._fence.planned(compat.published_this_round(self._recurrent))
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
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client, ended in self._ended:
            outputs.setdefault(client, EngineCoreOutputs()).outputs.append(ended)
        self._ended.clear()
        return outputs

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Free natively; tell a hinted request's sender its rounds.

        ``kv_transfer_params`` is the one free-form field that travels with a finished
        request; it is used only where no KV connector uses it.
        """
        kv_params, encoder_params = super()._free_request(request, delay_free_blocks)
        self._gate.drop(request.request_id)
        self._leaves.discard(request.request_id)
        self._looks.forget(request.request_id)
        if self._order is not None:
            self._order.gone(request.request_id)
            self._tell_siblings(self._order, request)
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
        compat.forget_unwritten(self.kv_cache_manager, request)
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
        if not isinstance(self.waiting, LaneQueue):
            return
        self.waiting.next_round()
        room = Room(
            running=len(self.running),
            rows=self.max_num_running_reqs,
            tokens=self.max_num_scheduled_tokens,
        )
        self.waiting.admit(self._gate.release(self.clock(), room))

    def _note_round(self, output: SchedulerOutput, bubble: bool | None) -> None:
        running, waiting = self.get_request_counts()
        ended = self.log.round_ends(
            output.num_scheduled_tokens,
            host_us=round((time.perf_counter() - self._began) * 1e6),
            running=running,
            waiting=waiting,
            held=len(self._gate),
            parked=self._parked,
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
        # One that was put off by a hit that has shrunk since might fit now; it waits a
        # round, as others do that are put off, and is no bubble.
        if self._known_cut(request) is not None:
            return False
        hit = self._look_up(request)
        cut = self.policy_preset.frag and self._would_be_cut(request, hit[1])
        return self._is_ready(hit) and not cut

    def _in_sight(self, request: Request) -> bool:
        """Whether the round could have had this waiting request, were it READY."""
        return (
            self._pause_state == PauseState.UNPAUSED
            and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            and request.request_id not in self._gate
            and not request.num_computed_tokens
            and self.connector is None
        )

    def _spend(self, request: Request, tokens: int) -> None:
        self._budget_left -= tokens
        self._admitted |= request.status != RequestStatus.RUNNING
        start, unit = request.num_computed_tokens, self.hash_block_size
        leaves_more = (start + tokens) // unit > start // unit
        if self._looks and leaves_more and request.request_id not in self._leaves:
            self._looks.computed(request.block_hashes)
        if self._order is not None and isinstance(self.waiting, LaneQueue):
            self._order.served(request.request_id, tokens)

    # -- who may enter ---------------------------------------------------------

    def _rank(self, order: GroupOrder, request: Request) -> None:
        """Tell what a new request will have to compute, as far as its hints tell."""
        hints = self._hints.get(request.request_id)
        shared = 0
        if hints is not None and self.policy_preset.hints:
            shared = min(hints.shared_tokens, request.num_tokens)
        order.arrived(
            self._lane(request),
            request.request_id,
            request.num_tokens,
            shared=shared,
            cached=self._look_up(request)[1],
            promised=self._promised(order, request),
        )

    def _promised(self, order: GroupOrder, request: Request) -> int:
        """First tokens of a request that another which waits will have computed."""
        unit, promised = self.hash_block_size, 0
        for name in order.missing:
            other = self.requests[str(name)]
            hints = self._hints[other.request_id]
            units = min(hints.shared_tokens, other.num_tokens) // unit
            if _begin_alike(request, other, units):
                promised = max(promised, units * unit)
        return promised

    def _tell_siblings(self, order: GroupOrder, request: Request) -> None:
        """A producer has left its state: others need not compute it."""
        if not self._is_producer(request):
            return
        position = min(self._state_position(request), request.num_computed_tokens)
        units = position // self.hash_block_size
        for name in order.missing:
            if _begin_alike(request, self.requests[str(name)], units):
                order.cached(name, position)

    def _lane(self, request: Request) -> Hashable:
        """Branches that resume at the same state share a lane.

        The key is the hash of the shared tokens themselves (with the cache salt in
        it), not the group id that a sender chose.  Only where groups are what is
        ordered, the group's own id is, within its salt.
        """
        hints = self._hints.get(request.request_id)
        if self._order is not None and hints is not None:
            return request.cache_salt, hints.group
        units = 0 if hints is None else hints.shared_tokens // self.hash_block_size
        if not self._recurrent or not 0 < units <= len(request.block_hashes):
            return request.request_id
        return bytes(request.block_hashes[units - 1])

    def _holds(self, request: Request) -> bool:
        """Whether the gate keeps an arrival out of sight."""
        policy = self.policy_preset
        if policy.admission == "none":
            return False
        residual = request.num_tokens - self._look_up(request)[1]
        self._gate.hold(request.request_id, self.clock(), residual)
        return policy.admission == "flex" or policy.timer_order == "arrival"

    # -- who may be visited ----------------------------------------------------

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Native check first; then skip a branch that should not run yet."""
        may_run = super()._handle_blocked_waiting_request(request) and self._may_run(
            request
        )
        if may_run:
            self._scan.passed = request.request_id
        return may_run

    def _may_run(self, request: Request) -> bool:
        if request.num_computed_tokens or self.connector is not None:
            return True
        if request.request_id in self._gate:
            return self._gate.expired(request.request_id, self.clock())
        policy = self.policy_preset
        if not self._recurrent or not (policy.traversal or policy.frag):
            return True
        known = self._known_cut(request)
        if known is not None:
            self._put_off(request, known)
            return False
        hit = self._look_up(request)
        if policy.traversal and not self._is_ready(hit):
            self._skip(request, hit)
            return False
        if policy.frag and self._would_be_cut(request, hit[1]):
            self._remember(request, hit[1])
            self._put_off(request, hit[1])
            return False
        self._lookup = (request.request_id, hit)
        return True

    def _is_ready(self, hit: compat.Hit) -> bool:
        states = compat.states_at_end(self._recurrent, hit[0], self._fence)
        return classify(states) is Readiness.READY

    def _skip(self, request: Request, hit: compat.Hit) -> None:
        """Leave a BLOCKED branch for the next round, and its lane with it.

        All in the lane have the shared tokens, so what blocks this one there blocks
        them.  A state beyond the shared boundary is this branch's own affair.
        """
        self.log.blocked(request.request_id, len(self.running))
        self._leave(request, with_lane=self._shared_left(request, hit[1]) >= 0)

    def _put_off(self, request: Request, hit: int) -> None:
        """Leave a branch that would be cut short for the next round (+Frag).

        Where shared tokens are what it lacks, all in its lane lack them.
        """
        self.log.counters.deferred += 1
        self._scan.deferred += 1
        lacking = self._shared_left(request, hit)
        self._leave(request, with_lane=lacking > self.block_size)

    def _known_cut(self, request: Request) -> int | None:
        """The hit of a branch that was put off, where it would be cut short again."""
        hit = self._looks.length(request.request_id)
        return None if hit is None or not self._would_be_cut(request, hit) else hit

    def _remember(self, request: Request, hit: int) -> None:
        unit, prefixes = hit // self.hash_block_size, request.block_hashes
        behind = prefixes[unit] if unit < len(prefixes) else None
        self._looks.keep(request.request_id, hit, behind)

    def _shared_left(self, request: Request, hit: int) -> int:
        """Tokens from a hit to the shared boundary; below 0 past it, or without one."""
        hints = self._hints.get(request.request_id)
        return -1 if hints is None else hints.shared_tokens - hit

    def _leave(self, request: Request, *, with_lane: bool) -> None:
        """Go on without a branch, and without its lane where that waits with it."""
        if with_lane and isinstance(self.waiting, LaneQueue):
            self.waiting.park(request)
        self._bound_scan()

    def _bound_scan(self) -> None:
        """End the scan once it has looked at enough branches in vain."""
        policy, deferred = self.policy_preset, self._scan.deferred
        enough = (
            deferred >= policy.put_off
            or self.log.blocked_in_round + deferred >= policy.scan_limit
        )
        if enough and isinstance(self.waiting, LaneQueue):
            self.waiting.closed = self._scan.cut = True
            self.log.counters.scans_cut += 1

    def _would_be_cut(self, request: Request, hit: int) -> bool:
        """Whether the budget left would cut the branch's next segment short (+Frag).

        The first branch of a round is never put off: the next round, with the same
        requests running, would have no more for it.
        """
        wanted = request.num_tokens - hit
        left = self._budget_left
        if not self.need_mamba_block_aligned_split or not self._admitted:
            return False
        if not 0 < left < min(wanted, self.max_num_scheduled_tokens):
            return False
        whole = super()._mamba_block_aligned_split(request, wanted, hit)
        return whole > super()._mamba_block_aligned_split(request, left, hit)

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
        hit = self._capped(request, hints, native_cap)
        return self._with_shared_boundary(hit, request, hints)

    def _native_look_up(self, request: Request, native_cap: int | None) -> compat.Hit:
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

    def _with_shared_boundary(
        self, hit: compat.Hit, request: Request, hints: Hints
    ) -> compat.Hit:
        """Let the native splitter end a chunk where the siblings will resume."""
        blocks, length, boundary, diverged = hit
        shared = hints.shared_tokens - hints.shared_tokens % self.hash_block_size
        if not self.policy_preset.hints or shared > request.num_prompt_tokens:
            return hit
        if shared <= max(length, boundary):
            return hit
        return blocks, length, shared, diverged

    # -- where a chunk ends ----------------------------------------------------

    def _mamba_block_aligned_split(
        self, request: Request, num_new_tokens: int, *computed: int, **named: int
    ) -> int:
        """Natively, except where a native stop would serve nobody.

        The native stops exist to leave states for others.  A leaf is a consumer that
        resumes at the shared boundary: what follows is its own, and nobody's state.
        A producer's siblings resume at its last unit, not at the block before it.
        """
        hit = sum(computed) + sum(named.values())
        start = request.num_computed_tokens + hit
        end = start + num_new_tokens
        if self._is_leaf(request, start):
            self._leaves.add(request.request_id)
            if end >= request.num_prompt_tokens:
                return num_new_tokens
        else:
            self._leaves.discard(request.request_id)
        if self._is_producer(request) and start % self.block_size == 0:
            position = self._state_position(request)
            if start < position <= end:
                return position - start
        return super()._mamba_block_aligned_split(
            request, num_new_tokens, *computed, **named
        )

    def _is_leaf(self, request: Request, start: int) -> bool:
        hints = self._hints.get(request.request_id)
        return (
            self.policy_preset.hints
            and hints is not None
            and hints.role == "consumer"
            and 0 < hints.shared_tokens <= start + self.hash_block_size
        )

    def _is_producer(self, request: Request) -> bool:
        hints = self._hints.get(request.request_id)
        return (
            hints is not None
            and hints.state_only
            and self.policy_preset.hints
            and self.mamba_partial_cache_hit
        )

    def _state_position(self, request: Request) -> int:
        """Where a prompt's own state is published: the last unit inside it."""
        unit = self.hash_block_size
        return (request.num_prompt_tokens - 1) // unit * unit

    def _finish_published_producers(self) -> None:
        """End a producer whose state is published: it has nothing else to give.

        Going on, it would copy that state aside and hold its consumers for a round.
        """
        for request in [r for r in self.running if self._has_published(r)]:
            trace = self.log.traces.get(request.request_id)
            self.finish_requests(request.request_id, RequestStatus.FINISHED_STOPPED)
            ended = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                events=request.take_events(),
                kv_transfer_params={"radixflow": trace.as_dict()} if trace else None,
                trace_headers=request.trace_headers,
            )
            self._ended.append((request.client_index, ended))

    def _has_published(self, request: Request) -> bool:
        published = request.num_computed_tokens == self._state_position(request)
        return published and self._is_producer(request)

    # -- the door of `plugin` --------------------------------------------------

    @property
    def _parked(self) -> int:
        return self.waiting.parked if isinstance(self.waiting, LaneQueue) else 0

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
                "parked": self._parked,
                "oldest_blocked_s": self.log.oldest_blocked(self.clock()),
                "longest_hold_s": self._gate.longest,
            },
        }

    def rounds_after(self, number: int) -> list[dict[str, object]]:
        """The rounds after `number` that are still kept, oldest first."""
        return [entry.as_dict() for entry in self.history if entry.number > number]

    def arrivals_after(self, number: int) -> dict[str, Any]:
        """The arrivals after round `number`, and what a replay of them must know."""
        kept = [arrival for arrival in self.arrivals if arrival.after >= number]
        return {
            "policy": self.policy_preset.as_dict(),
            "settings": compat.snapshot_settings(
                self.vllm_config, self.block_size, self.hash_block_size
            ),
            "blocks": self.kv_cache_manager.block_pool.num_gpu_blocks,
            "recurrent_groups": len(self._recurrent),
            "retention": self.kv_cache_manager.coordinator.retention_interval,
            "dropped": self.arrivals.dropped,
            "arrivals": [arrival.as_dict() for arrival in kept],
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
        self._adopt(policy)
        logger.info("RadixFlow policy: %s", policy.name)
        return True


def _begin_alike(one: Request, other: Request, units: int) -> bool:
    """Whether two prompts have their first `units` match units in common, 1 or more."""
    keys, others = one.block_hashes, other.block_hashes
    return 0 < units <= min(len(keys), len(others)) and (
        keys[units - 1] == others[units - 1]
    )


def _rows_from(tensors: LogprobsTensors, first: int) -> LogprobsTensors:
    return LogprobsTensors(
        tensors.logprob_token_ids[first:],
        tensors.logprobs[first:],
        tensors.selected_token_ranks[first:],
    )


def _tell_launcher(refusal: ConfigurationError) -> None:
    if path := os.environ.get(REFUSAL_FILE):
        Path(path).write_text(str(refusal), encoding="utf-8")
