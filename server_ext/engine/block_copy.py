"""Copy whole blocks, in order: two mends for the copy behind a partial prefix hit.

vLLM 0.32.0 and 0.33.0 copy a partly used block aside before a request writes on in it,
and take each base address once.  In a hybrid model an attention layer and a recurrent
layer share a base address, while their views cover different parts of a block: where
the smaller view comes first, the rest of the other's block is not copied, and a
resumed branch reads keys and values that are not there.  Scores are then wrong by
tenths of a nat, without an error (vllm-project/vllm PR #55112, open).

The first mend hands vLLM's own function the views in another order, the largest
first, so that the one it takes covers the block.

vLLM also runs the copies of a round all at once.  Where one branch's private block is
the source of the next one's (they share tokens beyond the state that both resume at),
the second copy must see the first one done.  The second mend runs such copies in waves.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["copies_whole_blocks", "install", "waves"]

_NAME = "copy_kv_cache_blocks_inplace"
_HOME = "vllm.v1.worker.utils"
_IMPORTERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
_MARK = "radixflow_copies_whole_blocks"


def _bytes_per_block(view: torch.Tensor) -> int:
    """Bytes of one block that the view covers, whatever the block's stride."""
    return math.prod(view.shape[1:]) * view.element_size() * view.shape[0]


def waves(copies: Sequence[Any]) -> list[list[Any]]:
    """Split copies so that none reads a block that its own wave writes.

    Args:
        copies: (source, destination) block ids in the order they were asked for.

    Returns:
        The same copies in the same order, cut where a source was written before.
    """
    result: list[list[Any]] = [[]]
    written: set[int] = set()
    for copy in copies:
        source, destination = copy
        if source in written:
            result.append([])
            written.clear()
        result[-1].append(copy)
        written.add(destination)
    return result


def install() -> None:
    """Mend the copy in this process; a second call changes nothing."""
    from vllm.v1.worker import utils

    native = getattr(utils, _NAME)
    if hasattr(native, _MARK):
        return

    @functools.wraps(native)
    def copy_kv_cache_blocks_inplace(
        kv_caches: Iterable[torch.Tensor], num_blocks: int, copies: Sequence[Any]
    ) -> None:
        if not copies:
            return
        ordered = sorted(kv_caches, key=_bytes_per_block, reverse=True)
        for wave in waves(copies):
            native(ordered, num_blocks, wave)

    setattr(copy_kv_cache_blocks_inplace, _MARK, True)
    for module in (_HOME, *_IMPORTERS):
        if module in sys.modules:
            setattr(sys.modules[module], _NAME, copy_kv_cache_blocks_inplace)


def copies_whole_blocks() -> bool:
    """Whether the mend is in this process (and so in the workers it starts)."""
    from vllm.v1.worker import utils

    return hasattr(getattr(utils, _NAME), _MARK)
