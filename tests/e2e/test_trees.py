"""Prompts that share prefixes at several levels score as they do without the cache."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._trees import LOADS, Group, make_load
from tests.e2e.served import Served, fresh_salt
from tests.e2e.trees import (
    Uncached,
    ask,
    check,
    complete,
    crowd,
    hang_up,
    uncached,
    within,
)

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
ROUNDING = {"w4": 0.5}
"""Nats by which bfloat16 moves a token of these shuffled sentences, where the default
of 0.15 is too little.  test_float32.py holds the same loads to 1e-4."""
CORE = ("w2", "w5", "w6")

Made = Callable[[str], tuple[list[Group], Uncached]]


@pytest.fixture(scope="module")
def made(server: Served) -> Made:
    """Each load with its uncached values, asked for once."""
    kept: dict[str, tuple[list[Group], Uncached]] = {}

    def make(name: str) -> tuple[list[Group], Uncached]:
        if name not in kept:
            groups = make_load(name, share=0.15)
            kept[name] = groups, uncached(server, groups)
        return kept[name]

    return make


each_load = pytest.mark.parametrize(
    "load",
    [
        name if name in CORE else pytest.param(name, marks=pytest.mark.slow)
        for name in LOADS
    ],
)


@each_load
def test_cold_warm_and_crowded_groups(server: Served, made: Made, load: str) -> None:
    groups, expected = made(load)
    salt = fresh_salt()
    with crowd(len(groups)) as pool:
        crowded = list(pool.map(lambda group: ask(server, group, salt), groups))
    warm = [ask(server, group, salt) for group in groups]
    cold = fresh_salt()
    in_turn = [ask(server, group, cold) for group in groups]
    assert sum(answer.usage["cached_tokens"] for answer in warm) > 0
    for answers in (crowded, warm, in_turn):
        check(groups, answers, expected, within(ROUNDING.get(load, 0.15)))
    assert server.wait_until_idle() < 5


@each_load
def test_clients_without_hints_beside_groups(
    server: Served, made: Made, load: str
) -> None:
    """Both ways in at once, in one cache; each crowd is the other's prefix."""
    groups, expected = made(load)
    prompts = [prompt for group in groups for prompt in group.prompts]
    alone = [complete(server, prompt, fresh_salt()) for prompt in prompts[::5]]
    salt = fresh_salt()
    with crowd(len(groups) + len(prompts)) as pool:
        plain = pool.map(lambda prompt: complete(server, prompt, salt), prompts)
        scored = list(pool.map(lambda group: ask(server, group, salt), groups))
        read = list(plain)
    check(groups, scored, expected, within(ROUNDING.get(load, 0.15)))
    for seen, wanted in zip(read[::5], alone, strict=True):
        common = seen.keys() & wanted.keys()
        assert common
        for token in common:
            assert seen[token] == pytest.approx(
                wanted[token], abs=ROUNDING.get(load, 0.15)
            )


@each_load
def test_groups_that_leave_take_nobody_with_them(
    server: Served, made: Made, load: str
) -> None:
    """Every second group hangs up while all wait for the same prefixes."""
    groups, expected = made(load)
    salt, chance = fresh_salt(), random.Random(3)
    order = chance.sample(range(len(groups)), len(groups))
    with crowd(len(groups)) as pool:
        going = [
            pool.submit(ask if place % 2 else hang_up, server, groups[place], salt)
            for place in order
        ]
        answers = dict(zip(order, [one.result() for one in going], strict=True))
    stayed = [place for place in order if place % 2]
    check(
        [groups[place] for place in stayed],
        [answers[place] for place in stayed],
        expected,
        within(ROUNDING.get(load, 0.15)),
    )
    # What the others left half computed must serve those who come back.
    again = [ask(server, group, salt) for group in groups]
    check(groups, again, expected, within(ROUNDING.get(load, 0.15)))
    assert server.wait_until_idle() < 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_quick_benchmark_keeps_its_claims() -> None:
    """Tokens, rounds and scores; latency is a matter of what else runs here."""
    name = f"trees_test_{os.getpid()}"
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.trees", "--quick", "--name", name]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=1180, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        claims = json.loads(path.read_text("utf-8"))["claims"]
    finally:
        path.unlink(missing_ok=True)
    missed = [c for c in claims if not c["met"] and "latency" not in c["name"]]
    assert missed == []
