"""Run one group: submit its branches to the engine, emit an event as each ends.

Every request carries hints that say where its prompt parts from others. The scheduler
decides what is computed once and who waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError

from server_ext.api.adapters import Adapter
from server_ext.api.protocol import BranchesRequest
from server_ext.api.scoring import (
    BranchFailure,
    Reading,
    read_id_rows,
    read_labels,
    read_next,
    read_rows,
    sampling,
)
from server_ext.api.tokens import GroupPrompts
from server_ext.policy.fairness import Share, Window
from server_ext.policy.hints import VERSION

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient
    from vllm.outputs import RequestOutput

__all__ = ["Group", "Load", "Route"]

logger = logging.getLogger("vllm.radixflow")

BRANCHES_IN_FLIGHT = 256
"""Branches of one group that ask to enter the engine; the others wait as ids."""

Emit = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """How this server returns exact logits rows.

    Attributes:
        ours: the engine runs the RadixFlow scheduler (hits are capped, rows trimmed).
        connector: a KV connector is configured (its hits know no cap).
        ids_a_read: maximum token ids that one generated row returns.
        by_ids: the engine runs the V2 model runner, which returns the scored rows
            alone, and none where a hit covers one.
    """

    ours: bool
    connector: bool
    ids_a_read: int = 20
    by_ids: bool = False

    @property
    def scores_from_cache(self) -> bool:
        """Whether scored rows are safe beside the prefix cache."""
        return (self.ours or self.by_ids) and not self.connector


@dataclass
class _Visit:
    """A request's time in the engine.

    Attributes:
        computed: tokens that were computed for it, once that is known.
    """

    computed: int = 0


@dataclass
class Load:
    """What all groups have under way.

    Attributes:
        rows: requests that one round can hold.
        window: bounds what is in the engine; None leaves the order to the engine.
        requests: requests in the engine, and those that wait to enter it.
    """

    rows: int
    window: Window | None = None
    requests: int = 0

    @asynccontextmanager
    async def in_engine(self, share: Share, tokens: int) -> AsyncIterator[_Visit]:
        """Wait for a request's turn, and count it until the end of the block."""
        self.requests += 1
        visit = _Visit()
        entered = anyio.Event()
        window = self.window
        ticket = None if window is None else window.ask(share, tokens, entered.set)
        try:
            if ticket is not None:
                await entered.wait()
            yield visit
        finally:
            self.requests -= 1
            if window is not None and ticket is not None:
                window.leave(ticket, visit.computed)

    @property
    def in_flight(self) -> int:
        """Branches of one group that may ask at a time: enough for several rounds."""
        return max(BRANCHES_IN_FLIGHT, 4 * self.rows)

    def as_dict(self) -> dict[str, int]:
        """What ``group.completed`` tells."""
        return {"requests": self.requests, "rows": self.rows}


@dataclass
class _Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completed: int = 0
    failed: int = 0
    first: int = 0
    last: int = 0

    def add(self, usage: dict[str, int]) -> None:
        for name, value in usage.items():
            setattr(self, name, getattr(self, name) + value)

    def note_rounds(self, rounds: dict[str, int] | None) -> None:
        if rounds is not None and rounds["first"]:
            self.first = min(self.first or rounds["first"], rounds["first"])
            self.last = max(self.last, rounds["last"])

    def as_dict(self) -> dict[str, int | None]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed_tokens,
            "rounds": self.last - self.first + 1 if self.first else None,
        }


