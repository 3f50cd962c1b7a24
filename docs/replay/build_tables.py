"""Fill the tables of ``docs/replay.md`` from the CSV files of ``docs/replay/``.

python docs/replay/build_tables.py          # rewrites what lies between the markers
python docs/replay/build_tables.py --check  # fails where something would change
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from server_ext.replay.policies import ARMS
from server_ext.replay.report import COLUMNS, PAPER_MEAN, formatted

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "replay.md"
CAUSES = ("queue", "held", "blocked", "chunk", "memory")
Row = dict[str, str]


def main() -> int:
    """Write the page, or say whether it is up to date."""
    rows = read("cells.csv")
    grid = [row for row in rows if row["cell_own_rate"] == "False"]
    sweep = [row for row in rows if row["cell_own_rate"] == "True"]
    tables = {
        "headline": headline(grid),
        "policies": policies(grid),
        "cells": cells(grid),
        "sweep": loads(sweep),
        "width": widths(read("width.csv")),
        "async": engines(read("async.csv")),
        "backlog": backlog(read("backlog.csv")),
        "bubbles": bubbles(grid),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, lambda m, t=table: m[1] + t + m[2], text, flags=re.DOTALL)
    if "--check" in sys.argv[1:]:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    return 0


def read(name: str) -> list[Row]:
    """The finished cells of a file."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if not row["error"]]


def mean(rows: list[Row]) -> float:
    """Mean latency of all groups in several cells."""
    groups = sum(int(row["completed"]) for row in rows)
    return sum(float(r["latency_mean"]) * int(r["completed"]) for r in rows) / groups


def total(rows: list[Row], name: str) -> float:
    """Sum of a figure."""
    return sum(float(row[name]) for row in rows)


def change(new: float, old: float) -> str:
    """Percent, with its sign."""
    return f"{100 * (new / old - 1):+.1f} %"


