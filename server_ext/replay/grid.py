"""Many cells, one folder: the paper's grid, resumable, and the load sweep.

A cell is one arm over one trace.  Each finished cell is one line of ``cells.jsonl``;
what is there is not run again, a cell that failed stays failed.  All arms of a trace
see the same groups at the same times, each with a cache of its own.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from typing import Any

from server_ext.replay.cards import CARDS, Card
from server_ext.replay.keys import limit
from server_ext.replay.policies import arm_named
from server_ext.replay.trace import (
    QUESTIONS,
    Arrivals,
    Group,
    Order,
    Regime,
    Trace,
    arrive,
    few_shot_groups,
    paper_groups,
    session_groups,
    spans,
    wide_groups,
)
from server_ext.replay.worker import attended_pairs

__all__ = [
    "QWEN_RATE_CARD",
    "Cell",
    "Folder",
    "FolderError",
    "capacity",
    "make_trace",
    "run_cells",
]

_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError)
"""What a scheduler that has lost its way raises: the cell failed, the grid goes on."""

QWEN_RATE_CARD = "Qwen3.5-9B"
"""The Qwen series and the control see one offered trace, timed for this model."""


class FolderError(RuntimeError):
    """The folder holds the cells of something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm over one trace.

    Attributes:
        model: the card's name.
        arm: the arm's name.
        stream: one of `STREAMS`.
        order: ``forward`` or ``reversed``.
        arrivals: ``poisson``, ``burst``, ``backlog`` or ``closed``.
        load: offered load over the capacity of the card that the trace is timed for.
        questions: groups.
        width: branches a group; 4 are the paper's, others are generated.
        seed: of lengths and gaps.
        asynchronous: the engine of time.
        fence: READY waits for the commit; with the asynchronous engine, what a GPU
            runs by default.
        own_rate: time the trace for this card even where it is of the Qwen series.
    """

    model: str
    arm: str
    stream: str = "mixed"
    order: Order = "forward"
    arrivals: str = "poisson"
    load: float = 1.0
    questions: int = QUESTIONS
    width: int = 4
    seed: int = 0
    asynchronous: bool = False
    fence: bool = False
    own_rate: bool = False

    @property
    def key(self) -> str:
        """The cell's name in a folder."""
        return json.dumps(asdict(self), sort_keys=True)


def capacity(groups: Sequence[Group], card: Card) -> float:
    """Groups a second of full rounds that compute every shared token once.

    The last segment, the question, is computed with each branch.
    """
    seen: set[tuple[str, str]] = set()
    tokens = rows = pairs = 0
    for group in groups:
        rows += len(group.branches)
        *shared, (_, start, end) = spans(group.segments)
        for path, first, last in shared:
            if (group.salt, path) not in seen:
                seen.add((group.salt, path))
                tokens += last - first
                pairs += attended_pairs(first, last - first)
        tail = (end - start) * len(group.branches) + sum(group.branches)
        tokens += tail
        pairs += attended_pairs(start, tail)
    cost = card.cost
    rounds = max(tokens / card.token_budget, rows / card.rows)
    seconds = (
        rounds * (cost.round + cost.host)
        + tokens * cost.token
        + rows * (cost.row + cost.host_row)
        + pairs * cost.pair
    )
    return len(groups) / seconds


def _groups(cell: Cell) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """What a cell sends, and the groups whose capacity decides how fast."""
    questions, seed, order = cell.questions, cell.seed, cell.order
    if cell.width != 4:
        groups = wide_groups(width=cell.width, groups=questions, seed=seed)
    elif cell.stream == "few-shot":
        groups = few_shot_groups(questions=questions, order=order, seed=seed)
    elif cell.stream == "sessions":
        groups = session_groups(questions=questions, seed=seed)
    else:
        regime: Regime = cell.stream  # type: ignore[assignment]
        groups = paper_groups(
            regime=regime, order=order, questions=questions, seed=seed
        )
        return groups, paper_groups(regime="mixed", questions=questions, seed=seed)
    return groups, groups


