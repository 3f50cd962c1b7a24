"""Groups beside other traffic: clients that go away, chat, hints from strangers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.loads import loads
from tests.e2e.served import Answer, Served, body, fresh_salt, rounded

pytestmark = pytest.mark.server


def test_a_client_that_goes_away_aborts_its_branches(server: Served) -> None:
    load = loads()[-1]
    branches = [f" {number} {option}" for number in range(500) for option in "abcd"]
    server.wait_until_idle()
    before = server.counters()["prompt_tokens"]
    asked = body(load.document, branches, cache_salt=fresh_salt())
    with server.http.stream("POST", "/v1/branches", json=asked) as answer:
        lines = answer.iter_lines()
        started = json.loads(next(lines))
        assert json.loads(next(lines))["event"] == "branch.completed"
    server.wait_until_idle()
    admitted = server.counters()["prompt_tokens"] - before
    assert admitted < started["document_tokens"] * len(branches) / 2
    answer_after = server.group(load.document, load.branches)
    assert answer_after.completed["completed"] == 4


def test_a_leader_that_goes_away_leaves_nobody_waiting(server: Served) -> None:
    """The client leaves at once, while the document is being read; another stays."""
    load = loads()[-1]
    salt = fresh_salt()
    with ThreadPoolExecutor(2) as pool:
        with server.http.stream(
            "POST",
            "/v1/branches",
            json=body(load.document, load.branches, cache_salt=salt),
        ) as answer:
            next(answer.iter_lines())
            other = pool.submit(
                server.group, load.document, load.branches, cache_salt=salt
            )
        stayed = other.result(timeout=60)
    quiet = server.group(load.document, load.branches, cache_salt=fresh_salt())
    for one, two in zip(stayed.rows, quiet.rows, strict=True):
        assert one == [rounded(value) for value in two]


def chat(server: Served, tokens: int = 40) -> list[dict[str, Any]]:
    answer = server.post(
        {
            "messages": [{"role": "user", "content": "Anna lives in Oslo.\n\nWhere?"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 5,
        },
        "/v1/chat/completions",
    )
    assert answer.status_code == 200, answer.text
    content: list[dict[str, Any]] = answer.json()["choices"][0]["logprobs"]["content"]
    return content


def labels(server: Served, salt: str) -> Answer:
    load = loads()[4]
    branches = [f"\nCandidate: {number}\nCorrect:" for number in range(200)]
    return server.group(
        load.document,
        branches,
        scoring="label",
        labels=[" yes", " no"],
        cache_salt=salt,
    )


def likelihoods(server: Served, salt: str) -> Answer:
    load = loads()[5]
    return server.group(
        load.document, [f" {number} Port Alma" for number in range(60)], cache_salt=salt
    )


def test_scores_beside_chat_are_the_scores_without(server: Served) -> None:
    quiet = labels(server, fresh_salt()), likelihoods(server, fresh_salt())
    with ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(chat, server) for _ in range(4)]
        label = pool.submit(labels, server, fresh_salt())
        likelihood = pool.submit(likelihoods, server, fresh_salt())
        loud = label.result(), likelihood.result()
        for one in chats:
            assert len(one.result()) == 40
    for before, beside in zip(quiet[0].labels, loud[0].labels, strict=True):
        assert beside == [rounded(value) for value in before]
    for before, beside in zip(quiet[1].rows, loud[1].rows, strict=True):
        assert beside == [rounded(value) for value in before]


def test_chat_beside_labels_keeps_its_top_log_probabilities(server: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(chat, server, 150) for _ in range(4)]
        while not all(one.done() for one in chats):
            labels(server, fresh_salt())
        tokens = [token for one in chats for token in one.result()]
    assert all(len(token["top_logprobs"]) == 5 for token in tokens)
    assert all(token["logprob"] > -9999 for token in tokens)


@pytest.mark.parametrize(
    "hints",
    [
        {"radixflow_v": 1},
        {"radixflow_v": 2, "radixflow_group": "g", "radixflow_role": "consumer"},
        {"radixflow_group": "\n", "radixflow_boundaries": [-1]},
        {"radixflow_x": "y"},
    ],
)
def test_hints_from_strangers_are_counted_and_ignored(
    server: Served, hints: dict[str, Any]
) -> None:
    before = server.counters()["hints_ignored"]
    answer = server.post(complete() | {"vllm_xargs": hints}, "/v1/completions")
    assert answer.status_code == 200
    assert server.counters()["hints_ignored"] == before + 1
    plain = server.post(complete(), "/v1/completions").json()
    assert answer.json()["choices"][0]["text"] == plain["choices"][0]["text"]


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_hints_that_lie_change_no_text(server: Served, role: str) -> None:
    plain = server.post(complete(), "/v1/completions").json()
    for boundaries in ([], [1], [17, 10_000], list(range(1, 65))):
        lie = {
            "radixflow_v": 1,
            "radixflow_group": "g",
            "radixflow_role": role,
            "radixflow_branches": 4096,
            "radixflow_boundaries": boundaries,
            "radixflow_scored_from": 3,
        }
        answer = server.post(complete() | {"vllm_xargs": lie}, "/v1/completions")
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == plain["choices"][0]["text"]


def complete() -> dict[str, Any]:
    return {
        "model": "radixflow-demo",
        "prompt": loads()[5].document,
        "max_tokens": 4,
        "temperature": 0,
        "cache_salt": fresh_salt(),
    }
