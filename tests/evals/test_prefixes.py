"""Where contexts part: in plain texts, and in lm-eval's own few-shot prompts."""

import itertools
from collections import Counter
from typing import Any

import lm_eval
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk.evals.harness import RadixFlowLM
from radixflow_sdk.evals.prefixes import shared_paragraphs, split_contexts
from radixflow_sdk.testing import FakeServer
from server_ext.demo import CHECKPOINT
from tests.evals.tasks.excerpts import load


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["a\n\nb"], [()]),
        (["a\n\nb", "a\n\nc"], [(3,), (3,)]),
        (["a b", "a c"], [(), ()]),  # no paragraph in common
        (["a\n\nWho a?", "b\n\nWho b?"], [(), ()]),
        (["s\n\nd\n\nq", "s\n\nd\n\nr", "s\n\ne"], [(3, 6), (3, 6), (3,)]),
        (["s\n\na", "t\n\nb", "s\n\nc"], [(3,), (), (3,)]),
        (["s\n\n", "s\n\nx"], [(3,), (3,)]),
        (["s\n\nx", "s\n\nx"], [(3,), (3,)]),
    ],
)
def test_paragraphs_that_texts_share(
    texts: list[str], expected: list[tuple[int, ...]]
) -> None:
    assert shared_paragraphs(texts) == expected


@given(st.lists(st.text("ab\n", max_size=12), max_size=8, unique=True))
def test_every_prefix_that_two_share_is_found(texts: list[str]) -> None:
    wanted: list[set[int]] = [set() for _ in texts]
    for (i, one), (j, other) in itertools.combinations(enumerate(texts), 2):
        both = [n for n in range(13) if one[:n] == other[:n] and len(one[:n]) == n]
        breaks = [n for n in both if one[:n].endswith("\n\n")]
        if breaks:
            wanted[i].add(breaks[-1])
            wanted[j].add(breaks[-1])
    assert [set(ends) for ends in shared_paragraphs(texts)] == wanted


def test_prefixes_are_bounded_and_the_longest_are_kept() -> None:
    sessions = ["x\n\n" * count for count in range(1, 101)]
    longest = shared_paragraphs(sessions)[-1]
    assert longest == tuple(range(39 * 3, 100 * 3, 3))


def test_a_context_is_cut_where_its_own_tokens_end() -> None:
    texts = {(1, 2, 9, 5): "ab\n\nq", (1, 2, 9, 6): "ab\n\nr", (7, 5): "q"}
    parts = split_contexts(texts, lambda text: [1, 2, 9, 0])
    assert parts[1, 2, 9, 5] == [(1, 2, 9), (5,)]
    assert parts[7, 5] == [(7, 5)]
    # A token that reaches over the break is left to the rest.
    assert split_contexts(texts, lambda text: [1, 2, 3, 0])[1, 2, 9, 5] == [
        (1, 2),
        (9, 5),
    ]
    # A context that lost its beginning has no part of its own.
    assert split_contexts(texts, lambda text: [3, 0])[1, 2, 9, 5] == [(1, 2, 9, 5)]
    # Nothing remains after a prefix that is the whole context.
    assert split_contexts(texts, lambda text: [1, 2, 9, 5, 0])[1, 2, 9, 5] == [
        (1, 2, 9, 5)
    ]


@pytest.mark.parametrize("shots", [2, 5])
def test_the_shots_of_lm_eval_are_the_first_part(shots: int) -> None:
    task = {
        "task": "shots",
        "custom_dataset": load,
        "dataset_kwargs": {"name": "pubmedqa"},
        "metadata": {"version": 1},
        "output_type": "multiple_choice",
        "test_split": "test",
        "fewshot_split": "test",
        "fewshot_config": {"sampler": "first_n"},
        "description": "Answer the questions.\n\n",
        "doc_to_text": "{{document[:200]}} Question: {{question}}\nAnswer:",
        "doc_to_choice": "options",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }
    server = FakeServer()
    with server.listen_in_thread() as url:
        model = RadixFlowLM(
            url, tokenizer=str(CHECKPOINT), tokenizer_backend="huggingface"
        )
        found: Any = lm_eval.simple_evaluate(
            model=model, tasks=[task], num_fewshot=shots, bootstrap_iters=0
        )
    samples = found["samples"]["shots"]
    contexts = {sample["arguments"][0][0] for sample in samples}
    sent = [request.body["document"] for request in server.requests]
    assert len(sent) == len(contexts) > shots
    whole = {tuple(model.tok_encode(context)) for context in contexts}
    assert {tuple(document["token_ids"]) for document in sent} == whole
    # The examples of most questions are the same, and end where the question begins.
    headers = Counter(c[: c.rindex("\n\n") + 2] for c in contexts)
    [(header, _)] = headers.most_common(1)
    assert header.count("Question:") == shots
    tokens = model.tok_encode(header + "Q")[:-1]
    with_header = [d for d in sent if d["token_ids"][: len(tokens)] == tokens]
    assert len(with_header) >= len(sent) - shots
    for document in with_header:
        assert len(tokens) in document["boundaries"]
