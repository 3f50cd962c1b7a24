"""Layers that save a checkpoint inside a prompt's last chunk, as on a GPU.

Mamba2 does so in vLLM 0.32.0 and 0.33.0, Qwen3.5 on Hopper in 0.33.0.  The whole suite
of ``tests/engine`` runs with them under ``RADIXFLOW_TEST_CHECKPOINTS=1`` (or 64).
"""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from tests.engine.harness import Driver, make_group, make_request, tokens
from tests.engine.shadow import WrongState

PRESETS = ["radix", "radixflow", "radixflow+"]


def crowd(driver: Driver) -> None:
    """Groups, repeated and new, beside prompts without hints and one that generates."""
    scheduler = driver.scheduler
    for turn in range(2):
        for number, length in enumerate((90, 300, 513, 1000)):
            document = tokens(number, length)
            tails = [tokens((number, turn, i), 5 + 9 * i) for i in range(4)]
            driver.send(
                make_group(scheduler, f"g{number}-{turn}", document, tails, scored=3)
            )
            plain = [*document, *tokens(("plain", turn), 40)]
            driver.send(make_request(scheduler, f"p{number}-{turn}", plain))
        chat = make_request(scheduler, f"c{turn}", tokens("c", 200), max_tokens=140)
        driver.send(chat)
        driver.run()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_hit_finds_its_own_state(
    preset: str, alignment: int, asynchronous: bool
) -> None:
    driver = Driver.on(
        preset=preset, checkpoint_alignment=alignment, asynchronous=asynchronous
    )
    crowd(driver)
    hits = [hit for one in driver.rounds for hit in one.hits.values()]
    assert sum(hit > 0 for hit in hits) > len(hits) // 2


def test_stock_order_relies_on_them() -> None:
    """The model is needed: vLLM publishes what such a layer must have written."""
    driver = Driver.on(preset="radix", checkpoint_alignment=1)
    driver.worker.checkpoint_alignment = None
    with pytest.raises(WrongState):
        crowd(driver)
    driver = Driver.on(preset="radix", checkpoint_alignment=1)
    crowd(driver)
    assert driver.worker.exported
