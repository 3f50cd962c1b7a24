"""vLLM's real scheduler and cache manager for a model card, without a model.

A request here has a length and block keys, but no tokens: keys are made from the names
of the segments that a block covers, so two prompts have equal keys exactly where a
trace says they are equal.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from server_ext.demo import CHECKPOINT
from server_ext.engine import block_copy
from server_ext.engine.scheduler import RadixFlowScheduler
from server_ext.policy.config import Policy
from server_ext.policy.hints import TRIM_ROWS, VERSION, Hints
from server_ext.replay.cards import Card
from server_ext.replay.keys import key
from server_ext.replay.policies import MATCH_UNIT, Arm

__all__ = [
    "Shape",
    "cache_layout",
    "make_native_scheduler",
    "make_request",
    "make_scheduler",
    "make_served_scheduler",
    "model_output",
    "scaled",
    "wire",
]

_SAMPLED = [1]


@functools.cache
def _shared_config() -> VllmConfig:
    """One configuration for the process; making it takes seconds."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    init_none_hash(sha256)
    block_copy.install()
    return EngineArgs(
        model=str(CHECKPOINT),
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        max_model_len=8192,
        max_num_batched_tokens=8192,
        max_num_seqs=16,
        dtype="bfloat16",
        kv_cache_memory_bytes=1 << 28,
    ).create_engine_config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All that a scheduler knows of a model and its memory.

    Attributes:
        block_size: tokens of a cache block.
        unit: tokens between two boundaries that a hit can land on.
        recurrent_groups: recurrent cache groups beside the attention's, 0 for none.
        blocks: blocks of the pool.
        max_model_len: longest prompt.
        token_budget: maximum tokens of a round.
        rows: maximum requests of a round (its slots).
        retention: tokens between states that are kept without need; 0, vLLM's default,
            keeps none, None all (``prefix_cache_retention_interval``).
        checkpoint_alignment: for layers that save a checkpoint inside a prompt's last
            chunk (Mamba2; Qwen3.5 on Hopper with 0.33.0): the multiple of tokens at
            which they can; None for layers that save none.
    """

    block_size: int
    unit: int
    recurrent_groups: int
    blocks: int
    max_model_len: int
    token_budget: int
    rows: int
    retention: int | None = 0
    checkpoint_alignment: int | None = None

    @classmethod
    def of(cls, card: Card, *, fine: bool) -> Shape:
        """The shape of a card; `fine`: hits may land on every 16th token."""
        layout = card.layout
        return cls(
            block_size=layout.block_size,
            unit=MATCH_UNIT if fine and layout.recurrent else layout.block_size,
            recurrent_groups=layout.recurrent_groups,
            blocks=card.num_blocks,
            max_model_len=card.max_model_len,
            token_budget=card.token_budget,
            rows=card.rows,
        )


def scaled(base: VllmConfig, shape: Shape, *, asynchronous: bool) -> VllmConfig:
    """A copy of a configuration, with the bounds of a shape."""
    config = copy.copy(base)
    cache = config.cache_config = copy.copy(config.cache_config)
    cache.block_size = shape.block_size
    cache.num_gpu_blocks = shape.blocks
    model = config.model_config = copy.copy(config.model_config)
    model.max_model_len = shape.max_model_len
    scheduler = config.scheduler_config = copy.copy(config.scheduler_config)
    scheduler.max_model_len = shape.max_model_len
    scheduler.max_num_batched_tokens = shape.token_budget
    scheduler.max_num_scheduled_tokens = shape.token_budget
    scheduler.max_num_seqs = shape.rows
    scheduler.async_scheduling = asynchronous
    return config


def cache_layout(shape: Shape, *, mode: str = "align") -> KVCacheConfig:
    """Cache groups; the sizes of heads and states do not matter to a scheduler.

    Args:
        shape: how many, of what blocks.
        mode: vLLM's ``mamba_cache_mode``.
    """
    attention = FullAttentionSpec(
        block_size=shape.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    recurrent = MambaSpec(
        block_size=shape.block_size,
        shapes=((1,), (1,)),
        dtypes=(torch.bfloat16, torch.float32),
        mamba_cache_mode=mode,
        page_size_padded=attention.page_size_bytes,
        num_prefill_checkpoint_blocks=int(shape.checkpoint_alignment is not None),
        prefill_checkpoint_alignment=shape.checkpoint_alignment,
    )
    groups = [KVCacheGroupSpec(["attention"], attention)]
    groups += [
        KVCacheGroupSpec([f"recurrent{index}"], recurrent)
        for index in range(shape.recurrent_groups)
    ]
    return KVCacheConfig(
        num_blocks=shape.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=shape.retention,
    )


def make_scheduler(
    card: Card, arm: Arm, *, asynchronous: bool = False
) -> RadixFlowScheduler:
    """The scheduler of one arm on one card, with an empty cache.

    Args:
        card: model, memory and bounds.
        arm: policy and match unit.
        asynchronous: plan a round while the last one runs.
    """
    shape = Shape.of(card, fine=arm.fine)
    policy = arm.policy.on("cuda", card.layout.body_weights / 1e9)
    if arm.calibrated:
        row_tokens, round_tokens = card.cost.in_tokens
        policy = replace(policy, row_tokens=row_tokens, round_tokens=round_tokens)
    return make_served_scheduler(shape, policy, asynchronous=asynchronous)


def make_served_scheduler(
    shape: Shape, policy: Policy, *, asynchronous: bool = False
) -> RadixFlowScheduler:
    """The scheduler of a server of this shape, with an empty cache."""
    scheduler = RadixFlowScheduler(**_parts(shape, asynchronous=asynchronous))
    scheduler.adopt(policy)
    return scheduler


def make_native_scheduler(card: Card, *, fine: bool) -> AsyncScheduler:
    """vLLM's own scheduler on a card, to be measured beside ours.

    Args:
        card: model, memory and bounds.
        fine: hits may land on every 16th token.
    """
    return AsyncScheduler(**_parts(Shape.of(card, fine=fine), asynchronous=False))


def _parts(shape: Shape, *, asynchronous: bool) -> dict[str, Any]:
    config = scaled(_shared_config(), shape, asynchronous=asynchronous)
    config.additional_config = {"radixflow": {"policy": "radix"}}
    return {
        "vllm_config": config,
        "kv_cache_config": cache_layout(shape),
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": shape.block_size,
        "hash_block_size": shape.unit,
        "log_stats": False,
    }


class _Hasher:
    """Hands vLLM the keys of one request, a generated token's block included."""

    __slots__ = ("_keys", "_name", "_unit")

    def __init__(self, keys: tuple[bytes, ...], name: str, unit: int) -> None:
        self._keys = keys
        self._name = name
        self._unit = unit

    def __call__(self, request: Request) -> list[Any]:
        known = len(request.block_hashes)
        wanted = request.num_tokens // self._unit
        if known >= wanted:
            return []
        keys = list(self._keys[known:wanted])
        beyond = range(known + len(keys), wanted)
        return [*keys, *(key("", self._name, index) for index in beyond)]


