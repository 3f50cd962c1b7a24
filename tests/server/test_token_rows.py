"""Rows of given tokens and of the likeliest in one batch, on vLLM's own sampler."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from server_ext.engine import token_rows

READER, CHATS = 1, (0, 2)
TOP = 5


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's own sampler class, and its return after the test."""
    sampler = pytest.importorskip("vllm.v1.sample.sampler").Sampler
    # Another test of this process may have patched it already.
    for name in ("forward", "gather_specific_token_logprobs"):
        monkeypatch.setattr(sampler, name, inspect.unwrap(getattr(sampler, name)))
    # In 0.33.0 a compiled operator, which no CPU wheel has.
    greedy = staticmethod(lambda logits: logits.argmax(-1).view(-1))
    monkeypatch.setattr(sampler, "greedy_sample", greedy)
    return sampler


def sample(sampler: Any, given: list[int], top: int | None) -> tuple[Any, Any, Any]:
    """One step of three greedy requests, `READER` reading `given`.

    Returns:
        Token ids and log-probabilities of each row, and all true log-probabilities.
    """
    import torch

    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    made = sampler()
    made.apply_logits_processors = lambda logits, *rest: logits
    metadata = SimpleNamespace(
        max_num_logprobs=top,
        logprob_token_ids={READER: given},
        all_greedy=True,
        all_random=False,
        temperature=None,
        generators={},
    )
    rows = made(logits=logits, sampling_metadata=metadata).logprobs_tensors
    return rows.logprob_token_ids, rows.logprobs, logits.log_softmax(-1)


def test_the_native_sampler_loses_the_likeliest(sampler: Any) -> None:
    """When this fails, vLLM has fixed it, and `token_rows` can go for that version."""
    ids, _, _ = sample(sampler, [7, 0], TOP)
    assert ids.shape[1] == 3
    assert ids[CHATS[0]].tolist()[1:] == [0, 0]


@pytest.mark.parametrize("given", [[7, 0], [1, 2, 3, 4, 5, 6, 7, 0]], ids=len)
def test_each_row_holds_what_its_request_asked_for(
    sampler: Any, given: list[int]
) -> None:
    token_rows.install()
    ids, logprobs, true = sample(sampler, given, TOP)
    for row in CHATS:
        values, likeliest = true[row].topk(TOP)
        assert ids[row, 0] == true[row].argmax()
        assert ids[row, 1 : TOP + 1].tolist() == likeliest.tolist()
        assert logprobs[row, 1 : TOP + 1].tolist() == pytest.approx(values.tolist())
    read = slice(1, len(given) + 1)
    assert ids[READER, read].tolist() == given
    assert logprobs[READER, read].tolist() == pytest.approx(
        true[READER, given].tolist()
    )


def test_readers_alone_are_left_as_they_are(sampler: Any) -> None:
    before = sample(sampler, [7, 0], None)
    token_rows.install()
    after = sample(sampler, [7, 0], None)
    assert [x.tolist() for x in before] == [x.tolist() for x in after]


def test_patching_twice_is_patching_once(sampler: Any) -> None:
    token_rows.install()
    once = sampler.forward
    token_rows.install()
    assert sampler.forward is once
