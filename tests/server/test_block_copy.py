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


def test_a_wave_has_at_most_so_many_copies() -> None:
    copies = [(1, 2), (3, 4), (5, 6), (6, 7), (8, 9)]
    assert waves(copies, 2) == [copies[:2], copies[2:3], copies[3:]]
    assert waves(copies, 1) == [[copy] for copy in copies]
    assert waves([], 1) == [[]]


_copies = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(_copies, st.none() | st.integers(1, 4))
def test_waves_are_the_copies_in_order(
    copies: list[tuple[int, int]], most: int | None
) -> None:
    one_by_one = list(range(6))
    for source, destination in copies:
        one_by_one[destination] = one_by_one[source]
    at_once = list(range(6))
    for wave in waves(copies, most):
        before = list(at_once)
        for source, destination in wave:
            at_once[destination] = before[source]
    assert at_once == one_by_one
    assert [copy for wave in waves(copies, most) for copy in wave] == copies


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

    # Another test of this process may have patched it already.
    monkeypatch.setattr(utils, NATIVE, inspect.unwrap(getattr(utils, NATIVE)))


@pytest.mark.usefixtures("native")
def test_the_native_copy_cuts_blocks_off() -> None:
    """When this fails, vLLM has fixed it, and `block_copy` can go for that version."""
    assert not block_copy.copies_whole_blocks()
    after, before = copied([(1, 4)])
    assert after[4][:SMALL] == before[1][:SMALL]
    assert after[4][SMALL:] == before[4][SMALL:]


@pytest.mark.usefixtures("native")
def test_the_patched_copy_takes_whole_blocks() -> None:
    block_copy.install()
    assert block_copy.copies_whole_blocks()
    after, before = copied([(1, 4), (4, 5), (2, 0)])
    assert after == [before[2], *before[1:4], before[1], before[1], before[6]]


@pytest.mark.usefixtures("native")
def test_patching_twice_is_patching_once() -> None:
    from vllm.v1.worker import utils

    block_copy.install()
    patched = getattr(utils, NATIVE)
    block_copy.install()
    assert getattr(utils, NATIVE) is patched
    after, before = copied([])
    assert after == before


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_wave_gathers_a_bounded_number_of_bytes(
    interleaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 consumers of a 9B model would gather 2.3 GB at once."""
    torch = pytest.importorskip("torch")
    from vllm.v1.worker import utils

    layers, page = 3, 8
    memory = torch.arange(layers * BLOCKS * page, dtype=torch.float32)
    if interleaved:  # a block of all layers, then the next block
        views = [*memory.view(BLOCKS, layers, page).unbind(1)]
    else:  # all blocks of a layer, then the next layer
        views = [*memory.view(layers, BLOCKS, page)]
    before = [view.clone() for view in views]
    gathered: list[int] = []
    stock = getattr(utils, NATIVE)

    def counting(caches: Any, blocks: int, copies: Sequence[Any]) -> None:
        size = page * layers if interleaved else page
        gathered.append(4 * size * len(copies))
        stock(caches, blocks, copies)

    monkeypatch.setattr(utils, NATIVE, counting)
    block_copy.install()
    copies = [(0, 3), (1, 4), (2, 5)]
    limit = 2 * 4 * page * (layers if interleaved else 1)
    monkeypatch.setattr(block_copy, "MAX_WAVE_BYTES", limit)
    getattr(utils, NATIVE)(views, BLOCKS, copies)
    assert gathered == [limit, limit // 2]
    monkeypatch.setattr(block_copy, "MAX_WAVE_BYTES", 1)
    getattr(utils, NATIVE)(views, BLOCKS, copies)
    assert len(gathered) == 2 + len(copies)
    for view, was in zip(views, before, strict=True):
        assert torch.equal(view[3:], was[:3])
