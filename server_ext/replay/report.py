"""The report: one self-contained HTML page from a folder of cells.

Charts are plotly.js (MIT) of the installed ``plotly`` package,
embedded, so that the page needs no network.  This room arranges figures; it makes none
beyond means and quantiles of pooled latencies.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from server_ext.replay.cards import CARDS
from server_ext.replay.ends import CAUSES
from server_ext.replay.grid import Folder
from server_ext.replay.ledger import quantile
from server_ext.replay.policies import ARMS
from server_ext.replay.timeline import Lane, timeline_figure
from server_ext.replay.trace import REGIMES

__all__ = [
    "COLUMNS",
    "PAPER_MEAN",
    "Pool",
    "formatted",
    "pools",
    "write_report",
    "write_timeline",
]

PAPER_MEAN: dict[str, float | None] = {
    "Qwen3.5-0.8B": -9.3,
    "Qwen3.5-4B": -23.6,
    "Qwen3.5-9B": -7.1,
    "Qwen3.5-27B": -3.1,
    "Nemotron-Nano-9B-v2": -12.0,
    "Qwen3-8B": 0.0,
}
"""Mean client latency of RadixFlow against Radix, percent (arXiv 2610.18143)."""

COLOURS = {
    "radix-0.32": "#9aa0a6",
    "radix-0.33": "#3c4043",
    "timer5": "#c9a227",
    "timer10": "#8a6d00",
    "radix+flex": "#7b9acc",
    "radixflow": "#2d6cdf",
    "radixflow+frag": "#173f8a",
    "traversal": "#3fa796",
    "tree-frag": "#b565a7",
    "tree": "#e8871e",
    "radixflow+": "#d9480f",
}
_CONFIG = {"responsive": True, "displaylogo": False, "scrollZoom": True}


COLUMNS = (
    "mean s",
    "p50",
    "p95",
    "p99",
    "rounds",
    "/ bound",
    "/ packed",
    "rows a round",
    "tokens a round",
    "reuse %",
    "overlap %",
    "bubbles",
)
"""What a table of policies shows; `formatted` gives a line of it."""


def formatted(figures: Mapping[str, Any]) -> list[str]:
    """The cells of `COLUMNS`; a figure that is missing stays missing."""
    shares = (
        *(("rounds", whole, 1, 2) for whole in ("bound", "packed")),
        ("row_steps", "rounds", 1, 2),
        ("tokens", "rounds", 1, 0),
    )
    reuse = _over(figures, "tokens", "prompt_tokens")
    return [
        *(
            _seconds(figures[f"latency_{name}"])
            for name in ("mean", "p50", "p95", "p99")
        ),
        _number(figures["rounds"]),
        *(
            _number(_over(figures, part, whole), scale, digits)
            for part, whole, scale, digits in shares
        ),
        _number(None if reuse is None else 1 - reuse, 100, 2),
        _number(_over(figures, "overlap_tokens", "tokens"), 100, 2),
        _number(figures["bubbles"]),
    ]


def _over(figures: Mapping[str, Any], part: str, whole: str) -> float | None:
    top, bottom = figures[part], figures[whole]
    if top in (None, "") or not float(bottom or 0):
        return None
    return float(top) / float(bottom)


def _number(value: Any, scale: float = 1, digits: int = 0) -> str:
    return "-" if value in (None, "") else f"{scale * float(value):,.{digits}f}"


def _seconds(value: Any) -> str:
    if value in (None, ""):
        return "-"
    return f"{float(value):.1f}" if float(value) >= 100 else f"{float(value):.3g}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Several cells of one arm, pooled.

    Attributes:
        cells: the results.
    """

    cells: tuple[dict[str, Any], ...]

    @property
    def latencies(self) -> list[float]:
        """Client latencies of all groups."""
        return [value for cell in self.cells for value in cell["latencies"]]

    @property
    def mean(self) -> float:
        """Mean client latency."""
        latencies = self.latencies
        return sum(latencies) / len(latencies)

    def quantile(self, share: float) -> float | None:
        """A quantile of the pooled latencies."""
        return quantile(self.latencies, share)

    def total(self, name: str) -> float:
        """Sum of a figure that every cell has."""
        return float(sum(cell["figures"][name] for cell in self.cells))

    def known(self, name: str) -> float | None:
        """Sum of a figure over the cells, None where a cell does not have it."""
        values = [cell["figures"].get(name) for cell in self.cells]
        return None if None in values else float(sum(values))

    def share(self, part: str, whole: str) -> float | None:
        """One figure's sum over another's."""
        total = self.total(whole)
        return self.total(part) / total if total else None

    @property
    def figures(self) -> dict[str, Any]:
        """What `formatted` reads."""
        sums = ("rounds", "bound", "packed", "row_steps", "tokens", "prompt_tokens")
        return {
            "latency_mean": self.mean,
            **{f"latency_p{p}": self.quantile(p / 100) for p in (50, 95, 99)},
            **{name: self.known(name) for name in (*sums, "overlap_tokens", "bubbles")},
        }

    @property
    def reuse(self) -> float:
        """Prompt tokens that were not computed."""
        return 1 - self.total("tokens") / self.total("prompt_tokens")


