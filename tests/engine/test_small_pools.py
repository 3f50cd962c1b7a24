"""The smallest pools that vLLM accepts: every request ends, with the right states."""

import random

import pytest

from server_ext.policy.config import POLICIES, ConfigurationError
from tests.engine.harness import SECOND_RUNNER, Driver, make_group, make_request, tokens

LONGEST = 512
"""Tokens of the longest sequence, prompt and output: four blocks."""


def smallest_pool(groups: int, *, asynchronous: bool = False) -> int:
    """What one sequence takes: its blocks, two a state, the null block."""
    return LONGEST // 128 + 2 * groups + 1 + asynchronous


@pytest.mark.parametrize("spare", range(6))
@pytest.mark.parametrize("unit", [16, None])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("preset", POLICIES)
def test_repeats_and_siblings_of_a_long_prompt_end(
    preset: str, groups: int, unit: int | None, spare: int
) -> None:
    driver = Driver.on(
        preset=preset,
        recurrent_groups=groups,
        match_unit=unit,
        num_blocks=smallest_pool(groups, asynchronous=SECOND_RUNNER) + spare,
        token_budget=LONGEST,
        max_model_len=LONGEST,
    )
    scheduler, prompt = driver.scheduler, tokens("prompt", LONGEST - 1)
    for round_ in range(2):
        driver.send(make_request(scheduler, f"again{round_}", prompt))
        driver.run()
    siblings = [[*prompt[:300], *tokens(tail, 150)] for tail in range(6)]
    driver.send(
        make_request(scheduler, f"sibling{i}", one) for i, one in enumerate(siblings)
    )
    driver.send(make_request(scheduler, f"beside{i}", prompt) for i in range(3))
    driver.run()
    assert set(driver.answers) == set(driver.sent)


@pytest.mark.parametrize("seed", range(24))
def test_random_streams_end(seed: int) -> None:
    chance = random.Random(seed)
    groups, asynchronous = chance.choice((1, 2, 3)), chance.random() < 0.5
    smallest = smallest_pool(groups, asynchronous=asynchronous)
    driver = Driver.on(
        recurrent_groups=groups,
        num_blocks=smallest + chance.randrange(5),
        token_budget=chance.choice((64, 200, LONGEST)),
        rows=chance.choice((1, 4, 16)),
        max_model_len=LONGEST,
        asynchronous=asynchronous,
    )
    documents = [tokens((seed, i), chance.randrange(20, 400)) for i in range(3)]
    for number in range(12):
        document = chance.choice(documents)
        room = LONGEST - 4 - len(document)
        if chance.random() < 0.5:
            tail = tokens((seed, number), chance.randrange(1, room))
            driver.send(
                make_request(
                    driver.scheduler,
                    f"r{number}",
                    [*document, *tail],
                    max_tokens=chance.randrange(1, 4),
                )
            )
        else:
            tails = [tokens((seed, number, i), 5 + i) for i in range(4)]
            driver.send(make_group(driver.scheduler, f"g{number}", document, tails))
        for _ in range(chance.randrange(4)):
            driver.step()
        if chance.random() < 0.2:
            driver.abort(chance.choice(driver.sent))
    driver.run()
    assert set(driver.answers) | driver.aborted == set(driver.sent)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_smaller_pool_is_refused(groups: int, asynchronous: bool) -> None:
    smallest = smallest_pool(groups, asynchronous=asynchronous)
    with pytest.raises(
        ConfigurationError, match=rf"512 tokens takes {smallest}: lower"
    ):
        Driver.on(
            recurrent_groups=groups,
            asynchronous=asynchronous,
            num_blocks=smallest - 1,
            max_model_len=LONGEST,
        )
