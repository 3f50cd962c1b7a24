"""Publish the checkpoints that were planned, at any match unit, and no others.

vLLM publishes a recurrent state at a prompt's last block boundary and last match unit.
Here a chunk may end anywhere, and a state is published exactly where the scheduler
planned a stop.  Three changes of vLLM's cache managers, all per instance; requests that
the scheduler does not plan for, and decoding, stay native.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import (
        FullAttentionManager,
        MambaManager,
    )
    from vllm.v1.request import Request

__all__ = ["PlannedStops", "publish_planned_stops"]


class PlannedStops:
    """Where the current chunk of each planned request ends with a checkpoint.

    A request without an entry is native; an entry of 0 leaves no checkpoint.
    """

    def __init__(self) -> None:
        self._stops: dict[str, int] = {}
        self._published: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._stops)

    def plan(self, request_id: str, stop: int) -> None:
        """The chunk about to be allocated ends at `stop` tokens; 0: anywhere."""
        self._stops[request_id] = stop

    def planned(self, request_id: str) -> int | None:
        """The planned stop in tokens; None for a native request."""
        return self._stops.get(request_id)

    def is_leaf(self, request: Request) -> bool:
        """Whether a request's last planned chunk leaves nothing in the prefix cache."""
        return self._stops.get(request.request_id) == 0

    def publishes(self, request: Request, position: int) -> bool:
        """Whether a checkpoint of exactly `position` tokens is planned now."""
        return position > 0 and self._stops.get(request.request_id) == position

    def note_published(self, request_id: str, position: int) -> None:
        """Attention has a key inside a block for this checkpoint."""
        self._published.setdefault(request_id, []).append(position)

    def published_inside_blocks(self, request_id: str) -> list[int]:
        """Positions whose attention keys may have to be inserted again."""
        return self._published.get(request_id, [])

    def restart(self, request_id: str) -> None:
        """A request was preempted: its blocks are no longer its own."""
        self._published.pop(request_id, None)

    def clear(self) -> None:
        """Another policy is in force, and no request is here."""
        self._stops.clear()
        self._published.clear()

    def forget(self, request_id: str) -> None:
        """A request has left the scheduler."""
        self._stops.pop(request_id, None)
        self._published.pop(request_id, None)


def is_decoding(request: Request) -> bool:
    """Whether the prompt, and any output replayed after a preemption, is computed.

    The same test as in vLLM's ``_mamba_block_aligned_split``: from there on a round
    advances the state by what was generated, and native publication is exact.
    """
    computed = request.num_computed_tokens
    return bool(
        computed >= request.num_prompt_tokens and computed >= request.num_tokens - 1
    )


def publish_planned_stops(manager: KVCacheManager, stops: PlannedStops) -> None:
    """Install planned publication on a scheduler's cache managers.

    Args:
        manager: the scheduler's cache manager, with hits inside a block or without.
        stops: read at every publication.
    """
    from vllm.v1.core.single_type_kv_cache_manager import (
        FullAttentionManager,
        MambaManager,
    )

    # Under vLLM's default retention decoding publishes no state either.
    states_of_outputs = manager.coordinator.retention_interval != 0
    for single in manager.coordinator.single_type_managers:
        if isinstance(single, MambaManager):
            _publish_states(single, stops)
            _read_moved_states_at_once(single, stops)
        elif isinstance(single, FullAttentionManager):
            _keep_keys_inside_blocks(single, stops)
            _withhold_from_leaves(single, stops, states_of_outputs)


def _withhold_from_leaves(
    single: Any, stops: PlannedStops, states_of_outputs: bool
) -> None:
    """A leaf leaves no attention keys: without a state they serve nobody."""
    native = single.cache_blocks

    def cache_blocks(request: Request, *args: Any, **options: Any) -> None:
        if stops.is_leaf(request) and not (states_of_outputs and is_decoding(request)):
            return
        native(request, *args, **options)

    single.cache_blocks = cache_blocks


