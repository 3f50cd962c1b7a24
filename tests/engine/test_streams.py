"""Random streams of groups and chats, with aborts, lies and too little memory.

Every one runs on the shadow memory (no request resumes from a wrong state, no key in
the cache promises one) and ends idle (nobody lost, every block back, no bookkeeping
left): `Driver.run` checks that.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_ext.policy.config import POLICIES
from tests.engine.harness import Driver, make_request, tokens
from tests.engine.loads import Load, driver_for, loads, play
from tests.engine.shadow import WrongState

SOME = settings(max_examples=20, deadline=None, database=None, derandomize=True)
MORE = settings(SOME, max_examples=40)
OURS = ("radixflow", "radixflow+")
FENCES = st.sampled_from(("auto", "on"))
SCARCE = (30, 40, 2000)
"""Block pools; the smallest just holds the longest request of a load."""


@MORE
@given(
    load=loads(blocks=SCARCE),
    preset=st.sampled_from(sorted(POLICIES)),
    asynchronous=st.booleans(),
    settings=st.sampled_from(({}, {"fence": "on"})),
)
def test_every_policy_serves_everybody(
    load: Load, preset: str, asynchronous: bool, settings: dict[str, str]
) -> None:
    driver = driver_for(
        load, preset=preset, asynchronous=asynchronous, settings=settings
    )
    play(driver, load)
    driver.run(3000)


@MORE
@given(load=loads(blocks=SCARCE, lies=True), asynchronous=st.booleans())
def test_lying_hints_change_no_state_and_hold_nobody(
    load: Load, asynchronous: bool
) -> None:
    driver = driver_for(load, asynchronous=asynchronous)
    play(driver, load)
    driver.run(3000)


@MORE
@given(load=loads(blocks=SCARCE), preset=st.sampled_from(OURS), fence=FENCES)
def test_nobody_resumes_from_work_that_was_dropped(
    load: Load, preset: str, fence: str
) -> None:
    """A worker that drops the rounds in flight of requests that end."""
    driver = driver_for(
        load, preset=preset, asynchronous=True, settings={"fence": fence}
    )
    driver.worker.drops_ended = True
    play(driver, load)
    driver.run(3000)


def abort_in_flight(fence: str) -> Driver:
    """Clients go away while the round that computes their document is in flight."""
    driver = Driver.on(asynchronous=True, token_budget=512, settings={"fence": fence})
    driver.worker.drops_ended = True
    document = tokens("document", 1500)
    for turn in range(12):
        for branch in range(3):
            prompt = [*document[: 300 + 100 * turn], *tokens((turn, branch), 20)]
            driver.send(make_request(driver.scheduler, f"{turn}-{branch}", prompt))
        for _ in range(turn % 5):
            driver.step()
        driver.abort(f"{turn}-0", f"{turn - 1}-1")
    driver.run()
    return driver


@pytest.mark.parametrize("fence", ["auto", "on"])
def test_aborts_in_flight_take_back_what_they_published(fence: str) -> None:
    assert abort_in_flight(fence).worker.dropped


def test_without_that_a_key_promises_dropped_work() -> None:
    with pytest.raises(WrongState):
        abort_in_flight("off")


def test_one_device_does_not_wait_for_the_commit() -> None:
    """Consumers of a state run in the round after it, before it is processed."""
    turns = []
    for fence in ("auto", "on"):
        driver = Driver.on(asynchronous=True, settings={"fence": fence})
        document = tokens("document", 1000)
        for branch in range(8):
            prompt = [*document, *tokens(branch, 20)]
            driver.send(make_request(driver.scheduler, f"r{branch}", prompt))
        count = 0
        while driver.busy:
            driver.step()
            count += 1
        turns.append(count)
    assert turns[0] < turns[1]


@SOME
@given(load=loads(blocks=(2000,), priorities=True), asynchronous=st.booleans())
def test_priority_scheduling_works(load: Load, asynchronous: bool) -> None:
    driver = driver_for(load, scheduling="priority", asynchronous=asynchronous)
    play(driver, load)
    driver.run(3000)


@pytest.mark.parametrize("preset", sorted(POLICIES))
def test_streams_do_preempt(preset: str) -> None:
    """The smallest pools are small enough to matter, under every policy."""
    driver = Driver.on(
        block_size=32, num_blocks=26, rows=4, token_budget=256, preset=preset
    )
    for index in range(8):
        prompt = tokens(("chat", index % 3), 60)
        driver.send(make_request(driver.scheduler, f"c{index}", prompt, max_tokens=90))
    driver.run(3000)
    assert driver.preempted


def history(driver: Driver) -> list[Any]:
    """All that a worker gets to see of the schedule."""
    return [(r.scheduled, r.blocks, r.hits) for r in driver.rounds]


@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
@MORE
@given(load=loads(blocks=SCARCE, priorities=True), asynchronous=st.booleans())
def test_radix_is_the_native_schedule_bit_for_bit(
    scheduling: str, load: Load, asynchronous: bool
) -> None:
    """Same rows, tokens, blocks and hits, with hints, aborts and preemptions.

    No prompt rows: a scored branch's hit is cut under every policy, for exactness.
    """
    knobs = {"asynchronous": asynchronous, "scheduling": scheduling}
    native = driver_for(load, native=True, **knobs)
    radix = driver_for(load, preset="radix", **knobs)
    for driver in (native, radix):
        # What vLLM does under memory pressure and priorities is not ours to judge.
        driver.audits = scheduling == "fcfs"
        play(driver, load, likelihood=False)
        driver.run(3000)
    assert history(radix) == history(native)
