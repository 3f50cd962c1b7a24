"""Many cells, one folder: the paper's grid, resumable, and the load sweep.

A cell is one arm over one trace.  Each finished cell is one row of ``cells.csv``;
what is there is not run again, a cell that failed stays failed.  All arms of a trace
see the same groups at the same times, each with a cache of its own.
"""

from __future__ import annotations

import csv
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from typing import Any

from server_ext.replay.cards import CARDS, Card
from server_ext.replay.figures import CAUSES, Figures, Measured, read_row
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
    "Result",
    "capacity",
    "make_trace",
    "run_cells",
]

_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError)
"""Errors of a failing scheduler: the cell fails, the grid continues."""

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
        fence: READY waits for the commit, as across pipeline stages.
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


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a cell.

    Attributes:
        cell: the cell.
        figures: its figures, None where it failed.
        error: why it failed.
        digest: of all latencies and the rounds: equal where two runs are the same.
        measured: time of the replay itself.
    """

    cell: Cell
    figures: Figures | None
    error: str = ""
    digest: str = ""
    measured: Measured | None = None

    def as_row(self) -> dict[str, Any]:
        """One flat row."""
        row: dict[str, Any] = {f"cell_{k}": v for k, v in asdict(self.cell).items()}
        row |= {"error": self.error, "digest": self.digest}
        for part in (self.figures and self.figures.as_row(), self.measured):
            if part is not None:
                row |= part if isinstance(part, dict) else asdict(part)
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Result:
        """Read a row that `as_row` wrote."""
        own = {k.removeprefix("cell_"): v for k, v in row.items() if k[:5] == "cell_"}
        cell = Cell(**read_row(Cell, own))
        if row["error"]:
            return cls(cell, None, row["error"])
        return cls(
            cell,
            Figures.from_row(row),
            digest=row["digest"],
            measured=Measured(**read_row(Measured, row)),
        )


def run_cell(cell: Cell) -> Result:
    """Run a cell; a failure is a result, with a sentence in ``error``."""
    from server_ext.replay.run import ReplayError, replay

    arm = arm_named(cell.arm)
    try:
        outcome = replay(
            make_trace(cell),
            CARDS[cell.model],
            arm.fenced if cell.fence else arm,
            asynchronous=cell.asynchronous,
        )
    except (ReplayError, *_BROKEN) as error:
        return Result(cell, None, f"{type(error).__name__}: {error}")
    text = json.dumps([outcome.latencies, outcome.figures.rounds])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Result(cell, outcome.figures, "", digest, outcome.measured)


class Folder:
    """The finished cells of a folder.

    Args:
        path: where ``cells.csv`` is or will be.

    Raises:
        FolderError: a row is broken in the middle of the file.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path / "cells.csv"
        self._results: dict[Cell, Result] = {}
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # stopped in mid-row: that cell is run again
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text, encoding="utf-8")
        for row in csv.DictReader(text.splitlines()):
            try:
                result = Result.from_row(row)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                line = len(self._results) + 2
                raise FolderError(f"{self.path}, line {line}: {error!r}") from None
            self._results[result.cell] = result

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._results

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def add(self, result: Result) -> None:
        """Write one finished cell."""
        self._results[result.cell] = result
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(result.as_row())


_COLUMNS = (
    *(f"cell_{one.name}" for one in fields(Cell)),
    "error",
    *(one.name for one in fields(Figures) if one.name != "ends"),
    *(
        f"{name}_{cause}"
        for cause in CAUSES
        for name in ("rounds", "bubbles", "unused")
    ),
    "digest",
    *(one.name for one in fields(Measured)),
)


def run_cells(
    cells: Iterable[Cell],
    folder: Folder,
    *,
    jobs: int = 1,
    done: Callable[[Result], None],
) -> None:
    """Run the cells that the folder does not hold yet.

    Args:
        cells: what to run.
        folder: where results go, as each ends.
        jobs: processes.
        done: called as each cell ends.
    """
    missing = [cell for cell in cells if cell not in folder]
    for result in _results(missing, jobs):
        folder.add(result)
        done(result)


def _results(cells: list[Cell], jobs: int) -> Iterator[Result]:
    if jobs <= 1 or len(cells) <= 1:
        yield from map(run_cell, cells)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_end_with_parent
    ) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in cells]):
            yield future.result()


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
