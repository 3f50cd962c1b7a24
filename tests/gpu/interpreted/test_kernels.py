"""vLLM's Triton kernels that checkpoints and labels pass, against PyTorch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.mamba.checkpoint import (
    MambaPrefillCheckpointMetadata,
    compute_mamba_prefill_checkpoints,
)
from vllm.model_executor.layers.mamba.kda_checkpoint import (
    FlashKDAPrefillCheckpointExporter,
)
from vllm.v1.attention.backends.utils import NULL_BLOCK_ID
from vllm.v1.worker.gpu.sample.logprob import (
    LogprobTokenIdsState,
    compute_token_logprobs,
    compute_topk_scores,
)
from vllm.v1.worker.mamba_utils import (
    precopy_mamba_align_fused_kernel,
    preprocess_mamba_align_fused_kernel,
)

# --- log-probabilities --------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [1000, 1024, 1118, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_logprobs(vocabulary: int, dtype: torch.dtype) -> None:
    logits = (8 * torch.randn(3, vocabulary)).to(dtype)
    ids = torch.randint(vocabulary, (3, 5))
    ids[:, 0] = vocabulary - 1
    torch.testing.assert_close(
        compute_token_logprobs(logits, ids),
        logits.float().log_softmax(-1).gather(-1, ids),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("top", [0, 3, 6])
def test_label_reads_beside_top_k(top: int) -> None:
    """`_fill_logprob_token_ids_kernel`: given ids of some rows, top k of the others."""
    given = {1: [7, 9, 11, 400], 3: [0]}
    state = LogprobTokenIdsState(4, torch.device("cpu"))
    for index in range(4):
        params = SimpleNamespace(logprob_token_ids=given.get(index))
        state.add_request(index, params)
    state.apply_staged_writes()
    logits = torch.randn(4, 1118)
    sampled = logits.argmax(-1)
    # The rows of a round are in another order than the requests' slots.
    slots = torch.tensor([3, 0, 1, 2], dtype=torch.int32)
    scores = compute_topk_scores(
        logits,
        top,
        sampled,
        logprob_token_ids_state=state,
        expanded_idx_mapping=slots,
        max_per_req_token_ids=4,
    )
    true = logits.log_softmax(-1)
    for row, slot in enumerate(slots.tolist()):
        wanted = given.get(slot, true[row].topk(top).indices.tolist())
        columns = [int(sampled[row]), *wanted]
        ids, values = scores.logprob_token_ids[row], scores.logprobs[row]
        assert ids[: len(columns)].tolist() == columns
        torch.testing.assert_close(
            values[: len(columns)], true[row, columns], atol=1e-5, rtol=0
        )
        assert torch.isneginf(values[len(columns) :]).all()


# --- states that move across blocks -------------------------------------------

BLOCK, GROUPS, BLOCKS = 16, 2, 40
CONV, TEMPORAL = (3, 24), (2, 8, 12)


class States:
    """Recurrent states of two groups, and the metadata that the kernels take.

    A digest of (request, tokens) stands for the state after so many tokens.
    """

    def __init__(self, requests: int) -> None:
        columns = 8
        ids = itertools.count(1)
        self.tables = torch.tensor(
            [
                [[next(ids) for _ in range(columns)] for _ in range(requests)]
                for _ in range(GROUPS)
            ],
            dtype=torch.int32,
        )
        blocks = int(self.tables.max()) + 1
        self.conv = torch.zeros(GROUPS, blocks, *CONV, dtype=torch.bfloat16)
        self.temporal = torch.zeros(GROUPS, blocks, *TEMPORAL, dtype=torch.float32)
        views = [
            (states[group], group, width)
            for group in range(GROUPS)
            for states, width in ((self.conv, CONV[0]), (self.temporal, 0))
        ]
        self.bases = torch.tensor([view.data_ptr() for view, _, _ in views])
        self.strides = torch.tensor(
            [view.stride(0) * view.element_size() for view, _, _ in views]
        )
        self.sizes = torch.tensor(
            [view.element_size() for view, _, _ in views], dtype=torch.int32
        )
        self.inner = torch.tensor(
            [view[0].numel() // (width or 1) for view, _, width in views]
        )
        self.widths = torch.tensor([w for _, _, w in views], dtype=torch.int32)
        self.groups = torch.tensor([g for _, g, _ in views], dtype=torch.int32)
        self.none = torch.zeros(len(views), dtype=torch.int64)
        self.table_pointers = torch.tensor([t.data_ptr() for t in self.tables])
        self.column = torch.full((requests,), -1, dtype=torch.int32)
        self.source = torch.full((requests,), -1, dtype=torch.int32)
        self.bias = torch.zeros(requests, dtype=torch.int32)
        self.accepted = torch.ones(requests, dtype=torch.int32)
        self.computed = torch.zeros(requests, dtype=torch.int32)

    def step(self, counts: dict[int, int]) -> None:
        """Migrate as V2 does before a forward pass, then write the new states."""
        slots = torch.tensor(list(counts), dtype=torch.int32)
        starts = torch.tensor([0, *itertools.accumulate(counts.values())]).int()
        before = {slot: int(self.computed[slot]) for slot in counts}
        preprocess_mamba_align_fused_kernel[(1,)](
            slots,
            self.column,
            self.computed,
            starts,
            self.accepted,
            self.source,
            self.bias,
            len(counts),
            BLOCK_SIZE=8,
            MAMBA_BLOCK_SIZE=BLOCK,
        )
        precopy_mamba_align_fused_kernel[(len(counts), len(self.bases), 2)](
            self.column,
            self.source,
            self.bias,
            self.table_pointers,
            self.tables.stride(1),
            self.bases,
            self.strides,
            self.sizes,
            self.inner,
            self.widths,
            self.groups,
            self.none,
            self.none,
            slots,
            len(counts),
            COPY_BLOCK_SIZE=64,
            CONV_STATE_DIM_FIRST=False,
            TEMPORAL_TILES=2,
        )
        for slot, count in counts.items():
            if before[slot]:
                self.check(slot, before[slot], int(self.column[slot]))
            self.computed[slot] += count
            self.write(slot, int(self.computed[slot]), int(self.column[slot]))

    def _of(self, slot: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * slot + tokens)
        conv = torch.randn(GROUPS, *CONV, generator=generator).bfloat16()
        return conv, torch.randn(GROUPS, *TEMPORAL, generator=generator)

    def write(self, slot: int, tokens: int, column: int) -> None:
        conv, temporal = self._of(slot, tokens)
        for group in range(GROUPS):
            block = int(self.tables[group, slot, column])
            self.conv[group, block] = conv[group]
            self.temporal[group, block] = temporal[group]

    def check(self, slot: int, tokens: int, column: int) -> None:
        """The block of `column` holds the state after `tokens` tokens."""
        conv, temporal = self._of(slot, tokens)
        for group in range(GROUPS):
            block = int(self.tables[group, slot, column])
            assert torch.equal(self.conv[group, block], conv[group])
            assert torch.equal(self.temporal[group, block], temporal[group])


@pytest.mark.parametrize(
    "chunks",
    [
        [16, 16, 5],
        [10, 10, 10, 10],
        [40, 1, 40, 1],
        [15, 1, 1, 15, 1],
        [1, 100],
    ],
    ids=str,
)
def test_a_state_moves_into_the_block_that_a_chunk_ends_in(chunks: list[int]) -> None:
    states = States(3)
    for count in chunks:
        states.step({2: count, 0: 7})
    # What a chunk's end left at a boundary stays there for others.
    total = 0
    for count in chunks:
        total += count
        if total % BLOCK == 0:
            states.check(2, total, total // BLOCK - 1)


def test_a_request_resumes_from_a_copied_checkpoint() -> None:
    """V2 enters a hit's column at admission; the state moves on from there."""
    states = States(2)
    states.step({0: 24})
    # A hit inside a block: the scheduler's copy of block 1 is the new request's own.
    for group in range(GROUPS):
        source, target = states.tables[group, 0, 1], states.tables[group, 1, 1]
        states.conv[group, target] = states.conv[group, source]
        states.temporal[group, target] = states.temporal[group, source]
    states.computed[1], states.column[1] = 24, (24 - 1) // BLOCK
    states._of = lambda slot, tokens, own=states._of: own(  # type: ignore[method-assign,misc]
        0 if tokens == 24 else slot, tokens
    )
    states.step({0: 3, 1: 30})
    states.step({1: 4})


