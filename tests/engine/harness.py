"""vLLM's real scheduler and cache manager, without a model: what the engine tests run.

`create_scheduler` makes a scheduler from a few knobs, `make_request` and `make_group`
the requests that a client or our endpoint would send, `Driver` plays the engine loop
(synchronous or asynchronous) with aborts at any phase, and `tests.engine.shadow` plays
the worker: it remembers what every physical block holds and fails where a request
resumes from anything but the state of its own prefix.
"""

from __future__ import annotations

import functools
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["RADIXFLOW_DEBUG"] = "1"  # every round of every test is looked back at

from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from server_ext.engine import block_copy
from server_ext.engine.queue import PrefixQueue
from server_ext.engine.scheduler import RadixFlowScheduler
from server_ext.policy.hints import TRIM_ROWS
from server_ext.replay.rig import Shape, cache_layout, scaled
from tests.engine.shadow import ShadowWorker

MODEL = Path(__file__).parent / "data"
VOCABULARY = 4096
SECOND_RUNNER = os.environ.get("RADIXFLOW_TEST_V2") == "1"
"""Run all tests with the settings of vLLM's V2 model runner: asynchronous rounds."""
CHECKPOINTS = os.environ.get("RADIXFLOW_TEST_CHECKPOINTS")
"""Run all tests on layers that save checkpoints inside a chunk, at such multiples."""
TURN = 0.001
"""Seconds that one turn of the engine loop takes on the driver's clock."""

block_copy.install()  # as `server_ext.engine.plugin` does in every process


# --- schedulers ---------------------------------------------------------


@functools.cache
def shared_config() -> VllmConfig:
    """The one `VllmConfig` of the session; making it takes seconds."""
    init_none_hash(sha256)
    made = EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        max_model_len=8192,
        max_num_batched_tokens=8192,
        max_num_seqs=16,
        dtype="bfloat16",
        kv_cache_memory_bytes=1 << 28,
    ).create_engine_config()
    if SECOND_RUNNER:  # later than vLLM's own check, which wants Triton
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        assert made.use_v2_model_runner
    return made


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """What a test may turn on a scheduler.

    Attributes:
        block_size: tokens of a cache block.
        match_unit: tokens between two boundaries that a hit can land on; None: a block.
        num_blocks: physical blocks, the null block included.
        rows: most requests in a round.
        token_budget: most tokens in a round.
        preset: name of the RadixFlow policy.
        settings: settings of the policy that differ from the preset's.
        native: make vLLM's own class instead.
        asynchronous: schedule step n + 1 before the output of step n is processed.
        scheduling: vLLM's own ``fcfs`` or ``priority``.
        recurrent_groups: 0 (full attention alone) to 3.
        max_model_len: longest sequence; None: what the pool holds, at most 32,768.
        prefix_caching: whether the prefix cache is on.
        cache_mode: vLLM's ``mamba_cache_mode``.
        log_stats: whether vLLM keeps its own statistics.
        retention: tokens between states that are kept without need; 0 (vLLM's default)
            keeps none, None all.
        connector: folder of vLLM's file connector, or None for no KV connector.
        checkpoint_alignment: see `Shape`.
    """

    block_size: int = 128
    match_unit: int | None = 16
    num_blocks: int = 2000
    rows: int = 16
    token_budget: int = 8192
    preset: str = "radixflow+"
    settings: Mapping[str, Any] = field(default_factory=dict)
    native: bool = False
    asynchronous: bool = SECOND_RUNNER
    scheduling: str = "fcfs"
    recurrent_groups: int = 3
    max_model_len: int | None = None
    prefix_caching: bool = True
    cache_mode: str = "align"
    log_stats: bool = False
    retention: int | None = 0
    connector: str | None = None
    checkpoint_alignment: int | None = None if CHECKPOINTS is None else int(CHECKPOINTS)

    @property
    def unit(self) -> int:
        return self.match_unit or self.block_size


