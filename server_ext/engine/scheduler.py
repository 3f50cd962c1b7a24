"""The RadixFlow scheduler: vLLM's own, with a say in who is visited.

A thin conductor on ``AsyncScheduler`` (with ``async_scheduling`` off it behaves as the
plain scheduler).  It never copies ``schedule()``: it overrides hooks, calls
``super()`` first, and under the ``radix`` policy adds nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from server_ext.config import (
    ConfigurationError,
    Policy,
    policy_from_config,
    policy_named,
)
from server_ext.engine import block_copy, compat
from server_ext.engine.scheduler_name import REFUSAL_FILE
from server_ext.hints import IGNORED, Hints, read_hints
from server_ext.metrics import RoundLog
from server_ext.readiness import Readiness, classify

__all__ = ["RadixFlowScheduler"]

logger = init_logger("vllm.radixflow")


class RadixFlowScheduler(AsyncScheduler):
    """State-ready traversal, exact readiness and shared-boundary hints.

    Raises:
        ConfigurationError: at construction, when the version or the configuration
            could not reuse states; the message is one sentence.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self._version = compat.check_version()
            compat.check_configuration(self.vllm_config, self.block_size)
            self._check_block_copy()
            self.policy_preset = policy_from_config(self.vllm_config.additional_config)
        except ConfigurationError as refusal:
            _tell_launcher(refusal)
            raise
        self.log = RoundLog()
        self._recurrent = compat.recurrent_managers(self.kv_cache_manager)
        self._hints: dict[str, Hints] = {}
        self._leaves: set[str] = set()
        self._ended: list[tuple[int, EngineCoreOutput]] = []
        self._lookup: tuple[str, compat.Hit] | None = None
        compat.withhold_blocks(
            self.kv_cache_manager, lambda request: request.request_id in self._leaves
        )
        compat.backport_exact_readiness(
            self.kv_cache_manager, lambda: self.policy_preset.readiness == "exact"
        )

    def _check_block_copy(self) -> None:
        """A hit inside a block is exact only where whole blocks are copied."""
        if self.mamba_partial_cache_hit and not block_copy.copies_whole_blocks():
            raise ConfigurationError(
                "hits inside a block need RadixFlow's general plug-in, which is not "
                "loaded: start with `radixflow serve`, or set VLLM_PLUGINS=radixflow"
            )

    # -- the life of a request -------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Read the request's hints, then queue it natively."""
        super().add_request(request)
        params = request.sampling_params
        hints = read_hints(params.extra_args if params is not None else None)
        if isinstance(hints, Hints):
            self._hints[request.request_id] = hints
            self.log.counters.hints += 1
        elif hints is IGNORED:
            self.log.counters.hints_ignored += 1

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One round; natively, between two notes in the round log."""
        self._lookup = None
        self._finish_published_producers()
        self.log.round_starts()
        output = super().schedule(throttle_prefills)
        self.log.round_ends(output.num_scheduled_tokens, len(self.running))
        for new in output.scheduled_new_reqs:
            self.log.admitted(len(new.prompt_token_ids or ()), new.num_computed_tokens)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Keep only the scored rows of a prompt, then update natively.

        The rows of cached tokens were never computed: they are memory as it was found.
        They stop here and never leave the engine.
        """
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

    def _state_position(self, request: Request) -> int:
        """Where a prompt's own state is published: the last unit inside it."""
        unit = self.hash_block_size
        return (request.num_prompt_tokens - 1) // unit * unit

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Free natively; tell a hinted request's sender its rounds.

        ``kv_transfer_params`` is the one free-form field that travels with a finished
        request; it is used only where no KV connector uses it.
        """
        kv_params, encoder_params = super()._free_request(request, delay_free_blocks)
        self._leaves.discard(request.request_id)
        trace = self.log.finished(request.request_id)
        hinted = self._hints.pop(request.request_id, None) is not None
        if hinted and kv_params is None and self.connector is None:
            kv_params = {"radixflow": trace.as_dict()}
        return kv_params, encoder_params

    # -- who may be visited ----------------------------------------------------

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Native check first; then skip a branch whose state is not there yet."""
        if not super()._handle_blocked_waiting_request(request):
            return False
        if not self._traverses(request):
            return True
        hit = self._look_up(request)
        if classify(compat.states_at_end(self._recurrent, hit[0])) is Readiness.READY:
            self._lookup = (request.request_id, hit)
            return True
        self.log.blocked(request.request_id, len(self.running))
        return False

    def _traverses(self, request: Request) -> bool:
        return (
            self.policy_preset.traversal
            and bool(self._recurrent)
            and request.num_computed_tokens == 0
            and self.connector is None
        )

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
            if start < position < end:
                return position - start
        return super()._mamba_block_aligned_split(
            request, num_new_tokens, *computed, **named
        )

    def _is_producer(self, request: Request) -> bool:
        hints = self._hints.get(request.request_id)
        return (
            hints is not None
            and hints.state_only
            and self.policy_preset.hints
            and self.mamba_partial_cache_hit
        )

    def _is_leaf(self, request: Request, start: int) -> bool:
        hints = self._hints.get(request.request_id)
        return (
            self.policy_preset.hints
            and hints is not None
            and hints.role == "consumer"
            and 0 < hints.shared_tokens <= start + self.hash_block_size
        )

    # -- the door of `plugin` --------------------------------------------------

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
            "counters": self.log.counters.as_dict(),
            "gauges": {"running": running, "waiting": waiting},
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
        self.policy_preset = policy
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