def pools(results: Iterable[dict[str, Any]], *by: str) -> dict[tuple[Any, ...], Pool]:
    """Finished cells pooled by fields of the cell; a failed one joins no pool."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        if "error" not in result:
            key = tuple(result["cell"][name] for name in by)
            groups.setdefault(key, []).append(result)
    return {key: Pool(tuple(cells)) for key, cells in groups.items()}


def write_report(folder: Folder, out: Path) -> Path:
    """Write ``report.html`` (and ``summary.json``) from what a folder holds.

    Raises:
        ValueError: the folder holds no finished cell or cells that cannot be pooled,
            or plotly is not installed.
    """
    results = folder.results()
    if not any("error" not in result for result in results):
        raise ValueError(f"{folder.path}: no finished cell")
    grid = [r for r in results if not r["cell"]["own_rate"]]
    sweep = [r for r in results if r["cell"]["own_rate"]]
    for part in (grid, sweep):
        _check_one_setting(folder, part)
    paper = [r for r in grid if r["cell"]["stream"] in REGIMES]
    charts = _Charts()
    body = [
        _headline(paper),
        _paired(paper),
        _ends(paper),
        _reductions(grid, charts),
        _cdfs(paper, charts),
        _bounds(grid, charts),
        _sweep(sweep, charts),
        _timeline(charts),
        _cards(),
        _failures(results),
    ]
    path = out / "report.html"
    _write(path, "\n".join(part for part in body if part), charts)
    summary = json.dumps(_summary(paper), indent=1) + "\n"
    (out / "summary.json").write_text(summary, encoding="utf-8")
    return path


def _check_one_setting(folder: Folder, results: list[dict[str, Any]]) -> None:
    """Cells of one page differ in model, policy, stream, order and load only."""
    for name in ("arrivals", "questions", "width", "seed", "asynchronous", "fence"):
        values = sorted({str(result["cell"][name]) for result in results})
        if len(values) > 1:
            raise ValueError(
                f"{folder.path} has cells of {name} {' and '.join(values)}, which must "
                "not be pooled: give each a folder of its own"
            )


def write_timeline(path: Path) -> None:
    """Write a page with nothing but the round timeline.

    Raises:
        ValueError: plotly is not installed.
    """
    charts = _Charts()
    _write(path, _timeline(charts), charts)


def _write(path: Path, body: str, charts: _Charts) -> None:
    page = Template(_PAGE).substitute(
        plotly=_plotly(),
        body=body,
        charts=charts.as_json(),
        config=json.dumps(_CONFIG),
    )
    path.write_text(page, encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise ValueError(
            "the report needs plotly: pip install 'radixflow-sdk[replay]'"
        ) from None
    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script")


class _Charts:
    """Figures to be drawn by the page, by the id of their place."""

    def __init__(self) -> None:
        self._figures: dict[str, dict[str, Any]] = {}

    def place(
        self, name: str, data: list[dict[str, Any]], height: int = 420, **layout: Any
    ) -> str:
        """Add a figure; the HTML of its place."""
        plain = {
            "height": height,
            "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "hovermode": "closest",
            "paper_bgcolor": "#fff",
            "plot_bgcolor": "#fff",
        }
        self._figures[name] = {"data": data, "layout": {**plain, **layout}}
        return f'<div id="{name}" class="chart" style="height:{height}px"></div>'

    def as_json(self) -> str:
        """All of them."""
        text = json.dumps(self._figures, separators=(",", ":"))
        return text.replace("</", "<\\/")


# -- tables ----------------------------------------------------------------------------


def _change(new: float, old: float) -> float:
    return 100 * (new / old - 1) if old else 0.0


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:+.{digits}f} %"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<div class=wide><table><tr>{top}</tr>{lines}</table></div>"


def _models(found: dict[tuple[Any, ...], Pool]) -> list[str]:
    return [model for model in CARDS if any(key[0] == model for key in found)]


def _summary(grid: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each model and arm: pooled figures, and changes against both baselines."""
    found = pools(grid, "model", "arm")
    summary = []
    for (model, arm), pool in found.items():
        line: dict[str, Any] = {
            "model": model,
            "arm": arm,
            "cells": len(pool.cells),
            "groups": len(pool.latencies),
            "latency_mean": pool.mean,
            "latency_p50": pool.quantile(0.5),
            "latency_p95": pool.quantile(0.95),
            "latency_p99": pool.quantile(0.99),
            "rounds": pool.total("rounds"),
            "reuse": pool.reuse,
            "overlap": pool.share("overlap_tokens", "tokens"),
            "bound_ratio": pool.share("rounds", "bound"),
            "rows_a_round": pool.share("row_steps", "rounds"),
            "tokens_a_round": pool.share("tokens", "rounds"),
            "packed_ratio": pool.share("rounds", "packed"),
            "bubbles": pool.known("bubbles"),
            "busy": pool.total("busy"),
        }
        for base in ("radix-0.32", "radix-0.33"):
            other = found.get((model, base))
            if other is not None and len(other.cells) == len(pool.cells):
                line[f"latency_vs_{base}"] = _change(pool.mean, other.mean)
                line[f"rounds_vs_{base}"] = _change(
                    pool.total("rounds"), other.total("rounds")
                )
                line[f"reuse_points_vs_{base}"] = 100 * (pool.reuse - other.reuse)
        summary.append(line)
    return summary


