"""One round on a random state: the properties that state-ready traversal promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.request import Request

from tests.engine.harness import Driver, Round
from tests.engine.loads import Load, driver_for, loads, play

SOME = settings(max_examples=25, deadline=None, database=None, derandomize=True)


def is_blocked(driver: Driver, request: Request) -> bool:
    """Whether the state that the request would resume from is written this round."""
    scheduler = driver.scheduler
    blocks = scheduler._get_local_prefix_cache_hit(request)[0].blocks
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return any(
        isinstance(manager, MambaManager)
        and bool(group)
        and group[-1].block_hash in manager.cached_blocks_this_step
        for manager, group in zip(managers, blocks, strict=True)
    )


@SOME
@given(load=loads(aborts=False))
def test_batch_begins_with_the_prefix_stop_batch(load: Load) -> None:
    """For one fixed state: the same rows in the same order, and perhaps more.

    Feasibility (rows, tokens) is checked by the driver in every round.
    """
    knobs: dict[str, Any] = {
        "preset": "radixflow",  # the paper's traversal: the tree plans other chunks
        "settings": {"admission": "none"},
    }
    ours, prefix_stop = driver_for(load, **knobs), driver_for(load, **knobs)
    for driver in (ours, prefix_stop):
        play(driver, load)
    scheduler = prefix_stop.scheduler
    scheduler.policy_preset = replace(scheduler.policy_preset, traversal=False)
    if not ours.busy:
        return
    batch, shorter = ours.step(), prefix_stop.step()
    assert batch is not None
    assert shorter is not None
    assert list(batch.scheduled.items())[: len(shorter.scheduled)] == list(
        shorter.scheduled.items()
    )
    ours.run()
    prefix_stop.run()


@SOME
@given(load=loads(aborts=False))
def test_no_avoidable_bubble_without_another_stop(load: Load) -> None:
    """Rows and tokens left over: then whoever waits is BLOCKED, or the tokens would cut
    it short (+Frag), or something else (memory) ended the scan at a READY branch.
    """
    driver = driver_for(load)
    scheduler, knobs = driver.scheduler, driver.scheduler.knobs
    visits: list[tuple[str, bool]] = []
    native = scheduler._handle_blocked_waiting_request

    def noting(request: Request) -> bool:
        may_run = bool(native(request))
        visits.append((request.request_id, may_run))
        return may_run

    def check(round_: Round) -> None:
        stopped = visits and visits[-1][1] and visits[-1][0] not in round_.scheduled
        full = round_.running >= knobs.rows or round_.tokens >= knobs.token_budget
        visits.clear()
        if stopped or full:
            return
        waiting = list(scheduler.waiting)
        left = knobs.token_budget - round_.tokens
        ready = [
            r.request_id
            for r in waiting
            if not is_blocked(driver, r)
            and r.num_tokens - scheduler._get_local_prefix_cache_hit(r)[1] <= left
        ]
        assert not ready, f"left out though READY: {ready}"

    scheduler._handle_blocked_waiting_request = noting
    driver.on_plan = check
    play(driver, load)
    driver.run()


@SOME
@given(load=loads(aborts=False))
def test_ready_branches_keep_their_order(load: Load) -> None:
    """Branches admitted in one round are admitted in order of arrival."""
    driver = driver_for(load)
    play(driver, load)
    driver.run()
    place = {request_id: index for index, request_id in enumerate(driver.sent)}
    for round_ in driver.rounds:
        places = [place[request_id] for request_id in round_.hits]
        assert places == sorted(places)


@SOME
@given(load=loads(aborts=False))
def test_every_blocked_branch_is_woken(load: Load) -> None:
    driver = driver_for(load)
    play(driver, load)
    driver.run()
    counters = driver.scheduler.log.counters
    assert counters.woken == counters.blocked


@SOME
@given(load=loads(aborts=False))
def test_counters_add_up(load: Load) -> None:
    driver = driver_for(load)
    play(driver, load)
    driver.run()
    counters = driver.scheduler.snapshot()["counters"]
    admitted = [hit for round_ in driver.rounds for hit in round_.hits.items()]
    assert counters["rounds"] == len(driver.rounds)
    assert counters["rows"] == sum(len(r.scheduled) for r in driver.rounds)
    assert counters["tokens"] == sum(r.tokens for r in driver.rounds)
    assert counters["cached_tokens"] == sum(cached for _, cached in admitted)
    assert len(admitted) == len(driver.sent)
    gauges = driver.scheduler.snapshot()["gauges"]
    assert gauges["running"] == gauges["waiting"] == gauges["parked"] == 0