def create_scheduler(knobs: Knobs | None = None, **changes: Any) -> AsyncScheduler:
    """A scheduler of our class, or of vLLM's under ``native=True``.

    Args:
        knobs: all knobs at once; by default `Knobs` with `changes` applied.
        changes: single knobs.
    """
    knobs = knobs or Knobs(**changes)
    config = _config(knobs)
    cls = AsyncScheduler if knobs.native else RadixFlowScheduler
    scheduler = cls(
        vllm_config=config,
        kv_cache_config=cache_layout(_shape(knobs), mode=knobs.cache_mode),
        structured_output_manager=StructuredOutputManager(config),
        block_size=knobs.block_size,
        hash_block_size=knobs.unit,
        log_stats=knobs.log_stats,
    )
    scheduler.knobs = knobs
    return scheduler


def _config(knobs: Knobs) -> VllmConfig:
    config = scaled(shared_config(), _shape(knobs), asynchronous=knobs.asynchronous)
    config.cache_config.enable_prefix_caching = knobs.prefix_caching
    config.cache_config.mamba_cache_mode = knobs.cache_mode
    scheduler = config.scheduler_config
    scheduler.policy = knobs.scheduling
    if knobs.connector is not None:
        scheduler.disable_hybrid_kv_cache_manager = True
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": knobs.connector},
        )
    config.additional_config = {"radixflow": {"policy": knobs.preset, **knobs.settings}}
    return config


def _shape(knobs: Knobs) -> Shape:
    return Shape(
        block_size=knobs.block_size,
        unit=knobs.unit,
        recurrent_groups=knobs.recurrent_groups,
        blocks=knobs.num_blocks,
        max_model_len=knobs.max_model_len or _longest(knobs),
        token_budget=knobs.token_budget,
        rows=knobs.rows,
        retention=knobs.retention,
        checkpoint_alignment=knobs.checkpoint_alignment,
    )


def _longest(knobs: Knobs) -> int:
    """Tokens of the longest sequence that the pool holds."""
    others = 1 + 2 * knobs.recurrent_groups + knobs.asynchronous
    return min(32768, max(1, knobs.num_blocks - others) * knobs.block_size)


# --- requests ---------------------------------------------------------


def hints(
    role: str = "consumer",
    *,
    group: str = "g",
    branches: int = 2,
    boundaries: Sequence[int] = (),
    scored_from: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The wire's hints (``docs/wire.md``), and anything else put into `more`."""
    result = {
        "radixflow_v": 1,
        "radixflow_group": group,
        "radixflow_role": role,
        "radixflow_branches": branches,
        "radixflow_boundaries": list(boundaries),
        **more,
    }
    if scored_from is not None:
        result["radixflow_scored_from"] = scored_from
    return result


@functools.cache
def _hasher(unit: int) -> Callable[[Request], Any]:
    hasher: Callable[[Request], Any] = get_request_block_hasher(unit, sha256)
    return hasher


def make_request(
    scheduler: AsyncScheduler,
    request_id: str,
    tokens: Sequence[int],
    *,
    extra_args: dict[str, Any] | None = None,
    salt: str | None = None,
    priority: int = 0,
    arrival: float = 0.0,
    max_tokens: int = 1,
    prompt_rows: bool = False,
    reads_cache: bool = True,
    structured_outputs: StructuredOutputsParams | None = None,
    **more: Any,
) -> Request:
    """One request as vLLM's front end hands it over.

    Args:
        scheduler: where it will go (its match unit decides the hashes).
        request_id: its id.
        tokens: the prompt.
        extra_args: ``SamplingParams.extra_args``, where the hints ride.
        salt: ``cache_salt``.
        priority: smaller runs first under the ``priority`` policy.
        arrival: arrival time.
        max_tokens: tokens to generate.
        prompt_rows: ask for the log-probabilities of the prompt.
        reads_cache: whether it may hit the prefix cache.
        structured_outputs: what its output must look like.
        more: further arguments of `Request`.
    """
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0,
        detokenize=False,
        ignore_eos=True,
        prompt_logprobs=0 if prompt_rows else None,
        skip_reading_prefix_cache=not reads_cache,
        structured_outputs=structured_outputs,
        extra_args=extra_args,
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=list(tokens),
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival,
        cache_salt=salt,
        priority=priority,
        block_hasher=_hasher(scheduler.hash_block_size),
        **more,
    )