def _headline(grid: list[dict[str, Any]]) -> str:
    found = pools(grid, "model", "arm")
    if not found:
        return ""
    rows = []
    for model in _models(found):
        exact, native = (
            found.get((model, "radix-0.33")),
            found.get((model, "radix-0.32")),
        )
        paper, ours = found.get((model, "radixflow")), found.get((model, "radixflow+"))
        if exact is None or native is None or paper is None or ours is None:
            continue
        rows.append(
            [
                model,
                _percent(PAPER_MEAN[model]),
                _percent(_change(paper.mean, exact.mean)),
                _percent(_change(paper.mean, native.mean)),
                _percent(_change(ours.mean, exact.mean)),
                _percent(_change(ours.mean, native.mean)),
                _percent(_change(ours.total("rounds"), exact.total("rounds"))),
                _percent(_change(ours.total("rounds"), native.total("rounds"))),
                f"{100 * exact.reuse:.2f} → {100 * ours.reuse:.2f} %",
            ]
        )
    head = (
        "model",
        "paper: RadixFlow",
        "radixflow vs 0.33",
        "radixflow vs 0.32",
        "radixflow+ vs 0.33",
        "radixflow+ vs 0.32",
        "rounds, + vs 0.33",
        "rounds, + vs 0.32",
        "reuse 0.33 → +",
    )
    return (
        "<h2>Mean client latency beside the paper's</h2><p>The paper's column was "
        "measured on its GPU; all others are simulated here. <b>0.33</b> is the harder "
        "baseline: exact readiness, no false dependencies. All cells of a model pooled."
        "</p>" + _table(head, rows)
    )