def wire(hints: Hints) -> dict[str, Any]:
    """Hints as the endpoint writes them into ``SamplingParams.extra_args``."""
    return {
        "radixflow_v": VERSION,
        "radixflow_group": hints.group,
        "radixflow_role": hints.role,
        "radixflow_branches": hints.branches,
        "radixflow_boundaries": list(hints.boundaries),
        "radixflow_scored_from": hints.scored_from,
        **(TRIM_ROWS if hints.trim_rows else {}),
    }


_PLAIN = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)


def make_request(
    name: str,
    tokens: int,
    keys: tuple[bytes, ...],
    unit: int,
    *,
    arrival: float,
    extra_args: Mapping[str, Any] | None = None,
    reads_cache: bool = True,
) -> Request:
    """A request of `tokens` prompt tokens that generates one token.

    Args:
        name: its id.
        tokens: length of the prompt; the tokens themselves are zeros.
        keys: its block keys.
        unit: tokens between two keys.
        arrival: when it arrived.
        extra_args: hints.
        reads_cache: whether it may resume from the prefix cache.
    """
    params = _PLAIN
    if extra_args is not None or not reads_cache:
        params = copy.copy(_PLAIN)
        params.extra_args = None if extra_args is None else dict(extra_args)
        params.skip_reading_prefix_cache = not reads_cache
    return Request(
        request_id=name,
        prompt_token_ids=[0] * tokens,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival,
        block_hasher=_Hasher(keys, name, unit),
    )


def model_output(
    scheduler: RadixFlowScheduler, planned: SchedulerOutput
) -> ModelRunnerOutput:
    """What a model would return: one token for each prompt that is computed."""
    names = list(planned.num_scheduled_tokens)
    requests = scheduler.requests
    sampled = []
    for name in names:
        request = requests[name]
        computed = request.num_computed_tokens >= request.num_prompt_tokens
        sampled.append(_SAMPLED if computed else [])
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=sampled,
    )
