"""Random trees of prompts on the shadow worker, every key audited; loads in miniature.

`Driver.run` checks that nobody is lost, that every block comes back and that no
bookkeeping is left; the shadow worker that nobody resumes from a wrong state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from server_ext.policy.tree import PrefixTree
from tests.engine.harness import (
    Driver,
    Knobs,
    hints,
    make_request,
    tokens,
)

# --- random trees ---------------------------------------------------------


def random_knobs(rng: random.Random) -> Knobs:
    """A scheduler with too little of something, more often than not."""
    rows, unit = rng.choice([2, 4, 16]), rng.choice([16, 16, 16, None])
    return Knobs(
        match_unit=unit,
        num_blocks=rng.choice([60, 120, 400, 2000]),
        rows=rows,
        token_budget=max(rng.choice([256, 512, 2048]), 128 + rows),
        asynchronous=rng.random() < 0.5,
        recurrent_groups=rng.choice([1, 3]),
        retention=rng.choice([0, None]),
        scheduling=rng.choice(["fcfs", "fcfs", "fcfs", "priority"]),
        settings={
            "row_tokens": rng.choice([0, 16]),
            "round_tokens": rng.choice([0, 64, 256]),
            "max_deferred": rng.choice([1, 32]),
            "fence": rng.choice(["auto", "on"]),
            "hints": rng.random() < 0.7,
        },
    )


def random_texts(rng: random.Random, seed: int, knobs: Knobs) -> list[list[int]]:
    """Prefixes of one another, none too long for the pool."""
    room = (knobs.num_blocks - 20) * knobs.block_size
    longest = min(900, room // (4 * (1 + knobs.recurrent_groups)))
    texts: list[list[int]] = [[]]
    for index in range(rng.randint(3, 12)):
        base = rng.choice(texts)
        most = longest - len(base)
        if most < 20:
            continue
        length = rng.choice(
            [
                rng.randint(1, min(40, most)),
                rng.randint(16, most),
                16 * rng.randint(1, max(1, min(20, most // 16))),
            ]
        )
        texts.append(base + tokens((seed, index), length))
    return texts


def random_request(
    driver: Driver, rng: random.Random, name: str, prompt: list[int]
) -> Any:
    """A branch with true or false hints, a chat, or a plain completion."""
    extra, scored = None, rng.random() < 0.4
    if scored or rng.random() < 0.2:
        boundaries = {rng.randint(1, len(prompt) + 5) for _ in range(rng.randint(0, 3))}
        extra = hints(
            rng.choice(["consumer", "producer"]),
            group=f"g{len(driver.sent) % 5}",
            branches=rng.randint(1, 6),
            boundaries=sorted(boundaries),
            scored_from=rng.randint(1, len(prompt) - 1) if scored else None,
        )
    adapter = rng.choice([None, None, None, 1])
    return make_request(
        driver.scheduler,
        name,
        prompt,
        extra_args=extra,
        prompt_rows=scored,
        max_tokens=rng.choice([1, 1, 1, 2, 30]),
        salt=rng.choice(["a", "a", "a", "b"]),
        reads_cache=rng.random() < 0.95,
        priority=rng.randint(0, 2),
        arrival=float(len(driver.sent)),
        lora_request=adapter and LoRARequest("adapter", adapter, "/nowhere"),
    )


def play_random_tree(seed: int) -> Driver:
    """Requests over a random tree of texts come, go and are aborted."""
    rng = random.Random(seed)
    knobs = random_knobs(rng)
    driver = Driver.on(knobs)
    # What vLLM leaves behind under memory pressure and priorities is not ours.
    driver.audits = knobs.scheduling == "fcfs" or knobs.num_blocks == 2000
    texts = random_texts(rng, seed, knobs)
    for _ in range(rng.randint(20, 90)):
        for _ in range(rng.randint(1, 8) if rng.random() < 0.6 else 0):
            name = f"r{len(driver.sent)}"
            prompt = rng.choice(texts) + tokens((seed, name), rng.randint(0, 60))
            if len(prompt) > 1:
                driver.send(random_request(driver, rng, name, prompt))
        for _ in range(rng.randint(0, 3)):
            driver.step()
        if driver.sent and rng.random() < 0.3:
            victims = rng.sample(driver.sent, min(len(driver.sent), rng.randint(1, 4)))
            abort = rng.choice([driver.abort, driver.abort_while_running])
            abort(*victims)
        if rng.random() < 0.03 and not driver.busy:
            driver.scheduler.reset_prefix_cache()
    driver.run(6000)
    check_tree(driver.scheduler._planner.tree)
    return driver


def check_tree(tree: PrefixTree) -> None:
    """Nobody is here: points are remembered, and nothing else."""
    stack, count = [tree.root], 0
    while stack:
        point = stack.pop()
        count += 1
        assert (point.waiting, point.ends, point.leader) == (0, 0, None)
        for key, child in point.children.items():
            assert child.parent is point
            assert child.edge.startswith(key)
            assert child.depth > point.depth
            stack.append(child)
    assert tree.points == count - 1


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(seed: int) -> None:
    play_random_tree(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_hundred_random_trees() -> None:
    preempted = aborted = 0
    for seed in range(100, 400):
        driver = play_random_tree(seed)
        preempted += len(driver.preempted)
        aborted += len(driver.aborted)
    assert preempted
    assert aborted


# --- the loads in miniature ---------------------------------------------------------

UNIT = 16
Prompts = list[list[list[int]]]
"""Groups of prompts."""


def long_documents() -> Prompts:
    return [
        [
            tokens(("d", d), 1500) + tokens((d, q), 20) + tokens((d, q, o), 4)
            for q in range(3)
            for o in range(3)
        ]
        for d in range(3)
    ]


def few_shot() -> Prompts:
    shots = tokens("shots", 700)
    return [
        [shots + tokens(("q", q), 60) + tokens((q, o), 5) for o in range(4)]
        for q in range(8)
    ]


def system_prompt() -> Prompts:
    system = tokens("system", 500)
    return [
        [system + tokens(("passage", p), 300) + tokens((p, o), 6) for o in range(4)]
        for p in range(6)
    ]


def rerank() -> Prompts:
    return [
        [tokens(("query", q), 200) + tokens((q, p), 120) for p in range(8)]
        for q in range(4)
    ]


def sessions() -> Prompts:
    return [
        [tokens(("session", s), 150 * turn)[:] + tokens((s, turn), 9) for s in range(5)]
        for turn in range(1, 5)
    ]


def deep_tree() -> Prompts:
    return [
        [
            tokens(("doc", d), 600)
            + tokens(("base", d, b), 150)
            + tokens(("ask", d, b, q), 40)
            + tokens((d, b, q, o), 4)
            for q in range(2)
            for o in range(3)
        ]
        for d in range(3)
        for b in range(3)
    ]


LOADS = [long_documents, few_shot, system_prompt, rerank, sessions, deep_tree]


def limit16(groups: Prompts) -> int:
    """Tokens that full attention with blocks of 16 tokens computes."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for prompt in (prompt for group in groups for prompt in group):
        hit = 0
        for end in range(UNIT, len(prompt), UNIT):
            if tuple(prompt[:end]) not in seen:
                break
            hit = end
        seen |= {tuple(prompt[:end]) for end in range(UNIT, len(prompt) + 1, UNIT)}
        total += len(prompt) - hit
    return total


