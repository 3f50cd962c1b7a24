"""What vLLM does besides: it goes on working in the rounds of scored groups."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.e2e.loads import loads
from tests.e2e.served import Answer, Served, body, fresh_salt, rounded

pytestmark = pytest.mark.server


@contextmanager
def scoring(server: Served) -> Iterator[list[list[list[float]]]]:
    """Groups scored over and over while the block runs; their rows afterwards."""
    load, rows = loads()[5], []
    going = True

    def score() -> None:
        while going:
            salt = fresh_salt()
            rows.append(
                server.group(load.document, load.branches, cache_salt=salt).rows
            )

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(score) for _ in range(2)]
        try:
            yield rows
        finally:
            going = False
            for task in tasks:
                task.result(timeout=60)


def test_a_grammar_holds_beside_groups(server: Served) -> None:
    load = loads()[5]
    quiet = server.group(load.document, load.branches, cache_salt=fresh_salt()).rows
    asked = {
        "prompt": "Anna lives in Oslo.\n\nQuestion: Where does Anna live?\nAnswer:",
        "max_tokens": 12,
        "temperature": 0,
        "structured_outputs": {"choice": [" Nowhere at all", " Somewhere else"]},
    }
    with scoring(server) as rows:
        for _ in range(5):
            answer = server.post(asked, "/v1/completions")
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"] in (
                " Nowhere at all",
                " Somewhere else",
            )
    for group in rows:
        for one, two in zip(group, quiet, strict=True):
            assert one == [rounded(value) for value in two]


def test_several_answers_to_one_prompt_beside_groups(server: Served) -> None:
    asked = {
        "prompt": "Anna lives in Oslo.\n\nQuestion: Where does Anna live?\nAnswer:",
        "max_tokens": 8,
        "n": 3,
        "temperature": 1.0,
        "seed": 7,
    }
    alone = server.post(asked, "/v1/completions").json()
    with scoring(server) as rows:
        beside = server.post(asked, "/v1/completions").json()
        while len(rows) < 2:
            time.sleep(0.01)
    assert len(alone["choices"]) == len(beside["choices"]) == 3
    assert all(choice["text"] for choice in beside["choices"])


def test_abort_and_retry_at_once(server: Served) -> None:
    """The retry must not find the key of a state that the abort left unwritten
    (vllm-project/vllm PR #56525), nor half of one.
    """
    load = loads()[-1]
    quiet = server.group(load.document, load.branches, cache_salt=fresh_salt()).rows
    dice = random.Random(0)
    for _ in range(12):
        asked = body(load.document, load.branches, cache_salt=fresh_salt())
        patience = dice.choice([0.005, 0.01, 0.02, 0.04, 0.08, 0.16])
        timeout = httpx.Timeout(30, read=patience)
        with suppress(httpx.TimeoutException):
            server.post(asked, timeout=timeout)
        for _ in range(2):
            retried = Answer.read(server.post(asked).text)
            for one, two in zip(retried.rows, quiet, strict=True):
                assert one == [rounded(value) for value in two]
    server.wait_until_idle()


def test_another_salt_finds_nothing_of_this_one(server: Served) -> None:
    """Neither the same document nor the same group id lets a tenant see another's."""
    load = loads()[-1]
    tenant: dict[str, Any] = {"cache_salt": fresh_salt(), "group_id": "mine"}
    first = server.group(load.document, load.branches, **tenant)
    again = server.group(load.document, load.branches, **tenant)
    stranger = {"cache_salt": fresh_salt(), "group_id": "mine"}
    before = server.counters()["cached_tokens"]
    cold = server.group(load.document, load.branches[:1], **stranger)
    assert cold.cached == [0]
    assert server.counters()["cached_tokens"] == before
    assert all(again.cached)
    assert cold.rows[0] == [rounded(value) for value in first.rows[0]]
