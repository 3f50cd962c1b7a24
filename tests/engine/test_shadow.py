"""The shadow memory itself: it must see the bugs that only real text showed before."""

from __future__ import annotations

from typing import Any

import pytest

from server_ext.engine import publication
from tests.engine.harness import Driver, make_group, make_request, tokens
from tests.engine.shadow import WrongState, all_at_once

DOCUMENT = tokens("document", 200)


def run_groups(driver: Driver, question: int) -> None:
    """Two groups over one document; their branches share a question."""
    shared = tokens("question", question)
    for group in ("first", "second"):
        tails = [[*shared, *tokens((group, branch), 8)] for branch in range(4)]
        driver.send(make_group(driver.scheduler, group, DOCUMENT, tails))
        driver.run()


@pytest.mark.parametrize("question", [40, 150])
def test_mended_copies_and_withheld_blocks_are_exact(question: int) -> None:
    run_groups(Driver.on(block_size=128), question)


def test_copies_all_at_once_are_seen() -> None:
    """A branch copies the block that another one's copy has just filled.

    ``server_ext.engine.block_copy``: where branches share tokens beyond the document
    and publish them, the second copy must see the first one done.
    """
    driver = Driver.on(block_size=128)
    driver.worker.waves = all_at_once
    with pytest.raises(WrongState, match="does not hold"):
        run_groups(driver, question=40)


def test_a_leaf_that_publishes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf runs through a block boundary and so holds another position's state."""
    monkeypatch.setattr(publication, "_publish_states", lambda single, stops: None)
    driver = Driver.on(block_size=128)
    with pytest.raises(WrongState, match="holds the state of"):
        run_groups(driver, question=150)


def test_a_leaf_that_publishes_is_seen_by_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same without the audit: the request that resumes there finds out."""
    monkeypatch.setattr(publication, "_publish_states", lambda single, stops: None)
    driver = Driver.on(block_size=128)
    driver.audits = False
    with pytest.raises(WrongState, match="does not hold the state after"):
        run_groups(driver, question=150)


def lose_a_step(**settings: Any) -> Driver:
    """vllm PR #56525: the step that should write a published state does not run."""
    driver = Driver.on(block_size=128, settings=settings)
    driver.send(make_request(driver.scheduler, "lost", DOCUMENT))
    driver.scheduler.schedule()
    driver.abort("lost")
    driver.send(make_request(driver.scheduler, "retry", DOCUMENT))
    return driver


def test_a_state_that_was_never_written_is_seen() -> None:
    driver = lose_a_step(fence="off")
    with pytest.raises(WrongState):
        driver.run()


def test_what_an_aborted_request_published_is_taken_back() -> None:
    driver = lose_a_step()
    driver.run()
    assert driver.cached_tokens("retry") == 0


def test_a_hit_that_crosses_a_salt_is_seen() -> None:
    driver = Driver.on(block_size=128)
    driver.send(make_request(driver.scheduler, "mine", DOCUMENT, salt="a"))
    driver.run()
    thief = make_request(driver.scheduler, "thief", DOCUMENT, salt="a")
    thief.cache_salt = "b"  # as if the hash had left the salt out
    driver.send(thief)
    with pytest.raises(WrongState):
        driver.run()


def test_a_hit_on_the_first_scored_row_is_seen() -> None:
    driver = Driver.on(block_size=128, native=True)
    driver.worker.caps_hits = True
    group = make_group(driver.scheduler, "g", DOCUMENT, [tokens(1, 60)], scored=40)
    driver.send(group)
    driver.run()
    again = make_group(driver.scheduler, "h", DOCUMENT, [tokens(1, 60)], scored=40)
    driver.send(again)
    with pytest.raises(WrongState, match="first scored token"):
        driver.run()
