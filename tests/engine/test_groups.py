"""One cold group, as our endpoint sends it: two rounds, and almost all of it reused."""

from __future__ import annotations

import pytest

from tests.engine.harness import Driver, make_group, make_request, tokens
from tests.engine.loads import TAILS, tails

UNIT = 16
BUDGET = 8192


def lengths(block: int) -> list[int]:
    """Documents just below, at and above a unit, a block and the token budget."""
    edges = (UNIT, 2 * UNIT, block // UNIT * UNIT, block, 3 * block)
    around = {edge + step for edge in edges for step in (-1, 0, 1)}
    return sorted({*around, 40, block // 2 + 3, BUDGET - 1, BUDGET, BUDGET + 1, 20_000})


CASES = [(block, length) for block in (128, 528, 1056) for length in lengths(block)]
QUESTION = tokens("question", 21)


@pytest.mark.parametrize("hinted", [False, True], ids=["no hints", "hints"])
@pytest.mark.parametrize(("block", "length"), CASES)
def test_cold_group_runs_in_two_rounds_and_computes_what_it_shares_once(
    block: int, length: int, hinted: bool
) -> None:
    """vllm#45238: no silent 0 % where the last block boundary is the branch's own."""
    driver = Driver.on(block_size=block, num_blocks=1200, token_budget=BUDGET)
    group = make_group(
        driver.scheduler,
        "g",
        tokens(length, length),
        tails("question", 4, QUESTION),
        scored=3,
        hinted=hinted,
    )
    driver.send(group)
    rounds = driver.run()
    shared = (length + len(QUESTION)) // UNIT * UNIT
    # One more stop at most, on a long edge: prompts of other groups may part there.
    assert 0 <= len(rounds) - (-(-shared // BUDGET) + 1) <= 1
    assert [driver.cached_tokens(f"g-{i}") for i in range(4)] == [0, *[shared] * 3]
    prompts = sum(request.num_prompt_tokens for request in group)
    assert sum(round_.tokens for round_ in rounds) == prompts - 3 * shared


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("kind", TAILS)
def test_branches_that_share_tokens_beyond_the_document(
    kind: str, groups: int, asynchronous: bool
) -> None:
    """Duplicates, prefixes of one another, a shared question longer than a block."""
    for question in (0, 5, 40, 150, 300):
        driver = Driver.on(recurrent_groups=groups, asynchronous=asynchronous)
        shared = tokens("question", question)
        for name in ("cold", "warm"):
            driver.send(
                make_group(
                    driver.scheduler,
                    name,
                    tokens("document", 200),
                    tails(kind, 5, shared),
                    scored=2,
                )
            )
            driver.run()
        assert driver.cached_tokens("warm-0") >= 184


def test_many_branches_fill_the_rows() -> None:
    driver = Driver.on(rows=16)
    branches = [tokens(i, 12) for i in range(47)]
    driver.send(make_group(driver.scheduler, "g", tokens("d", 500), branches))
    rounds = driver.run()
    assert [len(round_.scheduled) for round_ in rounds][-3:] == [16, 16, 15]
    assert len(rounds) <= 5


def test_full_attention_needs_no_checkpoint() -> None:
    """The control: without recurrent groups nobody is BLOCKED and nobody waits."""
    driver = Driver.on(block_size=16, match_unit=16, recurrent_groups=0)
    branches = [tokens(i, 12) for i in range(4)]
    driver.send(make_group(driver.scheduler, "g", tokens("d", 500), branches))
    rounds = driver.run()
    assert len(rounds) == 1
    assert driver.scheduler.log.counters.blocked == 0


@pytest.mark.parametrize("kind", TAILS)
def test_scored_rows_are_all_computed_and_nothing_else_is_handed_over(
    kind: str,
) -> None:
    """Repeats and duplicates hit deep, yet never the row of the first scored token."""
    driver = Driver.on(block_size=64)
    document = tokens("d", 150)
    branches = tails(kind, 4, tokens("question", 70))
    for name in ("once", "twice", "thrice"):
        driver.send(make_group(driver.scheduler, name, document, branches, scored=3))
        driver.run()
        for index, branch in enumerate(branches):
            tensors = driver.answers[f"{name}-{index}"][-1].new_prompt_logprobs_tensors
            prompt = len(document) + len(branch)
            scored_from = prompt - min(3, len(branch))
            # A row's value is its position; memory as it was found would be NaN.
            assert tensors.logprobs.flatten().tolist() == list(
                range(scored_from - 1, prompt - 1)
            )


def test_scored_rows_survive_preemption() -> None:
    """A scored branch that is thrown out half-way is scored in full all the same."""
    preempted = set()
    for pool in range(16, 26):
        driver = Driver.on(
            block_size=32,
            num_blocks=pool,
            rows=4,
            token_budget=63,
            recurrent_groups=1,
        )
        scheduler = driver.scheduler
        for chat in range(2):
            prompt = tokens(("chat", chat), 25)
            driver.send(make_request(scheduler, f"c{chat}", prompt, max_tokens=60))
        driver.step()
        branch = tokens("tail", 200)
        for name in ("once", "twice"):
            driver.send(
                make_group(scheduler, name, tokens("d", 100), [branch], scored=190)
            )
        driver.run(2000)
        preempted |= driver.preempted - {"c0", "c1"}
        for name in ("once-0", "twice-0"):
            tensors = driver.answers[name][-1].new_prompt_logprobs_tensors
            assert tensors.logprobs.flatten().tolist() == list(range(109, 299))
    assert preempted