def make_trace(cell: Cell) -> Trace:
    """The trace of a cell; the same for all arms, and for all models of a series."""
    groups, timing = _groups(cell)
    own = cell.own_rate or not cell.model.startswith("Qwen")
    card = CARDS[cell.model if own else QWEN_RATE_CARD]
    arrivals = Arrivals(
        cell.arrivals,  # type: ignore[arg-type]
        rate=cell.load * capacity(timing, card),
        seed=cell.seed,
    )
    name = f"{cell.stream}/{cell.order}/{cell.arrivals}@{cell.load:g}/s{cell.seed}"
    about = {**asdict(cell), "rate": arrivals.rate, "timed_for": card.layout.name}
    del about["arm"]
    return Trace(name, arrive(groups, arrivals), about)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell; a failure is a result, with a sentence in ``error``."""
    from server_ext.replay.run import ReplayError, replay

    base: dict[str, Any] = {"cell": asdict(cell)}
    arm, card, trace = arm_named(cell.arm), CARDS[cell.model], make_trace(cell)
    fitting = [g for g in trace.groups if g.longest <= card.max_model_len]
    try:
        outcome = replay(
            trace,
            card,
            arm.fenced if cell.fence else arm,
            asynchronous=cell.asynchronous,
        )
    except (ReplayError, *_BROKEN) as error:
        return {**base, "error": f"{type(error).__name__}: {error}"}
    latencies = [round(value, 4) for value in outcome.latencies]
    digest = hashlib.sha256(
        json.dumps([outcome.latencies, outcome.figures["rounds"]]).encode()
    ).hexdigest()
    figures = {**outcome.figures, "limit": limit(fitting)}
    measured = figures.pop("measured")
    return {
        **base,
        "figures": figures,
        "measured": measured,
        "latencies": latencies,
        "digest": digest[:16],
    }


class Folder:
    """The finished cells of a folder.

    Args:
        path: where ``cells.jsonl`` is or will be.

    Raises:
        FolderError: a line is broken in the middle of the file.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path / "cells.jsonl"
        self._cells: dict[str, dict[str, Any]] = {}
        self._load()

    def _load(self) -> None:
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8")
        lines = text.split("\n")
        if lines[-1]:  # a kill in mid-line: that cell is run again
            kept = text[: len(text) - len(lines[-1])]
            self.path.write_text(kept, encoding="utf-8")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                result = json.loads(line)
                self._cells[Cell(**result["cell"]).key] = result
            except (KeyError, TypeError, ValueError) as error:
                raise FolderError(f"{self.path}, line {number}: {error}") from None

    def __contains__(self, cell: Cell) -> bool:
        return cell.key in self._cells

    def __getitem__(self, cell: Cell) -> dict[str, Any]:
        return self._cells[cell.key]

    def results(self) -> list[dict[str, Any]]:
        """Everything that is there."""
        return list(self._cells.values())

    def add(self, cell: Cell, result: dict[str, Any]) -> None:
        """Write one finished cell."""
        self._cells[cell.key] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, separators=(",", ":")) + "\n")


def run_cells(
    cells: Iterable[Cell],
    folder: Folder,
    *,
    jobs: int = 1,
    done: Callable[[Cell, dict[str, Any]], None],
) -> None:
    """Run the cells that the folder does not hold yet.

    Args:
        cells: what to run.
        folder: where results go, as each ends.
        jobs: processes.
        done: called as each cell ends.
    """
    missing = [cell for cell in cells if cell not in folder]
    for cell, result in _results(missing, jobs):
        folder.add(cell, result)
        done(cell, result)


def _results(cells: list[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if jobs <= 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, run_cell(cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_end_with_parent
    ) as pool:
        futures = {pool.submit(run_cell, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
