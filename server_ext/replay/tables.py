"""Tables of results: heads and lines of text, for the report and for the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from server_ext.replay.cards import CARDS
from server_ext.replay.figures import CAUSES, Figures
from server_ext.replay.grid import Result
from server_ext.replay.policies import ARMS
from server_ext.replay.trace import REGIMES

__all__ = [
    "BASE",
    "PAPER_MEAN",
    "Pool",
    "Table",
    "backlog",
    "bubbles",
    "change",
    "comparison",
    "details",
    "fence",
    "headline",
    "pools",
    "streams",
    "sweep",
]

PAPER_MEAN: dict[str, float | None] = {
    "Qwen3.5-0.8B": -9.3,
    "Qwen3.5-4B": -23.6,
    "Qwen3.5-9B": -7.1,
    "Qwen3.5-27B": -3.1,
    "Nemotron-Nano-9B-v2": -12.0,
    "Qwen3-8B": None,
}
"""Mean client latency of RadixFlow against Radix, percent (arXiv 2610.18143); it gives
none for the control."""

BASE = "radix-0.33"
"""The harder baseline, which changes are against."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as text.

    Attributes:
        head: titles of the columns.
        lines: the cells.
    """

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        """The table for a page."""
        rows = [self.head, ("---",) * len(self.head), *self.lines]
        return "".join("| " + " | ".join(row) + " |\n" for row in rows)


@dataclass(frozen=True, slots=True)
class Pool:
    """Finished cells, pooled."""

    figures: tuple[Figures, ...]

    @property
    def mean(self) -> float:
        """Mean client latency of all groups."""
        groups = self.total(lambda one: one.completed)
        return self.total(lambda one: (one.latency_mean or 0) * one.completed) / groups

    def total(self, of: Callable[[Figures], float]) -> float:
        """Sum of a figure."""
        return sum(map(of, self.figures))

    @property
    def rounds(self) -> float:
        """Rounds of all cells."""
        return self.total(lambda one: one.rounds)

    @property
    def tokens(self) -> float:
        """Tokens computed in all cells."""
        return self.total(lambda one: one.tokens)

    @property
    def reuse(self) -> float:
        """Share of the prompt tokens that was not computed."""
        return 1 - self.tokens / self.total(lambda one: one.prompt_tokens)

    @property
    def over_limit(self) -> float:
        """Tokens over what full attention with 16-token blocks computes."""
        return self.tokens / self.total(lambda one: one.limit)

    @property
    def over_bound(self) -> float:
        """Rounds over full slots or full budgets."""
        return self.rounds / self.total(lambda one: one.bound)


def pools(results: Iterable[Result], *by: str) -> dict[tuple[str, ...], Pool]:
    """Finished cells pooled by fields of the cell; a failed one joins no pool."""
    found: dict[tuple[str, ...], list[Figures]] = {}
    for result in results:
        if result.figures is not None:
            key = tuple(str(getattr(result.cell, name)) for name in by)
            found.setdefault(key, []).append(result.figures)
    return {key: Pool(tuple(figures)) for key, figures in found.items()}


def change(new: float, old: float) -> str:
    """Percent, with its sign."""
    return f"{100 * (new / old - 1):+.1f} %"


def _paper(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.cell.stream in REGIMES]


def headline(results: Iterable[Result]) -> Table:
    """Every model, the paper's streams pooled, beside the paper's own figures."""
    found = pools(_paper(results), "model", "arm")
    arms = ("radix-0.32", BASE, "radixflow", "tree", "radixflow+")
    lines = []
    for model, paper in PAPER_MEAN.items():
        chosen = [found.get((model, arm)) for arm in arms]
        whole = [pool for pool in chosen if pool is not None]
        if len(whole) < len(arms) or len({len(p.figures) for p in whole}) > 1:
            continue
        old, exact, theirs, plain, ours = whole
        lines.append(
            (
                model,
                "~0" if paper is None else f"{paper:+.1f} %",
                change(theirs.mean, exact.mean),
                change(theirs.mean, old.mean),
                change(plain.mean, exact.mean),
                change(ours.mean, exact.mean),
                change(ours.mean, old.mean),
                change(ours.rounds, exact.rounds),
                " / ".join(f"{100 * p.reuse:.1f}" for p in (exact, plain, ours)),
            )
        )
    head = (
        "model",
        "paper, measured",
        "`radixflow` vs 0.33",
        "vs 0.32",
        "`tree` vs 0.33",
        "`radixflow+` vs 0.33",
        "vs 0.32",
        "rounds: `radixflow+` vs 0.33",
        "reuse %: 0.33 / `tree` / `+`",
    )
    return Table(head, tuple(lines))


def comparison(results: Iterable[Result]) -> Table:
    """Every policy against the baseline on the paper's streams, pooled."""
    found = pools(_paper(results), "model", "arm")
    models = [model for model in PAPER_MEAN if (model, BASE) in found]
    lines = []
    for arm in ARMS:
        cells = [f"`{arm}`"]
        for model in models:
            pool, base = found.get((model, arm)), found[model, BASE]
            if pool is None or len(pool.figures) != len(base.figures):
                cells.append("-")
            else:
                rounds = change(pool.rounds, base.rounds)
                cells.append(f"{change(pool.mean, base.mean)} ({rounds})")
        if set(cells[1:]) != {"-"}:
            lines.append(tuple(cells))
    return Table(("policy", *models), tuple(lines))


