"""Float32 workers that say they hold the block-copy patch and lack one half of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm.v1.worker import gpu_model_runner, utils

from server_ext.engine import block_copy
from tests.e2e.float32_worker import Float32Worker

__all__ = ["CopiesAllAtOnce", "CopiesHalfBlocks"]

_NATIVE = inspect.unwrap(utils.copy_kv_cache_blocks_inplace)


def half_blocks(caches: Any, num_blocks: int, copies: Any) -> None:
    """vLLM's own order of views: the smaller one of a shared block may come first."""
    for wave in block_copy.waves(copies):
        _NATIVE(caches, num_blocks, wave)


def all_at_once(caches: Any, num_blocks: int, copies: Any) -> None:
    """Whole blocks, but a copy whose source is copied in the same call is too early."""
    views = sorted(caches, key=block_copy._bytes_covered, reverse=True)
    _NATIVE(views, num_blocks, copies)


class _Broken(Float32Worker):
    copy: Callable[..., None]

    def radixflow_patches(self) -> list[str]:
        names: list[str] = super().radixflow_patches()
        gpu_model_runner.copy_kv_cache_blocks_inplace = type(self).copy
        return names


class CopiesHalfBlocks(_Broken):
    copy = staticmethod(half_blocks)


class CopiesAllAtOnce(_Broken):
    copy = staticmethod(all_at_once)