def make_group(
    scheduler: AsyncScheduler,
    group: str,
    document: Sequence[int],
    tails: Sequence[Sequence[int]],
    *,
    scored: int = 1,
    likelihood: bool = True,
    salt: str | None = None,
    priority: int = 0,
    arrival: float = 0.0,
    hinted: bool = True,
) -> list[Request]:
    """The requests of one ``POST /v1/branches``, as ``server_ext.api`` sends them.

    Args:
        scheduler: where they will go.
        group: group id; the requests are ``<group>-0``, ``<group>-1``, ...
        document: the shared tokens.
        tails: tokens of each branch after the document.
        scored: how many of the last tokens of each branch are scored.
        likelihood: read prompt rows (else one generated token, as in label mode).
        salt: cache salt.
        priority: priority of all.
        arrival: arrival time of all.
        hinted: announce where the document ends and how many branches come.
    """
    boundaries = [len(document)] if document and hinted else []
    result = []
    for index, tail in enumerate(tails):
        prompt = [*document, *tail]
        scored_from = len(prompt) - min(scored, len(tail)) if likelihood else None
        announced = hints(
            group=group,
            branches=len(tails),
            boundaries=boundaries,
            scored_from=scored_from,
        )
        result.append(
            make_request(
                scheduler,
                f"{group}-{index}",
                prompt,
                extra_args={**announced, **(TRIM_ROWS if likelihood else {})},
                salt=salt,
                priority=priority,
                arrival=arrival,
                prompt_rows=likelihood,
            )
        )
    return result


def tokens(seed: object, length: int) -> list[int]:
    """`length` tokens that depend on `seed` alone."""
    source = random.Random(repr(seed))
    return source.choices(range(5, VOCABULARY), k=length)


