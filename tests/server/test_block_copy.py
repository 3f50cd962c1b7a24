"""The copy behind a partial prefix hit: whole blocks, in order."""

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_ext.engine import block_copy
from server_ext.engine.block_copy import waves

NATIVE = "copy_kv_cache_blocks_inplace"
BLOCKS, PAGE, SMALL = 6, 8, 3


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([(1, 2), (1, 3), (4, 5)], [[(1, 2), (1, 3), (4, 5)]]),
        ([(1, 2), (2, 3)], [[(1, 2)], [(2, 3)]]),
        ([(1, 2), (3, 4), (2, 5), (4, 6)], [[(1, 2), (3, 4)], [(2, 5), (4, 6)]]),
        ([(1, 2), (2, 3), (3, 4)], [[(1, 2)], [(2, 3)], [(3, 4)]]),
        ([(1, 2), (3, 1)], [[(1, 2), (3, 1)]]),
    ],
    ids=["apart", "chain", "two chains", "long chain", "written after it was read"],
)
def test_a_wave_reads_nothing_that_it_writes(
    copies: list[tuple[int, int]], expected: list[list[tuple[int, int]]]
) -> None:
    assert waves(copies) == expected


_copies = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(_copies)
def test_waves_are_the_copies_in_order(copies: list[tuple[int, int]]) -> None:
    one_by_one = list(range(6))
    for source, destination in copies:
        one_by_one[destination] = one_by_one[source]
    at_once = list(range(6))
    for wave in waves(copies):
        before = list(at_once)
        for source, destination in wave:
            at_once[destination] = before[source]
    assert at_once == one_by_one
    assert [copy for wave in waves(copies) for copy in wave] == copies


# --- on vLLM's own function ----------------------------------------------------------


def overlaid() -> tuple[Any, list[Any]]:
    """A cache whose blocks two layers share, the smaller view first; one block over."""
    torch = pytest.importorskip("torch")
    memory = torch.arange((BLOCKS + 1) * PAGE, dtype=torch.float32)
    small = memory.as_strided((BLOCKS, SMALL), (PAGE, 1))
    large = memory.as_strided((BLOCKS, PAGE), (PAGE, 1))
    return memory.view(-1, PAGE), [small, large]


def copied(copies: Sequence[tuple[int, int]]) -> tuple[list[list[float]], Any]:
    """Each block's content after the copies, and the memory as it was."""
    from vllm.v1.worker import utils

    memory, views = overlaid()
    before = memory.clone()
    getattr(utils, NATIVE)(views, BLOCKS, copies)
    return memory.tolist(), before.tolist()


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own copy, and its return after the test."""
    pytest.importorskip("vllm")
    from vllm.v1.worker import utils

    # Another test of this process may have mended it already.
    monkeypatch.setattr(utils, NATIVE, inspect.unwrap(getattr(utils, NATIVE)))


@pytest.mark.usefixtures("native")
def test_the_native_copy_cuts_blocks_off() -> None:
    """When this fails, vLLM has mended it, and `block_copy` can go for that version."""
    assert not block_copy.copies_whole_blocks()
    after, before = copied([(1, 4)])
    assert after[4][:SMALL] == before[1][:SMALL]
    assert after[4][SMALL:] == before[4][SMALL:]


@pytest.mark.usefixtures("native")
def test_the_mended_copy_takes_whole_blocks() -> None:
    block_copy.install()
    assert block_copy.copies_whole_blocks()
    after, before = copied([(1, 4), (4, 5), (2, 0)])
    assert after == [before[2], *before[1:4], before[1], before[1], before[6]]


@pytest.mark.usefixtures("native")
def test_mending_twice_is_mending_once() -> None:
    from vllm.v1.worker import utils

    block_copy.install()
    mended = getattr(utils, NATIVE)
    block_copy.install()
    assert getattr(utils, NATIVE) is mended
    after, before = copied([])
    assert after == before