def _paired(grid: list[dict[str, Any]]) -> str:
    found = pools(grid, "model", "arm")
    rows = []
    for model in _models(found):
        base = found.get((model, "radix-0.33"))
        for arm in ARMS:
            pool = found.get((model, arm))
            if pool is None:
                continue
            rows.append([model, arm, *formatted(pool.figures), *_credit(pool, base)])
    head = ("model", "policy", *COLUMNS, "rounds saved s", "dearer rounds s")
    return (
        "<h2>Every policy</h2><p>Saved: removed rounds at the 0.33 baseline's mean "
        "cost. Dearer: what the kept rounds cost more. The difference is device time. "
        "Bound: full rows or full budgets; packed: the same requests in their order, "
        "packed without dependencies. Under light load both say little."
        "</p>" + _table(head, rows)
    )


def _credit(pool: Pool, base: Pool | None) -> list[str]:
    """Seconds that removed rounds gave, and seconds that kept rounds took back."""
    if base is None or len(base.cells) != len(pool.cells):
        return ["-", "-"]
    rounds, kept = base.total("rounds"), pool.total("rounds")
    was, now = base.total("busy") / rounds, pool.total("busy") / kept
    return [f"{(rounds - kept) * was:.1f}", f"{kept * (now - was):.1f}"]


def _ends(grid: list[dict[str, Any]]) -> str:
    """What ended the rounds of each policy, and what was left unused by it."""
    found = pools(grid, "model", "arm")
    rows = []
    for model in _models(found):
        for arm in ARMS:
            pool = found.get((model, arm))
            if pool is None or pool.known("ended_rows") is None:
                continue
            ends = [
                f"{pool.total(f'ended_{cause}'):,.0f}"
                + (
                    f" ({unused:,.0f})"
                    if (unused := pool.total(f"unused_{cause}"))
                    else ""
                )
                for cause in CAUSES
            ]
            rows.append([model, arm, *ends])
    if not rows:
        return ""
    return (
        "<h2>What ended the rounds</h2><p>Rounds, and in brackets how many rounds' "
        "worth of rows or tokens, whichever was fuller, they left unused. "
        "<b>queue</b>: nobody waited. <b>blocked</b>: all who waited were BLOCKED, or "
        "the native scan stopped at one. <b>chunk</b>: the next READY branch could "
        "take no whole block of the tokens left. <b>memory</b>: no block was free.</p>"
        + _table(("model", "policy", *CAUSES), rows)
    )


# -- charts ----------------------------------------------------------------------------


def _reductions(grid: list[dict[str, Any]], charts: _Charts) -> str:
    found = pools(grid, "model", "stream", "arm")
    if not found:
        return ""
    parts = ["<h2>Against the harder baseline, by model and stream</h2>"]
    measures: tuple[tuple[str, str, Callable[[Pool], float]], ...] = (
        ("latency", "mean latency vs radix-0.33, %", lambda pool: pool.mean),
        ("rounds", "rounds vs radix-0.33, %", lambda pool: pool.total("rounds")),
    )
    for name, title, measure in measures:
        data = []
        for arm in ARMS:
            labels: tuple[list[str], list[str]] = ([], [])
            values = []
            for (model, stream, other), pool in found.items():
                base = found.get((model, stream, "radix-0.33"))
                if other == arm and base is not None and arm != "radix-0.33":
                    labels[0].append(model)
                    labels[1].append(stream)
                    values.append(_change(measure(pool), measure(base)))
            if values and arm != "radix-0.32":
                data.append(
                    {
                        "type": "bar",
                        "name": arm,
                        "x": list(labels),
                        "y": values,
                        "marker": {"color": COLOURS.get(arm, "#888")},
                        "hovertemplate": "%{x} %{y:.1f} %<extra>" + arm + "</extra>",
                    }
                )
        parts.append(
            charts.place(f"reduction-{name}", data, barmode="group", title=_text(title))
        )
    return "".join(parts)