# --- the engine loop ---------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One scheduler step.

    Attributes:
        scheduled: tokens of each request that was selected, in vLLM's order.
        blocks: new block ids of each selected request, per cache group.
        hits: computed tokens of each request admitted in this step.
        running: requests that run after it was planned.
    """

    scheduled: dict[str, int]
    blocks: dict[str, Any]
    hits: dict[str, int]
    running: int

    @property
    def tokens(self) -> int:
        return sum(self.scheduled.values())


@dataclass
class Driver:
    """Plays vLLM's ``EngineCore`` on one scheduler, with a shadow worker under it.

    Every dispatched step runs, in order, as on a device; aborts come between steps
    (`abort`) or while a step runs (`abort_while_running`), as in vLLM.

    Attributes:
        scheduler: the scheduler under test.
        worker: the shadow worker.
        audits: check every key in the prefix cache after every step.
        rounds: steps that had work.
        answers: all outputs of each request, in order of delivery.
        sent: request ids in order of arrival.
        aborted: requests that were aborted while the scheduler had them.
        preempted: requests that were preempted at least once.
        in_flight: dispatched steps whose output is not processed yet.
        on_plan: called with each round, work or not, before it runs.
        now: the scheduler's clock in seconds; every turn takes `TURN`.
    """

    scheduler: AsyncScheduler
    worker: ShadowWorker = field(init=False)
    audits: bool = True
    rounds: list[Round] = field(default_factory=list)
    answers: dict[str, list[EngineCoreOutput]] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)
    in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = field(
        default_factory=deque
    )
    on_plan: Callable[[Round], None] | None = None
    now: float = 1000.0
    _to_abort: list[str] = field(default_factory=list)
    _free_at_start: int = 0

    @classmethod
    def on(cls, knobs: Knobs | None = None, **changes: Any) -> Driver:
        """A driver on a new scheduler; see `create_scheduler`."""
        return cls(create_scheduler(knobs, **changes))

    def __post_init__(self) -> None:
        knobs = self.scheduler.knobs
        self.worker = ShadowWorker(
            block_size=knobs.block_size,
            unit=knobs.unit,
            recurrent=[group > 0 for group in range(1 + knobs.recurrent_groups)],
            waves=block_copy.waves,
            caps_hits=not knobs.native,
            checkpoint_alignment=knobs.checkpoint_alignment,
        )
        self._free_at_start = self._pool.get_num_free_blocks()
        self.scheduler.clock = lambda: self.now
        self.scheduler.sleep = self._sleep

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def _pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # -- what a client does -------------------------------------------------

    def send(self, requests: Request | Iterable[Request]) -> None:
        """Hand requests over, in order."""
        for request in [requests] if isinstance(requests, Request) else requests:
            self.worker.learn(request)
            self.sent.append(request.request_id)
            self.aborted.discard(request.request_id)
            self.answers.pop(request.request_id, None)
            self.scheduler.add_request(request)

    def abort(self, *request_ids: str) -> None:
        """Abort between two steps."""
        self.aborted |= self.scheduler.requests.keys() & set(request_ids)
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def abort_while_running(self, *request_ids: str) -> None:
        """Abort once the next output is there, before it is processed."""
        self._to_abort += request_ids

    def finished(self, request_id: str) -> bool:
        """Whether the client has been told that the request ended."""
        answers = self.answers.get(request_id, [])
        return bool(answers) and answers[-1].finish_reason is not None

    # -- the loop -------------------------------------------------

    def step(self) -> Round | None:
        """One turn of the engine loop; the round scheduled in it, if one was."""
        self.now += TURN
        if self.scheduler.knobs.asynchronous:
            return self._step_asynchronously()
        if not self.scheduler.has_requests():
            return None
        round_ = self._dispatch()
        self._process()
        return round_

    def _step_asynchronously(self) -> Round | None:
        round_ = None
        if self.scheduler.has_requests():
            round_ = self._dispatch()
            executed = bool(round_.scheduled)
            if len(self.in_flight) < 2 and (executed or self.scheduler.has_requests()):
                return round_
        if self.in_flight:
            self._process()
        return round_

    def _dispatch(self) -> Round:
        output = self.scheduler.schedule()
        self._check_bounds(output)
        self.preempted |= set(output.preempted_req_ids or ())
        round_ = Round(
            dict(output.num_scheduled_tokens),
            _blocks_of(output),
            {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs},
            len(self.scheduler.running),
        )
        if self.on_plan is not None:
            self.on_plan(round_)
        if round_.scheduled:
            self.rounds.append(round_)
        self.in_flight.append((output, self.worker.execute(output)))
        if self.audits:
            self.worker.audit(self._pool)
        return round_

    def _process(self) -> None:
        scheduler_output, model_output = self.in_flight.popleft()
        self.worker.processed()
        if self._to_abort:
            self.abort(*self._to_abort)
            self._to_abort.clear()
        delivered = self.scheduler.update_from_output(scheduler_output, model_output)
        for outputs in delivered.values():
            for answer in outputs.outputs:
                self._deliver(answer)

    def _deliver(self, answer: EngineCoreOutput) -> None:
        request_id = answer.request_id
        assert request_id not in self.aborted, f"{request_id} answered after its abort"
        assert not self.finished(request_id), f"{request_id} answered after its end"
        self.answers.setdefault(request_id, []).append(answer)

    def _check_bounds(self, output: SchedulerOutput) -> None:
        knobs = self.scheduler.knobs
        assert len(output.num_scheduled_tokens) <= knobs.rows
        assert output.total_num_scheduled_tokens <= knobs.token_budget
        assert all(count > 0 for count in output.num_scheduled_tokens.values())
        assert len(self.scheduler.running) <= knobs.rows

    @property
    def busy(self) -> bool:
        """Whether the engine would go on stepping."""
        return bool(self.in_flight) or self.scheduler.has_requests()

    def run(self, most: int = 500) -> list[Round]:
        """Step until idle.

        Args:
            most: turns after which the scheduler counts as hung.

        Returns:
            The rounds that had work.
        """
        before = len(self.rounds)
        for _ in range(most):
            if not self.busy:
                self.check_idle()
                return self.rounds[before:]
            self.step()
        waiting = [request.request_id for request in self.scheduler.waiting]
        raise AssertionError(f"not idle after {most} turns; waiting: {waiting[:10]}")

    def check_idle(self) -> None:
        """Everybody was answered and nothing is left behind."""
        for request_id in self.sent:
            assert self.finished(request_id) or request_id in self.aborted, (
                f"{request_id} was lost"
            )
        scheduler = self.scheduler
        assert not scheduler.requests
        assert not scheduler.running
        assert len(scheduler.waiting) == 0
        assert scheduler.get_request_counts() == (0, 0)
        assert self._pool.get_num_free_blocks() == self._free_at_start
        in_use = [b for b in self._pool.blocks if b.ref_cnt and not b.is_null]
        assert not in_use, f"blocks still referenced: {in_use[:5]}"
        for name, leftover in self._bookkeeping():
            assert not leftover, f"{name} still holds {leftover}"

    def _bookkeeping(self) -> Iterator[tuple[str, Any]]:
        """What must be empty when no request is in the scheduler."""
        for single in self.scheduler.kv_cache_manager.coordinator.single_type_managers:
            for name in (
                "req_to_blocks",
                "num_cached_block",
                "_partial_hit_reqs",
                "_pending_cow_copies",
                "last_state_block_idx",
                "_allocated_block_reqs",
                "_checkpoints",
                "_producer_partial_tail_reqs",
            ):
                yield name, getattr(single, name, None)
        yield "deferred_waiting", self.scheduler.deferred_waiting
        if not self.scheduler.knobs.native:
            yield "_hints", self.scheduler._hints
            yield "_stops", len(self.scheduler._stops)
            if self.scheduler._planner is not None:
                planner = self.scheduler._planner
                yield "tree", len(planner.tree)
                yield "tree root", planner.tree.root.waiting
                yield "_unplanned", planner._unplanned
                yield "_prefilling", planner._prefilling
            yield "traces", self.scheduler.log.traces
            yield "_gate", len(self.scheduler.gate)
            yield "_fence", len(self.scheduler._fence)
            yield "waiting", list(self.scheduler.waiting)
            if isinstance(self.scheduler.waiting, PrefixQueue):
                yield "_position", self.scheduler.waiting._position
                yield "_bucket_of", self.scheduler.waiting._bucket_of
                yield "blocked", self.scheduler.waiting.blocked

    # -- what was computed -------------------------------------------------

    def cached_tokens(self, request_id: str) -> int:
        """Prompt tokens that the request read from the cache when it was admitted."""
        return next(
            round_.hits[request_id]
            for round_ in self.rounds
            if request_id in round_.hits
        )

    def rounds_of(self, request_id: str) -> list[int]:
        """Indices of the rounds in which the request was selected."""
        return [
            index
            for index, round_ in enumerate(self.rounds)
            if request_id in round_.scheduled
        ]


def _blocks_of(output: SchedulerOutput) -> dict[str, Any]:
    cached = output.scheduled_cached_reqs
    return {
        **{new.req_id: new.block_ids for new in output.scheduled_new_reqs},
        **dict(zip(cached.req_ids, cached.new_block_ids, strict=True)),
    }
