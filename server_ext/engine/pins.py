"""Keep checkpoints that waiting requests will resume from out of reach of eviction.

On a small cache a full batch would push out the very checkpoint that its siblings wait
for.  A pin holds a reference to the blocks of a hit until nobody waits behind it; all
pins together hold at most a share of the pool, and give way before anybody starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from server_ext.policy.tree import Point

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

__all__ = ["Pins"]

MAX_SHARE = 0.25
"""Share of the pool's blocks that pins may hold."""


class Pins:
    """References to the blocks of published points.

    Invariant: a pinned block is referenced once for each pin, as a request would; its
    content stays, since only the request that owns a block writes to it.

    Args:
        pool: vLLM's block pool.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._max_blocks = int(pool.num_gpu_blocks * MAX_SHARE)
        self._blocks: dict[Point, list[KVCacheBlock]] = {}
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def pin(self, point: Point, groups: Sequence[Sequence[KVCacheBlock]]) -> None:
        """Pin the blocks of a hit that ends at `point`, if they fit the share.

        Args:
            point: a published point with waiting requests.
            groups: the hit's blocks for each cache group.
        """
        if point in self._blocks:
            return
        blocks = [block for group in groups for block in group if not block.is_null]
        if self._held + len(blocks) > self._max_blocks:
            return
        self._pool.touch(blocks)
        self._blocks[point] = blocks
        self._held += len(blocks)

    def release_unneeded(self) -> None:
        """Let go of points behind which nobody waits any more."""
        for point in [p for p in self._blocks if not p.waiting or not p.published]:
            self._release(point)

    def release_all(self) -> bool:
        """Let go of every pin.

        Returns:
            Whether there was one.
        """
        had = bool(self._blocks)
        for point in list(self._blocks):
            self._release(point)
        return had

    def _release(self, point: Point) -> None:
        blocks = self._blocks.pop(point)
        self._held -= len(blocks)
        self._pool.free_blocks(reversed(blocks))
