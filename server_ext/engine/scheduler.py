"""The RadixFlow scheduler: vLLM's own, with a say in who is visited.

Hooks on ``AsyncScheduler`` (with ``async_scheduling`` off it behaves as the plain
scheduler).  It never copies ``schedule()``: each hook calls ``super()`` and hands its
question on, to `traversal` (who may run), `lookup` (what the cache holds), `planner`
(where chunks end) or `queue` (who is seen).  The ``radix`` policy adds only its notes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from server_ext.engine import block_copy, compat, inspect
from server_ext.engine.lookup import Lookups
from server_ext.engine.pins import Pins
from server_ext.engine.planner import make_planner
from server_ext.engine.publication import (
    PlannedStops,
    is_decoding,
    publish_planned_stops,
)
from server_ext.engine.queue import PrefixQueue
from server_ext.engine.rows import trim_rows
from server_ext.engine.scheduler_name import tell_launcher
from server_ext.engine.traversal import make_traversal
from server_ext.policy.admission import Gate, Room
from server_ext.policy.arrivals import Arrivals, packed
from server_ext.policy.config import (
    POLICIES,
    ConfigurationError,
    Policy,
    policy_from_config,
    policy_named,
)
from server_ext.policy.counters import Round, RoundLog
from server_ext.policy.hints import IGNORED, Hints, read_hints
from server_ext.policy.readiness import CommitFence

__all__ = ["RadixFlowScheduler"]

logger = init_logger("vllm.radixflow")

HISTORY = 512
"""Rounds kept for the trace and the live page."""
DEBUG = "RADIXFLOW_DEBUG"
"""Environment variable: 1 audits every round for an avoidable bubble."""


class RadixFlowScheduler(AsyncScheduler):
    """Traversal, admission and hints on the native schedule; see `Policy`.

    Raises:
        ConfigurationError: at construction, when the version or the configuration
            could not reuse states; the message is one sentence.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.log = RoundLog()
        self.history: deque[Round] = deque(maxlen=HISTORY)
        self.arrivals = Arrivals()
        self.gate = Gate(POLICIES["radix"])
        self._fence = CommitFence()
        self._stops = PlannedStops()
        self._hints: dict[str, Hints] = {}
        self.audits = os.environ.get(DEBUG, "") not in ("", "0")
        self.round_began = 0.0
        try:
            compat.check_version()
            compat.check_configuration(vllm_config, kwargs.get("block_size"))
            super().__init__(vllm_config, *args, **kwargs)
            self._check_cache()
            self.adopt(policy_from_config(vllm_config.additional_config))
        except ConfigurationError as refusal:
            tell_launcher(refusal)
            raise
        manager = self.kv_cache_manager
        publish_planned_stops(manager, self._stops)
        compat.backport_exact_readiness(
            manager, lambda: self.policy_preset.readiness == "exact"
        )
        compat.after_allocation(manager, self._allocated, self._make_room)

    def _check_cache(self) -> None:
        manager = self.kv_cache_manager
        if self.mamba_partial_cache_hit:
            block_copy.check()
        self._pins = Pins(manager.block_pool)
        self.lookups = Lookups(
            manager,
            super()._get_local_prefix_cache_hit,
            self._fence,
            {} if self.connector is not None else self._hints,
            self.log.counters,
        )
        if self.lookups.recurrent:
            compat.check_pool(self.vllm_config, self.kv_cache_config)

    def adopt(self, policy: Policy) -> None:
        """Run by `policy` from now on; the scheduler must be empty."""
        config = self.vllm_config
        by_priority = self.policy == SchedulingPolicy.PRIORITY
        if by_priority and policy.admission != "none":
            raise ConfigurationError(
                f"policy {policy.name} holds branches in order of arrival, which "
                "--scheduling-policy priority overrules: use fcfs or radixflow+"
            )
        policy = policy.on(compat.device_type(config), compat.weights(config))
        self.policy_preset = policy
        self.gate = self.gate.under(policy)
        self._planner = make_planner(
            policy, self, self._stops, len(self.lookups.recurrent)
        )
        if policy.native or by_priority:
            self.waiting = create_request_queue(self.policy)
        else:
            tree = None if self._planner is None else self._planner.tree
            self.waiting = PrefixQueue(tree, self._holds)
        native_split = super()._mamba_block_aligned_split
        self.traversal = make_traversal(
            self,
            self._planner,
            self._pins,
            native_split if self.need_mamba_block_aligned_split else None,
        )
        self._fenced = policy.fence == "on" or (
            policy.fence == "auto" and compat.needs_fence(config)
        )
        self._doubts = policy.fence != "off" and not policy.native

    # -- the life of a request -------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Read the request's hints, then queue it natively."""
        if request.request_id in self.requests:  # more input for a session
            super().add_request(request)
            return
        hints, keys = self._hints_of(request), packed(request.block_hashes)
        if self._planner is not None:
            self._planner.arrived(request, keys, hints)
        inspect.note_arrival(self, request, keys, hints)
        super().add_request(request)

    def _hints_of(self, request: Request) -> Hints | None:
        params = request.sampling_params
        hints = read_hints(params.extra_args if params is not None else None)
        if isinstance(hints, Hints):
            self._hints[request.request_id] = hints
            self.log.counters.hints += 1
            return hints
        self.log.counters.hints_ignored += hints is IGNORED
        return None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One round; natively, between two notes in the round log."""
        if not self.running and (wait := self.gate.short_wait(self.clock())):
            self.sleep(wait)
        self.round_began = time.perf_counter()
        self.log.round_starts(self.clock())
        self._open_round()
        output = super().schedule(throttle_prefills)
        if self._fenced:
            self._fence.planned(compat.published_this_round(self.lookups.recurrent))
        if self._planner is not None:
            self._planner.round_planned(
                self.requests[name] for name in output.num_scheduled_tokens
            )
        inspect.note_round(self, output)
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
        trim_rows(model_runner_output.prompt_logprobs_dict, self._hints)
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
        self.gate.drop(request.request_id)
        self.lookups.finished(request.request_id)
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

    def _open_round(self) -> None:
        self.traversal.new_round()
        if not isinstance(self.waiting, PrefixQueue):
            return
        room = Room(
            running=len(self.running),
            rows=self.max_num_running_reqs,
            tokens=self.max_num_scheduled_tokens,
        )
        self.waiting.admit(self.gate.release(self.clock(), room))
        self.waiting.next_round()

    def _allocated(self, request: Request, tokens: int, hit: int) -> None:
        """vLLM has taken a request into the round with `tokens` tokens."""
        new = request.status != RequestStatus.RUNNING
        self.traversal.allocated(request, tokens, hit, new=new)

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
        self.lookups.start_over(request)
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
        residual = request.num_tokens - self.lookups.of(request)[1]
        self.gate.hold(request.request_id, self.clock(), residual)
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
        return self.traversal.visit(request, len(self.running))

    # -- what the cache holds for it -------------------------------------------

    def _get_local_prefix_cache_hit(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> compat.Hit:
        """The hit found while testing readiness, else a lookup of ours."""
        return self.lookups.take(request, max_cache_hit_length)

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

    snapshot = inspect.snapshot
    rounds_after = inspect.rounds_page
    arrivals_after = inspect.arrivals_page

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