def _publish_states(single: MambaManager, stops: PlannedStops) -> None:
    """Key the state at a chunk's end where it is planned, and no block it crossed.

    Invariant: a recurrent slot holds the state at the last chunk's end in its block.
    Chunks end anywhere here, so the native key of a full block, which promises the
    state at its boundary, may only be given where a chunk ended on that boundary.
    ``num_cached_block`` moves on past the blocks that were crossed, so that native
    publication, which takes over when decoding begins, never returns to them.
    """
    native = single.cache_blocks
    size, pool = single.block_size, single.block_pool
    group = single.kv_cache_group_id
    # Lets `_cache_partial_tail_block` key the position in `shared_prefix_boundary`;
    # upstream sets it only where EAGLE needs it.
    single.shared_prefix_checkpoint = True

    def cache_blocks(
        request: Request, num_tokens: int, *args: Any, **options: Any
    ) -> None:
        name = request.request_id
        # Where hits end on blocks, vLLM rounds `num_tokens` down: what it would key
        # after the prompt's last chunk is a boundary that the chunk may have crossed.
        decoded = is_decoding(request) and num_tokens > request.num_prompt_tokens
        if stops.planned(name) is None or decoded:
            native(request, num_tokens, *args, **options)
            return
        full, inside = divmod(num_tokens, size)
        publishes = stops.publishes(request, num_tokens)
        known = publishes and pool.get_cached_block(
            request.block_hashes[num_tokens // pool.hash_block_size - 1], [group]
        )
        if known:
            # Its attention keys were lost, and are written in this round: a copy of
            # their block would come too early.
            single.cached_blocks_this_step.add(known[0].block_hash)
        if known or not publishes:
            # A second block under one key would make all its readers wait a round.
            single.num_cached_block[name] = full
            return
        single.num_cached_block[name] = full if inside else full - 1
        boundary = request.shared_prefix_boundary
        request.shared_prefix_boundary = num_tokens if inside else 0
        try:
            native(
                request,
                num_tokens,
                retention_interval=0,
                replay_boundaries=() if inside else (num_tokens,),
            )
        finally:
            request.shared_prefix_boundary = boundary

    single.cache_blocks = cache_blocks


def _read_moved_states_at_once(single: MambaManager, stops: PlannedStops) -> None:
    """Let others read, in the same round, a state that its writer moves aside.

    A request that goes on past a published state inside a block copies that state to
    a block of its own.  Upstream keeps readers out for the round, since its copies run
    all at once; `block_copy` runs dependent copies one after another.
    """
    native = single.allocate_new_blocks
    this_step = single.cached_blocks_this_step

    def allocate_new_blocks(request_id: str, *args: Any, **options: Any) -> Any:
        partial = single._partial_hit_reqs.get(request_id)
        moves = partial is not None and request_id in single._allocated_block_reqs
        planned = stops.planned(request_id) is not None
        key = partial[1].block_hash if moves and planned else None
        blocks_readers = key is not None and key not in this_step
        blocks = native(request_id, *args, **options)
        if blocks_readers:
            this_step.discard(key)
        return blocks

    single.allocate_new_blocks = allocate_new_blocks


def _keep_keys_inside_blocks(single: FullAttentionManager, stops: PlannedStops) -> None:
    """Keep the attention keys of planned stops inside a block.

    vLLM drops a block's key when a longer part of the block, or the whole, gets one.
    The shorter key stays true: a block is only written behind what a key promises.
    """
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    native = single.cache_blocks
    size, pool = single.block_size, single.block_pool
    group = single.kv_cache_group_id

    def cache_blocks(
        request: Request, num_tokens: int, *args: Any, **options: Any
    ) -> None:
        native(request, num_tokens, *args, **options)
        name = request.request_id
        if num_tokens % size and stops.publishes(request, num_tokens):
            stops.note_published(name, num_tokens)
        positions = stops.published_inside_blocks(name)
        for position in tuple(positions):
            block = single.req_to_blocks[name][position // size]
            if not block.is_null:
                prefix = request.block_hashes[position // pool.hash_block_size - 1]
                key = make_block_hash_with_group_id(prefix, group)
                if not pool.cached_block_hash_to_block.contain(key, block.block_id):
                    pool._insert_block_hash(key, block, num_tokens=position)
            if (position // size + 1) * size <= num_tokens:
                positions.remove(position)  # the block is full: its keys stay

    single.cache_blocks = cache_blocks
