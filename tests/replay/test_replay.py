"""The replay lab: real scheduler, virtual time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks.drawn_example import drawn
from server_ext.replay.cards import CARDS, H100
from server_ext.replay.figures import quantile
from server_ext.replay.grid import (
    Cell,
    Folder,
    FolderError,
    capacity,
    make_trace,
    run_cells,
)
from server_ext.replay.keys import Keys, limit
from server_ext.replay.ledger import Ledger, Outcome
from server_ext.replay.policies import ARMS
from server_ext.replay.run import Engine, replay
from server_ext.replay.trace import (
    Arrivals,
    Group,
    Trace,
    TraceError,
    arrive,
    few_shot_groups,
    paper_groups,
    read_trace,
    session_groups,
    wide_groups,
    write_trace,
)
from server_ext.replay.worker import attended_pairs

NINE = CARDS["Qwen3.5-9B"]
CONTROL = CARDS["Qwen3-8B"]


def backlog(count: int = 12, **options: object) -> Trace:
    groups = paper_groups(questions=count, **{"regime": "cold", **options})
    return Trace("backlog", arrive(groups, Arrivals("backlog")))


def reproducible(outcome: Outcome) -> tuple[object, ...]:
    return outcome.figures, outcome.latencies, outcome.rounds


# --- the drawn example ----------------------------------------------------------------


def test_the_papers_drawn_example() -> None:
    """The same 12,970 tokens in four rounds instead of six."""
    card = replace(NINE, token_budget=4096)
    stop = replay(drawn(), card, ARMS["radix-0.33"], keep_rounds=9)
    past = replay(drawn(), card, ARMS["traversal"], keep_rounds=9)
    assert (stop.figures.rounds, past.figures.rounds) == (6, 4)
    assert stop.figures.tokens == past.figures.tokens == 12_970
    assert stop.figures.bubbles > 0
    assert past.figures.bubbles == 0
    assert past.figures.bound == 4


def test_false_dependencies_of_0_32_cost_the_drawn_example_seven_more_rounds() -> None:
    card = replace(NINE, token_budget=4096)
    assert replay(drawn(), card, ARMS["radix-0.32"]).figures.rounds == 13


@pytest.mark.parametrize(
    ("arm", "rounds"),
    [
        ("radixflow+", [[288], [37, 41, 39, 40], [37, 41, 39, 40]]),
        ("tree", [[320], [5, 9, 7, 8], [288], [37, 41, 39, 40]]),
    ],
)
def test_an_idle_server_takes_two_rounds_for_a_group(
    arm: str, rounds: list[list[int]]
) -> None:
    """Nobody waits a round for a shared prefix that does not pay for it.

    The second group of the document resumes where the first one parted from its
    question; without hints that point is unknown until the second group comes.
    """
    groups = [
        Group(name, at, (("d", 300), (name, 20)), (5, 9, 7, 8))
        for name, at in (("one", 0.0), ("other", 1.0))
    ]
    outcome = replay(Trace("t", tuple(groups)), NINE, ARMS[arm], keep_rounds=9)
    assert [list(entry.rows.values()) for entry in outcome.rounds] == rounds


# --- the loop -------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_ends_and_is_reproducible(arm: str) -> None:
    trace = make_trace(Cell(model="Qwen3.5-9B", arm=arm, questions=14))
    first, again = (replay(trace, NINE, ARMS[arm], keep_rounds=400) for _ in range(2))
    assert first.figures.completed == 14
    assert reproducible(first) == reproducible(again)
    assert all(latency > 0 for latency in first.latencies)


@pytest.mark.parametrize("arm", ["radix-0.33", "radixflow+"])
def test_the_asynchronous_engine_hides_the_host_behind_the_device(arm: str) -> None:
    cost = replace(NINE.cost, host=0.02)
    runs = [
        replay(backlog(), NINE, ARMS[arm], cost=cost, asynchronous=asynchronous)
        for asynchronous in (False, True)
    ]
    assert [run.figures.completed for run in runs] == [12, 12]
    assert runs[1].figures.makespan < 0.95 * runs[0].figures.makespan
    assert runs[1].figures.bubbles is None


def test_every_prompt_token_is_computed_or_read() -> None:
    for arm in ("radix-0.33", "radixflow"):
        figures = replay(backlog(), NINE, ARMS[arm]).figures
        assert figures.prompt_tokens - figures.hit_tokens == figures.tokens


def test_hints_recompute_less_and_never_more_than_a_unit_a_branch() -> None:
    native = replay(backlog(), NINE, ARMS["radix-0.33"]).figures
    ours = replay(backlog(), NINE, ARMS["radixflow+"]).figures
    assert ours.tokens < native.tokens
    trace = backlog().groups
    assert ours.overlap_tokens <= sum(4 * (16 + g.segments[-1][1]) for g in trace)
    assert ours.overlap_tokens < native.overlap_tokens


def test_the_control_does_not_change_under_traversal_and_hints() -> None:
    native = replay(backlog(), CONTROL, ARMS["radix-0.33"]).figures
    for arm in ("traversal", "radixflow+"):
        ours = replay(backlog(), CONTROL, ARMS[arm]).figures
        assert ours.latency_mean == native.latency_mean
        assert ours.rounds == native.rounds


def test_over_length_is_rejected_and_counted() -> None:
    groups = [
        Group("short", 0.0, (("a", 100), ("q", 5)), (10, 10)),
        Group("long", 0.0, (("b", 200), ("q", 5)), (10, 100)),
    ]
    card = replace(NINE, max_model_len=300)
    figures = replay(Trace("t", tuple(groups)), card, ARMS["radixflow+"]).figures
    assert (figures.completed, figures.rejected) == (1, 1)


def test_a_closed_loop_sends_when_the_last_group_is_through() -> None:
    groups = arrive(
        paper_groups(regime="cold", questions=9), Arrivals("closed", sessions=1)
    )
    outcome = replay(Trace("t", groups), NINE, ARMS["radixflow+"])
    assert outcome.figures.completed == 9
    assert sum(outcome.latencies) == pytest.approx(outcome.figures.makespan)


def test_wide_groups_enter_the_engine_in_windows() -> None:
    trace = Trace("wide", wide_groups(width=300, groups=2))
    outcome = replay(trace, NINE, ARMS["radixflow+"], keep_rounds=500)
    assert outcome.figures.completed == 2
    assert max(entry.waiting for entry in outcome.rounds) <= 2 * 256 + 2


def test_the_engine_takes_arrivals_between_rounds() -> None:
    figures = replay(
        make_trace(Cell(model="Qwen3.5-9B", arm="radix-0.33", questions=10)),
        NINE,
        ARMS["radix-0.33"],
    ).figures
    assert 0 <= figures.late_mean <= figures.late_max


class Turns(Ledger):
    """Notes who is through, and fails where a session is ahead of itself."""

    done: ClassVar[set[str]] = set()

    def arrived(self, group: Group, *, offered: float, sent: float) -> None:
        session, _, turn = group.name.rpartition(".")
        assert turn == "0" or f"{session}.{int(turn) - 1}" in self.done
        assert offered >= group.at
        super().arrived(group, offered=offered, sent=sent)

    def group_finished(self, group: Group, *, now: float) -> None:
        self.done.add(group.name)
        super().group_finished(group, now=now)


@pytest.mark.parametrize("arrivals", ["poisson", "backlog"])
def test_a_session_sends_a_turn_when_the_last_one_is_through(arrivals: str) -> None:
    Turns.done.clear()
    cell = Cell(
        model="Qwen3.5-9B",
        arm="tree",
        stream="sessions",
        questions=40,
        arrivals=arrivals,
    )
    Engine(
        make_trace(cell), NINE, ARMS["tree"], cost=NINE.cost, ledger=Turns(rows=16)
    ).run()
    assert len(Turns.done) == 40


def test_a_fenced_arm_waits_for_the_commit_and_the_native_loop_does_not() -> None:
    fenced = ARMS["traversal"].fenced
    assert (fenced.name, fenced.policy.fence) == ("traversal", "on")
    assert ARMS["radix-0.33"].fenced == ARMS["radix-0.33"]
    runs = [
        replay(backlog(), NINE, arm, asynchronous=True).figures
        for arm in (ARMS["traversal"], fenced)
    ]
    assert runs[0].blocked_visits < runs[1].blocked_visits
    assert runs[0].tokens == runs[1].tokens


# --- traces ---------------------------------------------------------------------------


def test_the_papers_load_has_its_size_and_its_sharing() -> None:
    groups = paper_groups(regime="reuse")
    assert len(groups) == 1551
    assert {len(group.branches) for group in groups} == {4}
    long = [group for group in groups if group.segments[0][0].startswith("long")]
    assert len(long) == 517
    assert len({group.segments[0] for group in long}) < 60
    assert len({g.salt for g in paper_groups(regime="cold")}) == 1551
    shared = [not group.salt for group in paper_groups(regime="mixed")]
    assert 0.4 < sum(shared) / 1551 < 0.6
    turned = paper_groups(regime="reuse", order="reversed")
    assert turned == tuple(reversed(groups))


def test_few_shot_questions_share_a_header_of_shots() -> None:
    groups = few_shot_groups(questions=200)
    assert len(groups) == 200
    assert len({group.segments[0] for group in groups}) == 1
    assert groups[0].segments[0][1] > 1000
    assert len({group.segments[1] for group in groups}) > 30
    assert not any(group.salt for group in groups)


def test_sessions_grow_turn_by_turn_and_take_turns() -> None:
    groups = session_groups(questions=400)
    turns: dict[int | None, list[Group]] = {}
    for group in groups:
        turns.setdefault(group.session, []).append(group)
    for one in turns.values():
        for before, after in itertools.pairwise(one):
            assert after.segments[: len(before.segments) - 1] == before.segments[:-1]
            assert len(after.segments) == len(before.segments) + 1
    assert max(map(len, turns.values())) == 8
    together = {group.session for group in groups[100:150]}
    assert len(together) > 8


def test_boundaries_are_the_ends_of_the_segments() -> None:
    group = Group("g", 0.0, (("a", 40), ("b", 0), ("c", 5)), (3, 4))
    assert group.boundaries == (40, 45)
    assert group.prompt(1) == (("a", 40), ("b", 0), ("c", 5), ("g#1", 4))


def test_keys_are_equal_exactly_where_prompts_are() -> None:
    keys = Keys(16)
    one = keys.of("", (("s", 20), ("d", 30), ("q", 20)))
    assert len(one) == 70 // 16
    other = keys.of("", (("s", 20), ("d", 30), ("p", 20)))
    assert (one[:3], one[3:] == other[3:]) == (other[:3], False)
    apart = keys.of("", (("s", 20), ("e", 30), ("q", 20)))
    assert [a == b for a, b in zip(one, apart, strict=True)] == [True, *[False] * 3]
    assert not set(one) & set(keys.of("salt", (("s", 20), ("d", 30), ("q", 20))))


def test_the_limit_counts_whole_units_that_an_earlier_prompt_had() -> None:
    groups = [
        Group("g", 0.0, (("d", 40), ("q", 8)), (10, 10)),
        Group("h", 0.0, (("d", 40), ("r", 8)), (10,)),
    ]
    assert limit(groups) == 58 + (58 - 48) + (58 - 32)
    assert limit([Group("g", 0.0, (("d", 32),), (16, 16))]) == 48 + 16


def test_every_model_of_the_series_sees_the_same_trace() -> None:
    cells = [
        Cell(model=model, arm=arm, questions=30)
        for model in ("Qwen3.5-0.8B", "Qwen3.5-27B", "Qwen3-8B")
        for arm in ("radix-0.33", "radixflow+")
    ]
    assert len({make_trace(cell).groups for cell in cells}) == 1


def test_bursts_keep_the_mean_rate() -> None:
    groups = arrive(paper_groups(regime="cold"), Arrivals("burst", rate=10.0, burst=8))
    assert groups[0].at == groups[7].at < groups[8].at
    assert groups[-1].at == pytest.approx(155, rel=0.25)


def test_a_trace_file_comes_back(tmp_path: Path) -> None:
    trace = make_trace(Cell(model="Qwen3.5-9B", arm="radixflow+", questions=12))
    write_trace(trace, tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl").groups == trace.groups


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: ["{}", *lines[1:]], "line 1: not a trace of version 2"),
        (lambda lines: lines[:-1], "groups promised"),
        (lambda lines: [*lines[:2], lines[1]], "a second group"),
        (lambda lines: [lines[0], "{", lines[2]], "line 2: not JSON"),
        (
            lambda lines: [
                lines[0],
                lines[1].replace('"branches":[', '"branches":[0,'),
                lines[2],
            ],
            "a branch",
        ),
        (lambda lines: [lines[0], '{"name":"x"}', lines[2]], "line 2"),
    ],
)
def test_a_broken_trace_is_refused_by_line(tmp_path, change, problem) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(Trace("t", paper_groups(regime="cold", questions=2)), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(TraceError, match=problem):
        read_trace(path)


def test_a_segment_has_one_length(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    groups = [Group(f"g{n}", 0.0, (("s", 5), ("d", n)), (3,)) for n in (40, 41)]
    write_trace(Trace("t", tuple(groups)), path)
    with pytest.raises(TraceError, match="line 3: segment 's/d' has two lengths"):
        read_trace(path)


# --- cards and costs ------------------------------------------------------------------


def test_cards_derive_vllms_block_sizes_and_the_models_weights() -> None:
    derived = {
        name: (card.layout.block_size, card.layout.recurrent_groups)
        for name, card in CARDS.items()
    }
    assert derived == {
        "Qwen3.5-0.8B": (544, 3),
        "Qwen3.5-4B": (528, 3),
        "Qwen3.5-9B": (528, 3),
        "Qwen3.5-27B": (784, 3),
        "Nemotron-Nano-9B-v2": (1312, 7),
        "Qwen3-8B": (16, 0),
    }
    weights = [round(card.layout.weights / 1e9, 1) for card in CARDS.values()]
    assert weights == [0.8, 4.2, 9.0, 26.9, 8.9, 8.2]
    for card in CARDS.values():
        block = card.layout.block_size * card.layout.page_of_a_token
        used = card.num_blocks * block * card.layout.layers_a_group
        assert used + card.layout.weights * 2 <= H100.used * H100.memory


def test_capacity_is_an_upper_bound() -> None:
    trace = backlog(24)
    figures = replay(trace, NINE, ARMS["radixflow+"]).figures
    assert 24 / figures.makespan <= capacity(trace.groups, NINE)


def test_pairs_and_quantiles() -> None:
    assert attended_pairs(0, 3) == 1 + 2 + 3
    assert attended_pairs(10, 2) == 11 + 12
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([float(i) for i in range(1, 101)], 0.99) == 99.0


# --- the grid -------------------------------------------------------------------------


def test_a_killed_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    cells = [
        Cell(model="Qwen3.5-9B", arm=arm, questions=6)
        for arm in ("radix-0.33", "radixflow+")
    ]
    ran: list[str] = []
    path = tmp_path / "cells.csv"
    run_cells(cells, Folder(tmp_path), done=lambda result: ran.append(result.cell.arm))
    was = list(Folder(tmp_path))
    path.write_text(path.read_text()[:-20])
    run_cells(cells, Folder(tmp_path), done=lambda result: ran.append(result.cell.arm))
    assert ran == ["radix-0.33", "radixflow+", "radixflow+"]
    now = list(Folder(tmp_path))
    assert [result.figures for result in now] == [result.figures for result in was]
    assert [result.digest for result in now] == [result.digest for result in was]
    assert all(result.figures is not None for result in now)


def test_a_folder_of_something_else_is_refused_by_line(tmp_path: Path) -> None:
    cells = [Cell(model="Qwen3.5-9B", arm="radix-0.33", questions=4)]
    run_cells(cells, Folder(tmp_path), done=lambda _: None)
    path = tmp_path / "cells.csv"
    path.write_text(path.read_text().replace(",poisson,1.0,", ",poisson,x,"))
    with pytest.raises(FolderError, match="line 2"):
        Folder(tmp_path)


def test_a_failed_arm_stays_failed(tmp_path, monkeypatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise AssertionError("no such block")

    monkeypatch.setattr("server_ext.replay.run.replay", hang)
    cells = [Cell(model="Qwen3.5-9B", arm="radix-0.33", questions=6)]
    seen: list[str] = []
    run_cells(cells, Folder(tmp_path), done=lambda result: seen.append(result.error))
    monkeypatch.undo()
    run_cells(cells, Folder(tmp_path), done=lambda result: seen.append(result.error))
    assert seen == ["AssertionError: no such block"]
