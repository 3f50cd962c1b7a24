"""Loads whose prompts form trees, asked of a real server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks._trees import Group, encode
from tests.e2e.served import Answer, Served, body

Tokens = Sequence[float]
"""Log-probabilities of an option's tokens."""
Uncached = dict[str, Tokens]
"""The values of each prompt's option, by the prompt."""


def uncached(server: Served, groups: Iterable[Group]) -> Uncached:
    """What vLLM's own endpoint gives for every option, without the prefix cache."""
    found: Uncached = {}
    for group in groups:
        rows = server.uncached([encode(prompt) for prompt in group.prompts])
        scored = len(encode(group.context)) - 1
        found |= {
            prompt: row[scored:]
            for prompt, row in zip(group.prompts, rows, strict=True)
        }
    return found


def crowd(count: int) -> ThreadPoolExecutor:
    """As many senders as requests, so that all of them arrive together."""
    return ThreadPoolExecutor(count)


def ask(server: Served, group: Group, salt: str) -> Answer:
    """One group through ``/v1/branches``."""
    return server.group(
        document(group), group.options, question=group.question, cache_salt=salt
    )


def document(group: Group) -> dict[str, object]:
    """The document of a group, with the ends of its parts."""
    ends = list(itertools.accumulate(map(len, group.parts[:-1])))
    return {"text": "".join(group.parts)} | ({"boundaries": ends} if ends else {})


def hang_up(server: Served, group: Group, salt: str) -> None:
    """Leave as soon as the group is in the engine."""
    asked = body(
        document(group), group.options, question=group.question, cache_salt=salt
    )
    with server.http.stream("POST", "/v1/branches", json=asked) as answer:
        assert answer.status_code == 200
        next(answer.iter_lines())


def complete(server: Served, prompt: str, salt: str) -> dict[str, float]:
    """The likeliest next tokens, as a client without hints asks for them."""
    answer = server.post(
        {
            "model": "radixflow-demo",
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 5,
            "cache_salt": salt,
        },
        "/v1/completions",
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, float] = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]
    return found


def check(
    groups: Sequence[Group],
    answers: Iterable[Answer],
    expected: Uncached,
    near: Callable[[float], object],
) -> None:
    """Every token of every option is the uncached one."""
    for group, answer in zip(groups, answers, strict=True):
        for prompt, row in zip(group.prompts, answer.rows, strict=True):
            assert row == [near(value) for value in expected[prompt]], prompt[-80:]


def within(nats: float) -> Callable[[float], object]:
    """Equality up to a difference."""
    return lambda value: pytest.approx(value, abs=nats)
