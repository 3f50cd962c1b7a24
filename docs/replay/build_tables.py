"""Fill the tables of ``docs/replay.md`` from ``docs/replay/cells.csv``.

python docs/replay/build_tables.py          # rewrites what lies between the markers
python docs/replay/build_tables.py --check  # fails where something would change
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "replay.md"
PAPER = {
    "Qwen3.5-0.8B": "-9.3 %",
    "Qwen3.5-4B": "-23.6 %",
    "Qwen3.5-9B": "-7.1 %",
    "Qwen3.5-27B": "-3.1 %",
    "Nemotron-Nano-9B-v2": "-12.0 %",
    "Qwen3-8B": "~0",
}
Row = dict[str, str]


def main() -> int:
    """Write the page, or say whether it is up to date."""
    with (HERE / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["error"]]
    grid = [row for row in rows if row["cell_own_rate"] == "False"]
    sweep = [row for row in rows if row["cell_own_rate"] == "True"]
    tables = {"headline": headline(grid), "cells": cells(grid), "sweep": loads(sweep)}
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, lambda m, t=table: m[1] + t + m[2], text, flags=re.DOTALL)
    if "--check" in sys.argv[1:]:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    return 0


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
    for model, paper in PAPER.items():
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
                paper,
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


def cells(grid: list[Row]) -> str:
    """Every cell."""
    lines = [
        [
            f"{row['cell_regime']}, {row['cell_order']}",
            row["model"],
            f"`{row['arm']}`",
            *(_seconds(row[f"latency_{q}"]) for q in ("mean", "p50", "p95", "p99")),
            f"{int(row['rounds']):,}",
            f"{float(row['bound_ratio']):.2f}",
            f"{float(row['packed_ratio']):.2f}",
            f"{100 * float(row['reuse']):.2f}",
            f"{100 * float(row['overlap']):.2f}",
            row["bubbles"],
        ]
        for row in sorted(grid, key=_place)
    ]
    head = [
        "stream",
        "model",
        "policy",
        "mean s",
        "p50",
        "p95",
        "p99",
        "rounds",
        "/ bound",
        "/ packed",
        "reuse %",
        "overlap %",
        "bubbles",
    ]
    return table(head, lines)


def _seconds(text: str) -> str:
    value = float(text)
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def _place(row: Row) -> tuple[str, str, int, str]:
    models = list(PAPER)
    return row["cell_order"], row["cell_regime"], models.index(row["model"]), row["arm"]


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
