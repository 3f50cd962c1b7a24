"""The core of the end-to-end suite on vLLM's V2 model runner, what a GPU runs.

Triton's interpreter runs its kernels here: the kernels' arithmetic, not their speed or
their memory, and neither CUDA graphs nor a GPU's numerics.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.loads import Load, loads
from tests.e2e.served import Answer, Served, body, fresh_salt, rounded

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

Encode = Callable[[str], list[int]]


def ask(server: Served, load: Load, salt: str) -> Answer:
    return server.group(
        load.document, load.branches, question=load.text_question, cache_salt=salt
    )


def reference(server: Served, load: Load, encode: Encode) -> list[list[float]]:
    context = load.document + load.text_question
    rows = server.uncached([encode(context + branch) for branch in load.branches])
    return [row[len(encode(context)) - 1 :] for row in rows]


def check(answer: Answer, expected: list[list[float]]) -> None:
    for row, others in zip(answer.rows, expected, strict=True):
        assert row == [rounded(value) for value in others]


def test_the_server_runs_v2_with_every_patch(server: Served) -> None:
    engine = server.stats()["engine"]
    assert engine["model_runner"] == "V2"
    assert engine["workers"] == [["block_copy", "token_rows", "prompt_logprobs"]]


@pytest.mark.parametrize(
    "load", [loads()[1], loads()[4]], ids=lambda load: len(load.document)
)
def test_cold_and_warm_groups(
    server: Served, load: Load, salt: str, encode: Encode
) -> None:
    expected = reference(server, load, encode)
    cold, warm = ask(server, load, salt), ask(server, load, salt)
    check(cold, expected)
    check(warm, expected)
    unit = server.stats()["settings"]["match_unit"]
    assert min(warm.cached) >= warm.started["shared_tokens"] - 2 * unit


@pytest.mark.slow
def test_crowded_groups(server: Served, salt: str, encode: Encode) -> None:
    asked = [*loads(0)[:6], *loads(1)[:6]]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda load: ask(server, load, salt), asked))
    for load, answer in zip(asked[::3], answers[::3], strict=True):
        check(answer, reference(server, load, encode))


def test_greedy_tokens_are_told(server: Served, salt: str, encode: Encode) -> None:
    """lm-evaluation-harness asks whether an option is what greedy decoding gives."""
    load = loads()[3]
    context = load.document + load.text_question
    generated = server.post(
        {"prompt": context, "max_tokens": 4, "temperature": 0}, "/v1/completions"
    ).json()["choices"][0]["text"]
    load = Load(load.document, load.question, (generated[1:], *load.options[:2]))
    assert generated.startswith(" ")
    answer = ask(server, load, salt)
    tops = [answer.branches[index]["token_is_top"] for index in range(3)]
    assert all(tops[0])
    for index, row in enumerate(answer.rows):
        assert len(tops[index]) == len(row)
        assert tops[index][0] == math.isclose(row[0], max(r[0] for r in answer.rows))


def test_labels_beside_chats(server: Served, salt: str, encode: Encode) -> None:
    load = loads()[4]
    question = f"\n\nQuestion: {load.question}"
    branches = [f"\nCandidate: {option}\nCorrect:" for option in load.options]

    def chat(seed: int) -> list[dict[str, float]]:
        answer = server.post(
            {
                "prompt": load.document[: 40 + seed],
                "max_tokens": 6,
                "temperature": 0,
                "logprobs": 3,
                "ignore_eos": True,
            },
            "/v1/completions",
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, float]] = answer.json()["choices"][0]["logprobs"][
            "top_logprobs"
        ]
        return found

    with ThreadPoolExecutor(6) as pool:
        chats = [pool.submit(chat, seed) for seed in range(4)]
        answer = server.group(
            load.document,
            branches,
            question=question,
            scoring="label",
            labels=[" yes", " no"],
            cache_salt=salt,
        )
        for found in chats:
            rows = found.result()
            assert len(rows) == 6
            assert all(len(row) >= 3 for row in rows)
            assert all(math.isfinite(v) for row in rows for v in row.values())
    for number, label in enumerate((" yes", " no")):
        prompts = [encode(load.document + question + one) for one in branches]
        rows = server.uncached([prompt + encode(label) for prompt in prompts])
        for row, values in zip(rows, answer.labels, strict=True):
            assert values[number] == rounded(row[-1])


@pytest.mark.slow
def test_aborted_groups_leave_nothing_wrong(server: Served, encode: Encode) -> None:
    load = loads()[5]
    expected = reference(server, load, encode)
    source = random.Random(3)
    for _ in range(4):
        salt = fresh_salt()
        request = body(
            load.document, load.branches, question=load.text_question, cache_salt=salt
        )
        with pytest.raises(httpx.ReadTimeout):
            server.post(request, timeout=source.uniform(0.05, 0.4))
        check(ask(server, load, salt), expected)
    server.wait_until_idle()
