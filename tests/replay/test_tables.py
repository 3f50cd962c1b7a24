"""Figures, their rows, and the tables made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server_ext.replay import tables
from server_ext.replay.figures import End, Figures, Measured
from server_ext.replay.grid import Cell, Result

FIGURES = Figures(
    trace="t",
    engine="synchronous",
    groups=10,
    completed=10,
    rejected=0,
    latency_mean=2.0,
    latency_p50=2.0,
    latency_p95=3.0,
    latency_p99=3.5,
    latency_max=4.0,
    wait_mean=0.5,
    rest_mean=1.5,
    late_mean=0.0,
    late_max=None,
    rounds=40,
    bound=20,
    packed=25,
    row_steps=80,
    tokens=1000,
    prompt_tokens=4000,
    hit_tokens=3000,
    overlap_tokens=100,
    limit=800,
    blocked_visits=3,
    recovered_rows=2,
    lookups=50,
    deferred=1,
    overtakes=0,
    makespan=10.0,
    busy=9.0,
    idle=1.0,
    ends={"rows": End(30, 0, 0.0), "blocked": End(10, 4, 2.5)},
)


def result(arm: str, model: str = "Qwen3.5-9B", **changes: Any) -> Result:
    cell = Cell(model=model, arm=arm)
    return Result(cell, replace(FIGURES, **changes), "", "d", Measured(1.0, 2.5))


def stored(one: Result) -> dict[str, str]:
    """A row as a CSV file gives it back."""
    return {k: "" if v is None else str(v) for k, v in one.as_row().items()}


@pytest.mark.parametrize("changes", [{}, {"ends": {}}, {"latency_mean": None}])
def test_a_row_comes_back(changes: dict[str, Any]) -> None:
    one = result("tree", **changes)
    back = Result.from_row(stored(one))
    assert back.figures is not None
    assert back.figures.bubbles == (None if changes.get("ends") == {} else 4)
    used = {cause: end for cause, end in back.figures.ends.items() if end != End()}
    assert replace(back, figures=replace(back.figures, ends=used)) == one


def test_a_failure_comes_back() -> None:
    one = Result(Cell(model="Qwen3.5-9B", arm="tree"), None, "LookupError: x")
    columns = dict.fromkeys(stored(result("tree")), "")
    assert Result.from_row({**columns, **stored(one)}) == one


def test_policies_are_compared_with_the_harder_baseline() -> None:
    results = [result(tables.BASE), result("tree", latency_mean=1.0, rounds=50)]
    table = tables.comparison(results)
    assert table.head == ("policy", "Qwen3.5-9B")
    assert table.lines == (
        ("`radix-0.33`", "+0.0 % (+0.0 %)"),
        ("`tree`", "-50.0 % (+25.0 %)"),
    )
    assert table.as_markdown().splitlines()[1] == "| --- | --- |"


def test_a_failed_cell_joins_no_pool() -> None:
    failed = Result(Cell(model="Qwen3.5-9B", arm="tree"), None, "LookupError: x")
    table = tables.comparison([result(tables.BASE), failed])
    assert [line[0] for line in table.lines] == ["`radix-0.33`"]


def test_means_are_of_groups_and_not_of_cells() -> None:
    few = replace(FIGURES, completed=1, latency_mean=13.0)
    pool = tables.Pool((FIGURES, few))
    assert pool.mean == pytest.approx((10 * 2.0 + 13.0) / 11)
    assert pool.reuse == 0.75
    assert pool.over_limit == 1.25
    assert pool.over_bound == 2.0


def test_bubbles_stand_under_their_cause() -> None:
    table = tables.bubbles([result("tree")])
    assert table.head == ("policy", "rounds", "bubbles", "blocked", "chunk", "memory")
    assert table.lines == (("`tree`", "40", "4", "4", "0", "0"),)


def test_the_control_joins_no_bubbles_and_missing_ends_give_no_line() -> None:
    assert tables.bubbles([result("tree", model="Qwen3-8B")]).lines == ()
    assert tables.bubbles([result("tree", ends={})]).lines == ()


def test_engines_stand_side_by_side() -> None:
    one = result("tree")
    fenced = replace(one, cell=replace(one.cell, asynchronous=True, fence=True))
    table = tables.fence([one, fenced])
    assert table.lines == (("mixed", "`tree`", "2 (40)", "-", "2 (40)"),)
