"""The patched block copy on every cache layout that vLLM's allocator resolves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker import utils

from server_ext.engine import block_copy

_MODULE = "vllm.v1.core.kv_cache_planning"
PLANNING = import_module(_MODULE) if find_spec(_MODULE) else kv_cache_utils
"""Where the allocator is: in a module of its own since 0.33.0."""
NATIVE = "copy_kv_cache_blocks_inplace"
BLOCKS, LAYERS, RECURRENT_GROUPS = 7, 3, 3
COPIES = [KVCacheBlockCopy(1, 4), KVCacheBlockCopy(4, 5), KVCacheBlockCopy(2, 6)]
SOURCE = {4: 1, 5: 1, 6: 2}
"""What each copied block holds in the end: the second copy reads the first."""

ATTENTION: dict[str, KVCacheSpec] = {
    "bf16": FullAttentionSpec(
        block_size=64, num_kv_heads=2, head_size=32, dtype=torch.bfloat16
    ),
    "bf16, one head": FullAttentionSpec(
        block_size=96, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    ),
    "one byte": FullAttentionSpec(
        block_size=64, num_kv_heads=2, head_size=32, dtype=torch.uint8
    ),
    "MLA": MLAAttentionSpec(
        block_size=128, num_kv_heads=1, head_size=72, dtype=torch.bfloat16
    ),
}
LAYOUTS = [layout for layout in KVCacheLayout if layout.is_block_compact]


def allocate(attention: Any, layout: KVCacheLayout, kernel_block: int) -> Any:
    """The views of vLLM's allocator for one attention and three recurrent groups."""
    recurrent = MambaSpec(
        block_size=attention.block_size,
        shapes=((3, 16), (2, 8, 8)),
        dtypes=(torch.bfloat16, torch.float32),
        mamba_cache_mode="align",
        page_size_padded=attention.page_size_bytes,
    )
    groups = [KVCacheGroupSpec([f"a{i}" for i in range(LAYERS)], attention)]
    groups += [
        KVCacheGroupSpec([f"m{group}{i}" for i in range(LAYERS)], recurrent)
        for group in range(RECURRENT_GROUPS)
    ]
    cache = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: layout,
        num_gpu_blocks_override=BLOCKS,
        prefix_cache_retention_interval=None,
    )
    vllm_config = SimpleNamespace(
        cache_config=cache, attention_config=SimpleNamespace(hisparse_config=None)
    )
    config = PLANNING.get_kv_cache_config_from_groups(vllm_config, groups, 1 << 40)
    assert config.num_blocks == BLOCKS
    kernels = [kernel_block] + [recurrent.block_size] * RECURRENT_GROUPS
    return utils.allocate_kv_cache(config, torch.device("cpu"), layout, kernels)


def cases() -> Iterator[Any]:
    for name, attention in ATTENTION.items():
        for layout in LAYOUTS:
            for kernel in (attention.block_size, 32, 16):
                case = f"{name}, {layout.name}, kernel block {kernel}"
                try:
                    allocate(attention, layout, kernel)
                except (ValueError, AssertionError):
                    continue  # vLLM refuses the combination
                yield pytest.param(attention, layout, kernel, id=case)


def wrong_blocks(attention: Any, layout: KVCacheLayout, kernel: int) -> int:
    """Blocks of all views that do not hold what they should after `COPIES`.

    Both orders of views are tried: vLLM takes each base address once.
    """
    wrong = 0
    for recurrent_first in (False, True):
        caches = allocate(attention, layout, kernel)
        memory = torch.empty(0, dtype=torch.uint8)
        memory.set_(next(iter(caches.values())).untyped_storage())
        memory.random_(generator=torch.Generator().manual_seed(1))
        blocks = {
            name: view.unflatten(0, (BLOCKS, -1)) for name, view in caches.items()
        }
        before = {name: _bytes(view) for name, view in blocks.items()}
        names = sorted(caches, key=lambda name: (name[0] == "a") is recurrent_first)
        copy = getattr(utils, NATIVE)
        copy([caches[name] for name in names], BLOCKS, COPIES)
        for name, view in blocks.items():
            after = _bytes(view)
            for block in range(BLOCKS):
                source = SOURCE.get(block, block)
                wrong += not torch.equal(after[block], before[name][source])
    return wrong


def _bytes(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.uint8).reshape(BLOCKS, -1).clone()


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, NATIVE, inspect.unwrap(getattr(utils, NATIVE)))


CASES = list(cases())


def test_most_combinations_resolve() -> None:
    assert len(CASES) >= 20
    assert {case.values[1] for case in CASES} >= {KVCacheLayout.LBNHC}


@pytest.mark.parametrize(("attention", "layout", "kernel"), CASES)
def test_whole_blocks_are_copied_in_order(
    attention: Any, layout: KVCacheLayout, kernel: int
) -> None:
    assert wrong_blocks(attention, layout, kernel)  # vLLM's own copy
    block_copy.install()
    assert not wrong_blocks(attention, layout, kernel)