@pytest.mark.parametrize("alignment", [1, 16])
@pytest.mark.parametrize("chunk", [40, 100, 33, 16])
def test_a_checkpoint_inside_a_chunk(alignment: int, chunk: int) -> None:
    """`store_cache_checkpoints_kernel`: what Mamba-like layers export in mid-chunk."""
    lengths, heads, width, state_len = [chunk, 70], 4, 20, 3
    offsets, columns = compute_mamba_prefill_checkpoints(
        lengths,
        lengths,
        hash_block_size=8,
        mamba_block_size=32,
        checkpoint_alignment=alignment,
        drop_eagle_block=False,
        cache_hit_alignment_tokens=8,
    )
    blocks = torch.tensor(
        [1 + at if column >= 0 else NULL_BLOCK_ID for at, column in enumerate(columns)]
    ).int()
    qkv = torch.randn(sum(lengths), width)
    conv = torch.zeros(4, width, state_len)
    recurrent = torch.zeros(4, heads, 6)
    checkpoints = torch.randn(2, heads, 6)
    starts = torch.tensor([0, *itertools.accumulate(lengths)]).int()
    FlashKDAPrefillCheckpointExporter().export(
        MambaPrefillCheckpointMetadata(torch.tensor(offsets).int(), blocks),
        raw_qkv=qkv,
        conv_state=conv,
        recurrent_checkpoint=checkpoints,
        recurrent_state=recurrent,
        cu_seqlens=starts,
    )
    exported = 0
    for row, offset in enumerate(offsets):
        if not offset:
            assert not conv[1 + row].any()
            assert not recurrent[1 + row].any()
            continue
        exported += 1
        assert offset % alignment == 0
        end = int(starts[row]) + offset
        assert torch.equal(conv[1 + row], qkv[end - state_len : end].T)
        assert torch.equal(recurrent[1 + row], checkpoints[row])
    assert exported
    assert not conv[NULL_BLOCK_ID].any()