def table(head: list[str], lines: list[list[str]]) -> str:
    """Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def of(rows: list[Row], **wanted: str) -> list[Row]:
    """Rows whose cell has these values."""
    return [r for r in rows if all(r[f"cell_{k}"] == v for k, v in wanted.items())]


def headline(grid: list[Row]) -> str:
    """Every model, regimes pooled."""
    lines = []
    for model, paper in PAPER_MEAN.items():
        arms = {
            arm: of(grid, model=model, arm=arm)
            for arm in ("radix-0.32", "radix-0.33", "radixflow", "radixflow+")
        }
        if len({len(rows) for rows in arms.values()}) != 1 or not arms["radixflow"]:
            continue
        old, exact, theirs, ours = arms.values()
        reuse = [
            100 * (1 - total(rows, "tokens") / total(rows, "prompt_tokens"))
            for rows in (exact, theirs, ours)
        ]
        lines.append(
            [
                model,
                f"{paper:+.1f} %" if paper else "~0",
                change(mean(theirs), mean(exact)),
                change(mean(theirs), mean(old)),
                change(mean(ours), mean(exact)),
                change(mean(ours), mean(old)),
                change(total(theirs, "rounds"), total(exact, "rounds")),
                change(total(ours, "rounds"), total(exact, "rounds")),
                " / ".join(f"{value:.2f}" for value in reuse),
            ]
        )
    head = [
        "model",
        "paper, measured",
        "`radixflow` vs 0.33",
        "vs 0.32",
        "`radixflow+` vs 0.33",
        "vs 0.32",
        "rounds: `radixflow` vs 0.33",
        "`radixflow+` vs 0.33",
        "reuse %: 0.33 / `radixflow` / `+`",
    ]
    return table(head, lines)


def policies(grid: list[Row]) -> str:
    """Every policy on every model, regimes and orders pooled, against exact native."""
    base = {model: of(grid, model=model, arm="radix-0.33") for model in PAPER_MEAN}
    lines = []
    for arm in ARMS:
        found = {model: of(grid, model=model, arm=arm) for model in PAPER_MEAN}
        if {len(rows) for rows in found.values()} == {len(base["Qwen3-8B"])}:
            lines.append(
                [f"`{arm}`"]
                + [
                    f"{change(mean(rows), mean(base[model]))} "
                    f"({change(total(rows, 'rounds'), total(base[model], 'rounds'))})"
                    for model, rows in found.items()
                ]
            )
    return table(["policy", *PAPER_MEAN], lines)


def cells(grid: list[Row]) -> str:
    """Every cell."""
    lines = [
        [
            f"{row['cell_stream']}, {row['cell_order']}",
            row["model"],
            f"`{row['arm']}`",
            *formatted(row),
        ]
        for row in sorted(grid, key=_place)
    ]
    return table(["stream", "model", "policy", *COLUMNS], lines)


def widths(rows: list[Row]) -> str:
    """Groups of 2 to 1,024 branches."""
    wanted = ("mean s", "rounds", "/ packed", "reuse %", "overlap %")
    lines = [
        [row["cell_width"], f"`{row['arm']}`", *some(row, wanted)]
        for row in sorted(rows, key=lambda row: int(row["cell_width"]))
    ]
    return table(["width", "policy", *wanted], lines)


def engines(rows: list[Row]) -> str:
    """The two engines of time."""
    wanted = ("mean s", "p99", "rounds")
    kinds = ("False", "True")
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        found = [of(rows, arm=arm, asynchronous=kind) for kind in kinds]
        lines.append([f"`{arm}`", *(x for (row,) in found for x in some(row, wanted))])
    late = [f"{name}, async" for name in wanted]
    return table(["policy", *wanted, *late], lines)


def backlog(rows: list[Row]) -> str:
    """Rounds under backlog, taken apart."""
    lines = []
    for row in sorted(rows, key=_place):
        unused = {cause: float(row[f"unused_{cause}"]) for cause in CAUSES}
        rounds, bound = int(row["rounds"]), int(row["bound"])
        mixed = rounds - sum(unused.values()) - bound
        lines.append(
            [
                f"{row['cell_stream']}, {row['model']}",
                f"`{row['arm']}`",
                f"{rounds}",
                f"{bound}",
                f"{mixed:.1f}",
                *(f"{unused[cause]:.1f}" for cause in CAUSES if cause != "held"),
                f"{rounds / bound:.2f}",
                f"{rounds / int(row['packed']):.2f}",
            ]
        )
    causes = [cause for cause in CAUSES if cause != "held"]
    head = [
        "stream",
        "policy",
        "rounds",
        "= bound",
        "+ order",
        *(f"+ {c}" for c in causes),
    ]
    return table([*head, "/ bound", "/ packed"], lines)


def bubbles(grid: list[Row]) -> str:
    """Avoidable bubbles of each policy by what ended the round, all cells pooled."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in sorted(grid, key=_place)):
        rows = [row for row in of(grid, arm=arm) if row["model"] != "Qwen3-8B"]
        lines.append(
            [
                f"`{arm}`",
                f"{total(rows, 'rounds'):,.0f}",
                f"{total(rows, 'bubbles'):,.0f}",
                *(f"{total(rows, f'bubbles_{c}'):,.0f}" for c in CAUSES[2:]),
            ]
        )
    return table(["policy", "rounds", "bubbles", *CAUSES[2:]], lines)


def some(row: Row, wanted: tuple[str, ...]) -> list[str]:
    """Chosen columns of a cell."""
    whole = dict(zip(COLUMNS, formatted(row), strict=True))
    return [whole[name] for name in wanted]


def _place(row: Row) -> tuple[str, str, int, str]:
    models = list(PAPER_MEAN)
    return row["cell_order"], row["cell_stream"], models.index(row["model"]), row["arm"]


def loads(sweep: list[Row]) -> str:
    """Mean latency at each load."""
    arms = list(dict.fromkeys(row["arm"] for row in sweep))
    points = sorted({float(row["cell_load"]) for row in sweep})
    lines = []
    for load in points:
        found = {r["arm"]: r for r in sweep if float(r["cell_load"]) == load}
        values = [
            f"{float(found[arm]['latency_mean']):.3f} "
            f"({float(found[arm]['latency_p99']):.2f})"
            if arm in found
            else "-"
            for arm in arms
        ]
        lines.append([f"{load:g}", *values])
    return table(["load", *(f"`{arm}`" for arm in arms)], lines)


if __name__ == "__main__":
    sys.exit(main())
