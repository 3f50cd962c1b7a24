"""The V2 runner's scores of given prompt tokens, patched and as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.sample import prompt_logprob as home

from server_ext.engine.patches import prompt_logprobs

VOCABULARY, HIDDEN = 1118, 16
CHUNK = 32
"""Maximum rows of a call in these tests; the interpreter takes milliseconds a row."""
HINTS = {
    "radixflow_v": 1,
    "radixflow_group": "g",
    "radixflow_role": "consumer",
    "radixflow_branches": 4,
}


@dataclass
class Asked:
    """One request, and how far it is.

    Attributes:
        name: its id.
        length: prompt tokens.
        start: the first row that is scored.
        ids: token ids of each scored row; rows may differ in length.
        hinted: whether it carries RadixFlow's hints.
        computed: tokens computed so far.
        prefill: tokens to compute before generating, more than `length` if resumed.
    """

    name: str
    length: int
    start: int
    ids: list[list[int]]
    hinted: bool = True
    computed: int = 0
    prefill: int = 0
    hidden: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.prefill = self.prefill or self.length
        generator = torch.Generator().manual_seed(sum(map(ord, self.name)))
        self.hidden = torch.randn(self.prefill + 8, HIDDEN, generator=generator)


class Runner:
    """Plays the model runner on one `PromptLogprobsWorker`."""

    def __init__(self, requests: Sequence[Asked], mode: str = "raw_logprobs") -> None:
        generator = torch.Generator().manual_seed(0)
        self.matrix = torch.randn(HIDDEN, VOCABULARY, generator=generator)
        self.requests = list(requests)
        self.calls: list[int] = []
        self.worker = home.PromptLogprobsWorker(
            len(requests), torch.device("cpu"), mode
        )
        for index, one in enumerate(requests):
            width = max(map(len, one.ids))
            padded = [[*row, *[-1] * (width - len(row))] for row in one.ids]
            params = SamplingParams(extra_args=HINTS if one.hinted else None)
            params.prompt_logprob_token_ids = np.array(padded, dtype=np.int32)
            params.prompt_logprob_start = one.start
            self.worker.add_request(one.name, index, params)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(hidden))
        return hidden @ self.matrix

    def step(self, counts: dict[str, int]) -> dict[str, torch.Tensor]:
        """One round in which the named requests compute so many tokens."""
        index = {one.name: at for at, one in enumerate(self.requests)}
        chosen = [self.requests[index[name]] for name in counts]
        tokens = np.array(list(counts.values()))
        batch = SimpleNamespace(
            req_ids=list(counts),
            idx_mapping_np=np.array([index[name] for name in counts]),
            num_computed_prefill_tokens_np=np.array([one.computed for one in chosen]),
            num_scheduled_tokens=tokens,
            query_start_loc_np=np.concatenate([[0], np.cumsum(tokens)]),
            prefill_len_np=np.array([one.prefill for one in chosen]),
        )
        states = [
            one.hidden[one.computed : one.computed + count]
            for one, count in zip(chosen, tokens.tolist(), strict=True)
        ]
        lengths = np.array([one.length for one in self.requests])
        scores: dict[str, torch.Tensor] = self.worker.compute_prompt_token_id_logprobs(
            self.logits, torch.cat(states), batch, lengths
        )
        for one, count in zip(chosen, tokens.tolist(), strict=True):
            one.computed += count
        return scores

    def true(self, one: Asked) -> torch.Tensor:
        """All log-probabilities of the rows that `one` scores."""
        rows = one.hidden[one.start : one.length - 1] @ self.matrix
        return rows.log_softmax(-1)

    def check(self, one: Asked, scores: torch.Tensor) -> None:
        """`scores` are the true ones, in vLLM's form or with the likeliest beside."""
        true = self.true(one)
        width = max(map(len, one.ids))
        for row, ids in enumerate(one.ids):
            got = scores[row, : len(ids)]
            torch.testing.assert_close(got, true[row, ids], atol=1e-4, rtol=0)
            assert torch.isneginf(scores[row, len(ids) : width]).all()
        assert scores.shape == (len(one.ids), width + one.hinted)
        if one.hinted:
            torch.testing.assert_close(
                scores[:, -1], true.max(-1).values, atol=1e-4, rtol=0
            )


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own methods in small chunks, and their return after the test."""
    worker = home.PromptLogprobsWorker
    assert home.CHUNK_SIZE == 1024
    monkeypatch.setattr(home, "CHUNK_SIZE", CHUNK)
    for name in ("add_request", "compute_prompt_token_id_logprobs"):
        monkeypatch.setattr(worker, name, getattr(worker, name))


@pytest.fixture
def patched(native: None) -> None:
    assert not prompt_logprobs.installed()
    prompt_logprobs.install()
    assert prompt_logprobs.installed()


def branches(count: int, *, length: int = 12, scored: int = 4) -> list[Asked]:
    return [
        Asked(
            f"r{at}",
            length,
            length - 1 - scored,
            [[(at * 7 + row) % VOCABULARY] for row in range(scored)],
        )
        for at in range(count)
    ]


@pytest.mark.usefixtures("native")
def test_the_native_worker_calls_once_a_request() -> None:
    """When this fails, vLLM has changed it, and the patch can go for that version."""
    requests = branches(5)
    runner = Runner(requests)
    runner.step({one.name: one.length for one in requests})
    assert runner.calls == [4] * 5


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("count", [1, 5, 8, 9, 40])
def test_a_round_is_scored_together(count: int) -> None:
    requests = branches(count)
    runner = Runner(requests)
    scores = runner.step({one.name: one.length for one in requests})
    assert len(runner.calls) == -(-4 * count // CHUNK)
    assert max(runner.calls) <= CHUNK
    assert list(scores) == [one.name for one in requests]
    for one in requests:
        runner.check(one, scores[one.name])


@pytest.mark.usefixtures("patched")
def test_what_others_ask_for_stays_as_vllm_gives_it() -> None:
    requests = [
        *branches(3),
        Asked("plain", 20, 4, [[row, row + 1] for row in range(15)], hinted=False),
        Asked("ragged", 9, 5, [[1, 2, 3], [4], [5, 6]], hinted=False),
        Asked("long", 90, 10, [[row] for row in range(79)], hinted=False),
    ]
    runner = Runner(requests)
    scores = runner.step({one.name: one.length for one in requests})
    assert len(runner.calls) == -(-(12 + 15 + 3 + 79) // CHUNK)
    assert max(runner.calls) <= CHUNK
    for one in requests:
        runner.check(one, scores[one.name])


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("chunks", [[30], [3, 27], [10, 10, 10], [12, 17, 1], [29, 1]])
def test_prompts_in_chunks(chunks: list[int]) -> None:
    one = Asked("r", 30, 12, [[row] for row in range(17)])
    chat = Asked("chat", 40, 0, [[row] for row in range(39)], hinted=False)
    runner = Runner([one, chat])
    for number, count in enumerate(chunks, 1):
        scores = runner.step({"chat": 1, "r": count})
        assert ("r" in scores) == (number == len(chunks))
    runner.check(one, scores["r"])
    assert "r" not in runner.worker.token_id_scores
    scores = runner.step({"r": 1, "chat": 40 - len(chunks)})
    assert set(scores) == {"chat"}
    runner.check(chat, scores["chat"])


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_logits_modes(mode: str) -> None:
    [one] = branches(1)
    runner = Runner([one], mode)
    scores = runner.step({one.name: one.length})[one.name]
    logits = one.hidden[one.start : one.length - 1] @ runner.matrix
    wanted = [logits[row, ids[0]] for row, ids in enumerate(one.ids)]
    torch.testing.assert_close(scores[:, 0], torch.stack(wanted))
    torch.testing.assert_close(scores[:, 1], logits.max(-1).values)


@pytest.mark.parametrize("which", ["native", "patched"])
def test_rows_that_a_hit_took_are_dropped(
    which: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(which)
    swallowed, resumed, fine = branches(3)
    swallowed.computed = swallowed.start + 1
    resumed.prefill = resumed.length + 2
    fine.computed = fine.start
    runner = Runner([swallowed, resumed, fine])
    scores = runner.step({"r0": 4, "r1": 12, "r2": 5})
    assert set(scores) == {"r2"}
    assert not runner.worker.token_id_scores
    torch.testing.assert_close(
        scores["r2"][:, 0],
        torch.stack(
            [runner.true(fine)[row, ids[0]] for row, ids in enumerate(fine.ids)]
        ),
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.usefixtures("patched")
def test_a_tie_for_the_top_is_at_the_top() -> None:
    [one] = branches(1)
    runner = Runner([one])
    native_logits = runner.logits

    def tied(hidden: torch.Tensor) -> torch.Tensor:
        logits = native_logits(hidden)
        logits[0, [3, one.ids[0][0], 900]] = logits.max() + 1
        return logits

    runner.logits = tied  # type: ignore[method-assign]
    scores = runner.step({one.name: one.length})[one.name]
    assert (scores[:, 0] >= scores[:, 1]).tolist() == [True, False, False, False]


def test_patching_twice_is_patching_once(patched: None) -> None:
    once = home.PromptLogprobsWorker.add_request
    prompt_logprobs.install()
    assert home.PromptLogprobsWorker.add_request is once
