"""Patch for vLLM PR #55112: copy whole blocks, in order, behind a partial prefix hit.

vLLM 0.32.0 and 0.33.0 copy a partly used block before a request writes into it, and
take each base address once.  In a hybrid model an attention layer and a recurrent
layer share a base address, but their views cover different parts of a block.  If the
smaller view comes first, the rest of the block is not copied, and a resumed branch
reads keys and values that are not there.  Scores are then wrong by tenths of a nat,
without an error.  The patch sorts the views, the largest first.

vLLM also runs all copies of a round at once.  If one branch's private block is the
source of the next one's (they share tokens beyond the checkpoint that both resume at),
the second copy must follow the first.  The patch runs such copies in waves.

vLLM gathers all source blocks of a copy into temporary memory.  A consumer copies one
block a cache group, so 256 consumers of a 9B model gather 2.3 GB.  The patch bounds a
wave to `MAX_WAVE_BYTES`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from server_ext.policy.config import ConfigurationError

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_WAVE_BYTES",
    "check",
    "copies_whole_blocks",
    "install",
    "installed",
    "waves",
]

MAX_WAVE_BYTES = 256 * 2**20
"""Maximum temporary memory of one wave of copies."""

_NAME = "copy_kv_cache_blocks_inplace"
_HOME = "vllm.v1.worker.utils"
_IMPORTERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
_MARK = "radixflow_copies_whole_blocks"


def waves(copies: Sequence[Any], max_copies: int | None = None) -> list[list[Any]]:
    """Split copies so that none reads a block that its own wave writes.

    Args:
        copies: (source, destination) block ids in the order they were asked for.
        max_copies: maximum copies of a wave.

    Returns:
        The same copies in the same order, cut where a source was written before.
    """
    result: list[list[Any]] = [[]]
    written: set[int] = set()
    for copy in copies:
        source, destination = copy
        if source in written or len(result[-1]) == max_copies:
            result.append([])
            written.clear()
        result[-1].append(copy)
        written.add(destination)
    return result


def _bytes_covered(view: torch.Tensor) -> int:
    """Bytes of all blocks that the view covers, whatever the stride of a block."""
    return math.prod(view.shape) * view.element_size()


def _bytes_per_copy(views: Sequence[torch.Tensor], num_blocks: int) -> int:
    """Bytes that vLLM gathers for one block: of a view, or of the whole storage."""
    sizes = []
    for view in views:
        storage = view.untyped_storage().nbytes()
        stride = view.stride(0) * view.element_size() * view.shape[0]
        sizes.append(storage if storage == stride else _bytes_covered(view))
    return max(1, max(sizes) // num_blocks)


def install() -> None:
    """Patch the copy in this process; a second call changes nothing."""
    from vllm.v1.worker import utils

    patched = getattr(utils, _NAME)
    if not hasattr(patched, _MARK):
        patched = _patched(patched)
    for module in _users():
        setattr(module, _NAME, patched)


def _patched(native: Any) -> Any:
    @functools.wraps(native)
    def copy_kv_cache_blocks_inplace(
        kv_caches: Iterable[torch.Tensor], num_blocks: int, copies: Sequence[Any]
    ) -> None:
        if not copies:
            return
        views = sorted(kv_caches, key=_bytes_covered, reverse=True)
        max_copies = max(1, MAX_WAVE_BYTES // _bytes_per_copy(views, num_blocks))
        for wave in waves(copies, max_copies):
            native(views, num_blocks, wave)

    setattr(copy_kv_cache_blocks_inplace, _MARK, True)
    return copy_kv_cache_blocks_inplace


def _users() -> list[Any]:
    """The loaded modules that call the copy, by their own name for it."""
    modules = (sys.modules.get(name) for name in (_HOME, *_IMPORTERS))
    return [module for module in modules if hasattr(module, _NAME)]


def copies_whole_blocks() -> bool:
    """Whether every loaded module of this process calls the patched copy."""
    from vllm.v1.worker import utils

    return hasattr(getattr(utils, _NAME), _MARK) and all(
        hasattr(getattr(module, _NAME), _MARK) for module in _users()
    )


installed = copies_whole_blocks


def check() -> None:
    """Hits inside a block are exact only where whole blocks are copied.

    Raises:
        ConfigurationError: the patch is not installed in this process.
    """
    if not copies_whole_blocks():
        raise ConfigurationError(
            "hits inside a block need RadixFlow's general plug-in, which is not "
            "loaded: start with `radixflow serve`, or set VLLM_PLUGINS=radixflow"
        )