def streams(results: Iterable[Result]) -> Table:
    """Mean latency, rounds and tokens over the limit on each stream."""
    found = pools(results, "model", "stream", "arm")
    lines = []
    for model in CARDS:
        names = dict.fromkeys(key[1] for key in found if key[0] == model)
        for stream in names:
            for arm in ARMS:
                pool = found.get((model, stream, arm))
                if pool is not None:
                    lines.append((f"{stream}, {model}", f"`{arm}`", *_line(pool)))
    return Table(("stream", "policy", *_LINE), tuple(lines))


_LINE = ("mean s", "rounds", "/ bound", "tokens / limit")


def _line(pool: Pool) -> tuple[str, ...]:
    return (
        f"{pool.mean:.3g}",
        f"{pool.rounds:,.0f}",
        f"{pool.over_bound:.2f}",
        f"{pool.over_limit:.3f}",
    )


def details(results: Iterable[Result]) -> Table:
    """Every policy on every model, the paper's streams pooled."""
    found = pools(_paper(results), "model", "arm")
    lines = []
    for model, arm in ((m, a) for m in CARDS for a in ARMS if (m, a) in found):
        pool = found[model, arm]
        ends = [sum(one.unused(cause) for one in pool.figures) for cause in CAUSES[2:]]
        steps = pool.total(lambda one: one.row_steps)
        lines.append(
            (
                model,
                arm,
                *_line(pool),
                f"{100 * pool.reuse:.2f}",
                f"{steps / pool.rounds:.2f}",
                f"{pool.tokens / pool.rounds:,.0f}",
                *(f"{value:,.0f}" for value in ends),
            )
        )
    head = ("model", "policy", *_LINE, "reuse %", "rows a round", "tokens a round")
    return Table((*head, *(f"unused: {cause}" for cause in CAUSES[2:])), tuple(lines))


def bubbles(results: Iterable[Result]) -> Table:
    """Avoidable bubbles by what ended the round; the hybrids' cells pooled.

    Models for which an arm is missing are left out.
    """
    hybrids = [r for r in _paper(results) if CARDS[r.cell.model].layout.recurrent]
    arms: dict[str, int] = {}
    for model, _ in pools(hybrids, "model", "arm"):
        arms[model] = arms.get(model, 0) + 1
    most = max(arms.values(), default=0)
    found = pools((r for r in hybrids if arms[r.cell.model] == most), "arm")
    causes = CAUSES[4:]
    lines = []
    for arm in ARMS:
        pool = found.get((arm,))
        if pool is None or not all(one.ends for one in pool.figures):
            continue
        counts = [
            sum(one.ends[c].bubbles for one in pool.figures if c in one.ends)
            for c in causes
        ]
        total = pool.total(lambda one: one.bubbles or 0)
        lines.append(
            (f"`{arm}`", *(f"{n:,.0f}" for n in (pool.rounds, total, *counts)))
        )
    return Table(("policy", "rounds", "bubbles", *causes), tuple(lines))


def backlog(results: Iterable[Result]) -> Table:
    """Rounds over the bound, and over the packer, where all arrives at once."""
    found = pools(results, "model", "arm", "stream")
    names = list(dict.fromkeys(key[2] for key in found))
    lines = []
    for model, arm in ((m, a) for m in CARDS for a in ARMS):
        chosen = [found.get((model, arm, stream)) for stream in names]
        if any(pool is None for pool in chosen):
            continue
        cells = [
            f"{pool.over_bound:.2f} / "
            f"{pool.rounds / pool.total(lambda one: one.packed):.2f}"
            for pool in chosen
            if pool is not None
        ]
        lines.append((model, f"`{arm}`", *cells))
    return Table(("model", "policy", *names), tuple(lines))


def sweep(results: Iterable[Result]) -> Table:
    """Mean latency, and p99, at each offered load."""
    found = pools(results, "arm", "load")
    arms = [arm for arm in ARMS if any(key[0] == arm for key in found)]
    loads = sorted({float(key[1]) for key in found})
    lines = []
    for load in loads:
        chosen = [found.get((arm, str(load))) for arm in arms]
        cells = [
            "-" if p is None else f"{p.mean:.3f} ({p.figures[0].latency_p99 or 0:.2f})"
            for p in chosen
        ]
        lines.append((f"{load:g}", *cells))
    return Table(("load", *(f"`{arm}`" for arm in arms)), tuple(lines))


def fence(results: Sequence[Result]) -> Table:
    """The two engines, and the commit fence on the asynchronous one."""
    found = pools(results, "stream", "arm", "asynchronous", "fence")
    engines = (("False", "False"), ("True", "False"), ("True", "True"))
    lines = []
    for stream in dict.fromkeys(key[0] for key in found):
        for arm in ARMS:
            chosen = [found.get((stream, arm, *engine)) for engine in engines]
            cells = [
                "-" if p is None else f"{p.mean:.3g} ({p.rounds:,.0f})" for p in chosen
            ]
            if any(pool is not None for pool in chosen):
                lines.append((stream, f"`{arm}`", *cells))
    head = ("synchronous", "asynchronous", "asynchronous, fence")
    return Table(("stream", "policy", *head), tuple(lines))