def _cdfs(grid: list[dict[str, Any]], charts: _Charts) -> str:
    found = pools(grid, "model", "arm")
    parts = ["<h2>Client latency, distribution</h2>"] if found else []
    for model in _models(found):
        data = []
        for arm in ARMS:
            pool = found.get((model, arm))
            if pool is None:
                continue
            latencies = sorted(pool.latencies)
            step = max(1, len(latencies) // 300)
            points = [*range(0, len(latencies), step), len(latencies) - 1]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": arm,
                    "x": [round(latencies[i], 3) for i in points],
                    "y": [round((i + 1) / len(latencies), 4) for i in points],
                    "line": {"color": COLOURS.get(arm, "#888"), "width": 2},
                }
            )
        parts.append(
            charts.place(
                f"cdf-{model}".replace(".", "_"),
                data,
                height=340,
                title=_text(
                    f"{model}: share of groups done within seconds (simulated)"
                ),
                xaxis={"type": "log", "title": _text("seconds")},
                yaxis={"range": [0, 1]},
            )
        )
    return "".join(parts)


def _bounds(grid: list[dict[str, Any]], charts: _Charts) -> str:
    found = pools(grid, "model", "stream", "arm")
    if not found:
        return ""
    data = []
    for arm in ARMS:
        chosen = [(key, pool) for key, pool in found.items() if key[2] == arm]
        if chosen:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": arm,
                    "x": [pool.total("bound") for _, pool in chosen],
                    "y": [pool.total("rounds") for _, pool in chosen],
                    "text": [f"{key[0]} {key[1]}" for key, _ in chosen],
                    "marker": {"color": COLOURS.get(arm, "#888"), "size": 9},
                    "hovertemplate": "%{text}<br>bound %{x}, rounds %{y}"
                    "<extra>" + arm + "</extra>",
                }
            )
    top = max(pool.total("rounds") for pool in found.values())
    low = min(pool.total("bound") for pool in found.values())
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "bound",
            "x": [low, top],
            "y": [low, top],
            "line": {"color": "#bbb", "dash": "dot"},
        }
    )
    return "<h2>Rounds against the capacity-only bound</h2>" + charts.place(
        "bounds",
        data,
        xaxis={"type": "log", "title": _text("bound: full rows or full token budgets")},
        yaxis={"type": "log", "title": _text("rounds")},
    )


def _sweep(sweep: list[dict[str, Any]], charts: _Charts) -> str:
    found = pools(sweep, "model", "arm", "load")
    if not found:
        return ""
    parts = [
        "<h2>Load sweep</h2><p>Offered load over capacity (every shared token computed "
        "once, every round full). Knee, marked: the highest load whose mean latency "
        "is below three times the lowest load's.</p>"
    ]
    for model in _models(found):
        data = []
        for arm in ARMS:
            points = sorted(
                (key[2], pool.mean)
                for key, pool in found.items()
                if key[:2] == (model, arm)
            )
            if points:
                data += _curve(arm, points)
        parts.append(
            charts.place(
                f"sweep-{model}".replace(".", "_"),
                data,
                title=_text(f"{model}: mean latency (simulated)"),
                xaxis={"title": _text("offered load / capacity")},
                yaxis={"type": "log", "title": _text("seconds")},
            )
        )
    return "".join(parts)


def _text(text: str) -> dict[str, str]:
    return {"text": text}