def together(groups: Prompts) -> Iterator[list[tuple[str, list[int]]]]:
    yield named(groups)


def by_group(groups: Prompts) -> Iterator[list[tuple[str, list[int]]]]:
    for index, group in enumerate(groups):
        yield [(f"{index}-{i}", prompt) for i, prompt in enumerate(group)]


def one_at_a_time(groups: Prompts) -> Iterator[list[tuple[str, list[int]]]]:
    for one in named(groups):
        yield [one]


def named(groups: Prompts) -> list[tuple[str, list[int]]]:
    return [one for group in by_group(groups) for one in group]


def computed(
    groups: Prompts,
    arrivals: Callable[[Prompts], Iterator[list[tuple[str, list[int]]]]],
    *,
    steps: int = 0,
    **knobs: Any,
) -> int:
    """Tokens computed; `steps` between two arrivals, 0 until idle."""
    driver = Driver.on(num_blocks=4000, token_budget=2048, **knobs)
    driver.audits = False
    for arrival in arrivals(groups):
        for name, prompt in arrival:
            driver.send(make_request(driver.scheduler, name, prompt))
        for _ in range(steps):
            driver.step()
        if not steps:
            driver.run(5000)
    driver.run(5000)
    return sum(round_.tokens for round_ in driver.rounds)


@pytest.mark.parametrize("load", LOADS)
def test_all_at_once_computes_what_blocks_of_16_would(
    load: Callable[[], Prompts],
) -> None:
    groups = load()
    assert computed(groups, together) <= 1.02 * limit16(groups)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    ("arrivals", "steps"),
    [(together, 0), (by_group, 0), (by_group, 1), (one_at_a_time, 0)],
    ids=["all at once", "one group after another", "staggered", "one at a time"],
)
def test_no_arrival_computes_more_than_natively(
    load: Callable[[], Prompts],
    arrivals: Callable[[Prompts], Iterator[list[tuple[str, list[int]]]]],
    steps: int,
) -> None:
    groups = load()
    ours = computed(groups, arrivals, steps=steps)
    native = computed(groups, arrivals, steps=steps, native=True)
    assert ours <= native