@dataclass
class Group:
    """One ``POST /v1/branches``, ready to run.

    Attributes:
        engine: vLLM's client.
        request: the wire's request.
        prompts: its prompts.
        route: how this server reads rows.
        load: requests of all groups, counted while this group runs.
        group_id: the group's id.
        request_id: the request's id; branch i runs as ``<request_id>-<i>``.
        model: served model name, echoed.
        adapter: the LoRA adapter that the request names, or None.
        tenant: who shares the engine with the others.
        rank: data-parallel rank to pin to, or None.
        trace_headers: the sender's trace context, for the engine's spans; or None.
    """

    engine: EngineClient
    request: BranchesRequest
    prompts: GroupPrompts
    route: Route
    load: Load
    group_id: str
    request_id: str
    model: str
    adapter: Adapter | None = None
    tenant: Hashable = None
    rank: int | None = None
    trace_headers: Mapping[str, str] | None = None
    _usage: _Usage = field(default_factory=_Usage, repr=False)
    _share: Share = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Open its share in the engine."""
        shared = self.prompts.shared_tokens
        own = sum(len(branch) - shared for branch in self.prompts.branches)
        self._share = Share(self.tenant, len(self.prompts.branches), own)

    def progress(self) -> dict[str, int]:
        """Branches that have ended, well or not."""
        return {"completed": self._usage.completed, "failed": self._usage.failed}

    async def run(self, emit: Emit) -> None:
        """Run the group to its end; `emit` gets every event, in order of completion.

        Cancelling this call aborts every unfinished branch in the engine.
        """
        await emit(self._started())
        in_flight = anyio.Semaphore(self.load.in_flight)
        parts = self._parts()
        hints = self._hints(len(parts))
        async with anyio.create_task_group() as tasks:
            for part in parts:
                # It lets other groups run, too: submitting a long prompt takes a while.
                await in_flight.acquire()
                tasks.start_soon(self._run_part, part, hints, in_flight, emit)
        await emit(self._completed())

    async def _run_part(
        self,
        part: Sequence[int],
        hints: dict[str, Any],
        in_flight: anyio.Semaphore,
        emit: Emit,
    ) -> None:
        try:
            events = (
                await self._read_together(part, hints)
                if len(part) > 1
                else [await self._branch(part[0], hints)]
            )
            for event in events:
                await emit(event)
        finally:  # once the events are out: a slow reader slows the group
            in_flight.release()

    def _parts(self) -> list[list[int]]:
        """The branches of each request, in order.

        A branch of one token after the whole context is read from the context's last
        row, with all others like it. Every other branch has a request of its own.
        """
        everyone = range(len(self.prompts.branches))
        context, most = len(self.prompts.context), self.route.ids_a_read
        short = [
            index
            for index in everyone
            if self.request.scoring == "likelihood"
            and self.prompts.branches[index].keep == context
            and len(self.prompts.branches[index].tail) == 1
        ]
        parts = [short[at : at + most] for at in range(0, len(short), max(most, 1))]
        together = [part for part in parts if len(part) > 1]
        taken = {index for part in together for index in part}
        return sorted(
            [*together, *([index] for index in everyone if index not in taken)]
        )

    # -- a branch --------------------------------------------------------------

    async def _branch(self, index: int, hints: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._naming(index):
                output, reading = await self._scored(index, hints)
        except BranchFailure as failure:
            return self._failed(index, failure)
        branch = len(self.prompts.branches[index])
        self._usage.note_rounds(_rounds(output))
        return self._branch_completed(
            index, reading, output, computed=branch - (output.num_cached_tokens or 0)
        )

    async def _read_together(
        self, part: Sequence[int], hints: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Branches of one token each, all from the context's last row.

        The request's tokens are computed for the first of them.
        """
        context = list(self.prompts.context)
        tokens = {index: self.prompts.branches[index].tail[0] for index in part}
        params = sampling(hints=hints, cached=True, labels=tuple(tokens.values()))
        name = f"{self.request_id}-{part[0]}"
        try:
            with self._naming(part[0]):
                output = await self._generate(context, name, params)
        except BranchFailure as failure:
            return [self._failed(index, failure) for index in part]
        self._usage.note_rounds(_rounds(output))
        computed, events = len(context) - (output.num_cached_tokens or 0), []
        for index, token in tokens.items():
            try:
                reading = read_next(output, token)
            except BranchFailure as failure:
                events.append(self._failed(index, failure))
            else:
                done = self._branch_completed(index, reading, output, computed=computed)
                events.append(done)
                computed = 0
        return events

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """Let no failure out but one with a name.

        Raises:
            BranchFailure: in place of whatever was raised.
        """
        try:
            yield
        except BranchFailure:
            raise
        except EngineDeadError as error:
            # Another replica can answer, or this server once it was restarted.
            raise BranchFailure("engine_dead", str(error), retryable=True) from error
        except Exception as error:
            logger.exception("branch %d of %s failed", index, self.group_id)
            raise BranchFailure("engine_error", repr(error), retryable=True) from error

    async def _scored(
        self, index: int, hints: dict[str, Any]
    ) -> tuple[RequestOutput, Reading]:
        branch = self.prompts.branches[index]
        prompt = self.prompts.prompt(index)
        if self.request.scoring == "label":
            output = await self._ask(index, prompt, hints, cached=True)
            return output, read_labels(output, self.prompts.labels)
        from_cache = self.route.scores_from_cache
        output = await self._ask(index, prompt, hints, cached=from_cache)
        if (output.num_cached_tokens or 0) >= branch.scored_from:
            # A hit covered the first scored row: score the branch without the cache.
            output = await self._ask(index, prompt, hints, cached=False)
        read = read_id_rows if self.route.by_ids else read_rows
        return output, read(output, prompt[branch.scored_from :])

    async def _ask(
        self, index: int, prompt: list[int], hints: dict[str, Any], *, cached: bool
    ) -> RequestOutput:
        scored_from = self.prompts.branches[index].scored_from
        scored: list[int] = []
        if self.request.scoring == "likelihood":
            hints = {**hints, "radixflow_scored_from": scored_from}
            scored = prompt[scored_from:]
        params = sampling(
            hints=hints,
            cached=cached,
            labels=self.prompts.labels,
            scored=scored,
            by_ids=self.route.by_ids,
        )
        return await self._generate(prompt, f"{self.request_id}-{index}", params)

    async def _generate(
        self, tokens: list[int], request_id: str, params: Any
    ) -> RequestOutput:
        last = None
        salt, adapter = self.request.cache_salt, self.adapter
        if adapter is not None:
            salt = adapter.salted(salt)
        stream = self.engine.generate(
            tokens_input(tokens, cache_salt=salt),
            params,
            request_id,
            lora_request=adapter and adapter.request,
            trace_headers=self.trace_headers,
            priority=self.request.priority,
            data_parallel_rank=self.rank,
        )
        reads_cache = not params.skip_reading_prefix_cache
        own = len(tokens) - (self.prompts.shared_tokens if reads_cache else 0)
        async with self.load.in_engine(self._share, own) as visit:
            async for output in stream:
                last = output
            finished = _finished(last)
            visit.computed = len(tokens) - (finished.num_cached_tokens or 0)
        return finished

    def _hints(self, requests: int) -> dict[str, Any]:
        """Hints that all requests of the group share."""
        return {
            "radixflow_v": VERSION,
            "radixflow_group": self.group_id,
            "radixflow_role": "consumer",
            "radixflow_branches": requests,
            "radixflow_boundaries": list(self.prompts.boundaries),
        }

    # -- events ----------------------------------------------------------------

    def _started(self) -> dict[str, Any]:
        return {
            "event": "group.started",
            "v": VERSION,
            "group_id": self.group_id,
            "request_id": self.request_id,
            "model": self.model,
            "branches": len(self.prompts.branches),
            "document_tokens": self.prompts.document_tokens,
            "shared_tokens": self.prompts.shared_tokens,
        }

    def _branch_completed(
        self, index: int, reading: Reading, output: RequestOutput, *, computed: int
    ) -> dict[str, Any]:
        prompt = len(self.prompts.branches[index])
        usage = {
            "prompt_tokens": prompt,
            "cached_tokens": prompt - computed,
            "computed_tokens": computed,
        }
        self._usage.add(usage)
        self._usage.completed += 1
        is_top = reading.token_is_top
        return {
            "event": "branch.completed",
            "index": index,
            "request_id": f"{self.request_id}-{index}",
            "token_ids": list(reading.token_ids),
            "token_logprobs": list(reading.token_logprobs),
            "token_is_top": None if is_top is None else list(is_top),
            "labels": self._labels(reading),
            "usage": usage,
            "rounds": _shown(_rounds(output)),
        }

    def _labels(self, reading: Reading) -> list[dict[str, Any]] | None:
        if reading.labels is None:
            return None
        rows = zip(
            self.request.labels or (), self.prompts.labels, reading.labels, strict=True
        )
        return [
            {"label": label, "token_id": token, "logprob": value}
            for label, token, value in rows
        ]

    def _failed(self, index: int, failure: BranchFailure) -> dict[str, Any]:
        self._usage.failed += 1
        return {
            "event": "branch.failed",
            "index": index,
            "request_id": f"{self.request_id}-{index}",
            "error": {
                "code": failure.code,
                "message": str(failure),
                "retryable": failure.retryable,
            },
        }

    def _completed(self) -> dict[str, Any]:
        return {
            "event": "group.completed",
            "completed": self._usage.completed,
            "failed": self._usage.failed,
            "usage": self._usage.as_dict(),
            "load": self.load.as_dict(),
        }


def _finished(output: RequestOutput | None) -> RequestOutput:
    """A request's last output.

    Raises:
        BranchFailure: the engine did not finish it.
    """
    if output is None or not output.finished:
        raise BranchFailure(
            "aborted", "the engine ended the request early", retryable=True
        )
    reason = output.outputs[0].finish_reason if output.outputs else None
    if reason in ("abort", "error"):
        code = "aborted" if reason == "abort" else "engine_error"
        raise BranchFailure(
            code, f"the engine ended the request: {reason}", retryable=True
        )
    return output


def _shown(trace: dict[str, int] | None) -> dict[str, int] | None:
    return trace and {name: trace[name] for name in ("first", "last", "blocked")}


def _rounds(output: RequestOutput) -> dict[str, int] | None:
    """The scheduler's trace of a request, where it is ours."""
    params = output.kv_transfer_params
    trace = params.get("radixflow") if isinstance(params, dict) else None
    return trace if isinstance(trace, dict) else None