def _curve(arm: str, points: list[tuple[float, float]]) -> list[dict[str, Any]]:
    colour = COLOURS.get(arm, "#888")
    below = [point for point in points if point[1] <= 3 * points[0][1]]
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": arm,
            "x": [point[0] for point in points],
            "y": [point[1] for point in points],
            "line": {"color": colour},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{arm}: knee",
            "showlegend": False,
            "x": [below[-1][0]],
            "y": [below[-1][1]],
            "marker": {
                "symbol": "circle-open",
                "size": 18,
                "color": colour,
                "line": {"width": 3},
            },
            "hovertemplate": "knee at load %{x}<extra>" + arm + "</extra>",
        },
    ]


def _timeline(charts: _Charts) -> str:
    """Two policies on one small backlog, round by round; made afresh, in a second."""
    from server_ext.replay.run import replay
    from server_ext.replay.trace import Arrivals, Trace, arrive, paper_groups

    groups = arrive(
        paper_groups(regime="cold", questions=30, seed=1), Arrivals("backlog")
    )
    trace = Trace("timeline", groups)
    lanes = []
    for name in ("radix-0.33", "radixflow+"):
        outcome = replay(trace, CARDS["Qwen3.5-9B"], ARMS[name], keep_rounds=200)
        lanes.append(Lane(name, outcome.rounds, outcome.figures))
    data, layout = timeline_figure(lanes, rows=16)
    return (
        "<h2>Round timeline</h2><p>30 groups x 4 at once, Qwen3.5-9B. A column is a "
        "round, a cell a row, a colour a group; below the line, grey, the branches "
        "found BLOCKED (the native scan stops there without a note); red, a round with "
        "an avoidable bubble. Drag to zoom, hover for names.</p>"
        + charts.place("timeline", data, height=760, **layout)
    )


def _cards() -> str:
    rows = []
    for name, card in CARDS.items():
        cost = card.cost
        rows.append(
            [
                name,
                f"{card.layout.block_size}",
                f"{card.layout.recurrent_groups}",
                f"{card.layout.weights / 1e9:.2f} B",
                f"{card.num_blocks:,}",
                f"{cost.round * 1e3:.2f}",
                f"{cost.token * 1e6:.2f}",
                f"{cost.row * 1e6:.1f}",
                f"{cost.pair * 1e9:.3f}",
            ]
        )
    head = (
        "model",
        "block",
        "recurrent groups",
        "weights",
        "blocks",
        "round ms",
        "token us",
        "row us",
        "pair ns",
    )
    kinds = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(kind)}</dd>"
        for name, kind in CARDS["Qwen3.5-9B"].derivation.items()
    )
    return (
        "<h2>Model cards</h2><p>No number on a card is fitted to a measurement.</p>"
        + _table(head, rows)
        + f"<dl>{kinds}</dl>"
    )


def _failures(results: list[dict[str, Any]]) -> str:
    rows = [
        [json.dumps(result["cell"]), result["error"]]
        for result in results
        if "error" in result
    ]
    return "<h2>Failed cells</h2>" + _table(("cell", "error"), rows) if rows else ""


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>RadixFlow replay</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1180px;padding:1.5rem;
color:#202124}
h1{margin:0}h2{margin-top:2.4rem;border-top:1px solid #ddd;padding-top:1rem}
.note{background:#fff4e5;border-left:4px solid #d9480f;padding:.6rem 1rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid #eee;text-align:right;
white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{border-bottom:2px solid #999;white-space:normal;max-width:7rem;vertical-align:bottom}
tr:hover td{background:#f6f8fa}dt{font-weight:600}dd{margin:0 0 .4rem 1rem}
</style>
<h1>RadixFlow replay</h1>
<p class="note"><b>Simulated.</b> Rounds, rows, tokens, blocking and reuse come from
vLLM's real scheduler and cache manager; seconds come from a cost model in virtual
time. No model ran and no GPU was used.</p>
$body
<script>$plotly</script>
<script>
const figures = $charts;
for (const [name, figure] of Object.entries(figures))
  Plotly.newPlot(name, figure.data, figure.layout, $config);
document.body.dataset.drawn = Object.keys(figures).length;
</script>
</html>
"""
