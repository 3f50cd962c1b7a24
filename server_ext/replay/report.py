"""The report: one self-contained HTML page from a folder of cells.

Charts embed plotly.js (MIT) of the installed ``plotly`` package, so that the page needs
no network.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

from server_ext.replay import tables
from server_ext.replay.cards import CARDS
from server_ext.replay.grid import Folder, Result
from server_ext.replay.policies import ARMS
from server_ext.replay.timeline import timeline_figure

__all__ = ["write_report", "write_timeline"]

NATIVE = ("radix-0.32", "radix-0.33")
COLORS = {
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


def write_report(folder: Folder, out: Path) -> Path:
    """Write ``report.html`` from what a folder holds.

    Raises:
        ValueError: the folder holds no finished cell or cells that cannot be pooled,
            or plotly is not installed.
    """
    results = list(folder)
    if all(result.error for result in results):
        raise ValueError(f"{folder.path}: no finished cell")
    grid = [result for result in results if not result.cell.own_rate]
    swept = [result for result in results if result.cell.own_rate]
    for part in (grid, swept):
        _check_one_setting(folder, part)
    charts = _Charts()
    body = [
        _section(_HEADLINE, tables.headline(grid)),
        _section(_POLICIES, tables.comparison(grid)),
        _section(_STREAMS, tables.streams(grid)),
        _section(_DETAILS, tables.details(grid)),
        _section(_BUBBLES, tables.bubbles(grid)),
        _reductions(grid, charts),
        _bounds(grid, charts),
        _sweep(swept, charts),
        _timeline(charts),
        _cards(),
        _failures(results),
    ]
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    _write(path, "\n".join(part for part in body if part), charts)
    return path


_HEADLINE = """Mean client latency beside the paper's</h2><p>The paper's column was
measured on its GPU; all others are simulated here. <b>0.33</b> is the harder baseline:
exact readiness, no false dependencies. The three streams of the paper pooled.</p>"""
_POLICIES = """Every policy against 0.33</h2><p>Mean latency, and in brackets rounds.
</p>"""
_STREAMS = """Every stream</h2><p>Limit: what full attention with blocks of 16 tokens
computes. Bound: full slots or full budgets; under light load it says little.</p>"""
_DETAILS = """Rounds</h2><p><b>Unused</b>: rounds' worth of slots or tokens, whichever
was fuller, that rounds left, by what ended them. <b>queue</b>: no branch waited.
<b>blocked</b>: all who waited were BLOCKED, or the native scan stopped at one.
<b>chunk</b>: the next READY branch could take no whole chunk of the tokens left.
<b>memory</b>: no block was free.</p>"""
_BUBBLES = """Avoidable bubbles</h2><p>Rounds that left out a READY branch that would
have fitted, by what ended them; the hybrid models.</p>"""


def _check_one_setting(folder: Folder, results: list[Result]) -> None:
    """Cells of one page differ in model, policy, stream, order and load only."""
    for name in ("arrivals", "questions", "width", "seed", "asynchronous", "fence"):
        values = sorted({str(getattr(result.cell, name)) for result in results})
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


def _section(title: str, table: tables.Table) -> str:
    """A heading, what to know, and the table; nothing where the table is empty."""
    return f"<h2>{title}{_table(table)}" if table.lines else ""


def _table(table: tables.Table) -> str:
    top = "".join(f"<th>{_cell(cell)}</th>" for cell in table.head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in table.lines
    )
    return f"<div class=wide><table><tr>{top}</tr>{lines}</table></div>"


def _cell(text: str) -> str:
    return html.escape(text.replace("`", ""))


# -- charts ----------------------------------------------------------------------------


def _reductions(grid: list[Result], charts: _Charts) -> str:
    found = tables.pools(grid, "model", "stream", "arm")
    if not found:
        return ""
    parts = ["<h2>Against the harder baseline, by model and stream</h2>"]
    measures: tuple[tuple[str, Callable[[tables.Pool], float]], ...] = (
        ("latency", lambda pool: pool.mean),
        ("rounds", lambda pool: pool.rounds),
    )
    for name, measure in measures:
        data = []
        for arm in ARMS:
            models, streams, values = [], [], []
            for (model, stream, other), pool in found.items():
                base = found.get((model, stream, tables.BASE))
                if other == arm and base is not None and arm not in NATIVE:
                    models.append(model)
                    streams.append(stream)
                    values.append(100 * (measure(pool) / measure(base) - 1))
            if values:
                data.append(
                    {
                        "type": "bar",
                        "name": arm,
                        "x": [models, streams],
                        "y": values,
                        "marker": {"color": COLORS.get(arm, "#888")},
                        "hovertemplate": "%{x} %{y:.1f} %<extra>" + arm + "</extra>",
                    }
                )
        title = _text(f"{name} vs {tables.BASE}, %")
        place = charts.place(f"reduction-{name}", data, barmode="group", title=title)
        parts.append(place)
    return "".join(parts)


def _bounds(grid: list[Result], charts: _Charts) -> str:
    found = tables.pools(grid, "model", "stream", "arm")
    if not found:
        return ""
    bounds = {key: pool.total(lambda one: one.bound) for key, pool in found.items()}
    data = []
    for arm in ARMS:
        chosen = [key for key in found if key[2] == arm]
        if chosen:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": arm,
                    "x": [bounds[key] for key in chosen],
                    "y": [found[key].rounds for key in chosen],
                    "text": [f"{key[0]} {key[1]}" for key in chosen],
                    "marker": {"color": COLORS.get(arm, "#888"), "size": 9},
                    "hovertemplate": "%{text}<br>bound %{x}, rounds %{y}"
                    "<extra>" + arm + "</extra>",
                }
            )
    top = max(pool.rounds for pool in found.values())
    low = min(bounds.values())
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
        xaxis={
            "type": "log",
            "title": _text("bound: full slots or full token budgets"),
        },
        yaxis={"type": "log", "title": _text("rounds")},
    )


def _sweep(swept: list[Result], charts: _Charts) -> str:
    found = tables.pools(swept, "model", "arm", "load")
    if not found:
        return ""
    parts = [
        "<h2>Load sweep</h2><p>Offered load over capacity (every shared token computed "
        "once, every round full). Knee, marked: the highest load whose mean latency "
        "is below three times the lowest load's.</p>"
    ]
    for model in dict.fromkeys(key[0] for key in found):
        data: list[dict[str, Any]] = []
        for arm in ARMS:
            points = sorted(
                (float(key[2]), pool.mean)
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
    color = COLORS.get(arm, "#888")
    below = [point for point in points if point[1] <= 3 * points[0][1]]
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": arm,
            "x": [point[0] for point in points],
            "y": [point[1] for point in points],
            "line": {"color": color},
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
                "color": color,
                "line": {"width": 3},
            },
            "hovertemplate": "knee at load %{x}<extra>" + arm + "</extra>",
        },
    ]


def _timeline(charts: _Charts) -> str:
    """Two policies on one small backlog, round by round; computed in a second."""
    from server_ext.replay.run import replay
    from server_ext.replay.trace import Arrivals, Trace, arrive, paper_groups

    groups = arrive(
        paper_groups(regime="cold", questions=30, seed=1), Arrivals("backlog")
    )
    trace = Trace("timeline", groups)
    card = CARDS["Qwen3.5-9B"]
    outcomes = {
        name: replay(trace, card, ARMS[name], keep_rounds=200)
        for name in (tables.BASE, "radixflow+")
    }
    data, layout = timeline_figure(outcomes, rows=card.rows)
    return (
        "<h2>Round timeline</h2><p>30 groups x 4 at once, Qwen3.5-9B. A column is a "
        "round, a cell a row, a color a group; below the line, grey, the branches "
        "found BLOCKED (the native scan stops there without a note); red, a round with "
        "an avoidable bubble. Drag to zoom, hover for names.</p>"
        + charts.place("timeline", data, height=760, **layout)
    )


def _cards() -> str:
    rows = []
    for name, card in CARDS.items():
        cost = card.cost
        rows.append(
            (
                name,
                f"{card.layout.block_size}",
                f"{card.layout.recurrent_groups}",
                f"{card.layout.weights / 1e9:.2f} B",
                f"{card.num_blocks:,}",
                f"{cost.round * 1e3:.2f}",
                f"{cost.token * 1e6:.2f}",
                f"{cost.row * 1e6:.1f}",
                f"{cost.pair * 1e9:.3f}",
            )
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
        + _table(tables.Table(head, tuple(rows)))
        + f"<dl>{kinds}</dl>"
    )


def _failures(results: list[Result]) -> str:
    rows = [(str(result.cell), result.error) for result in results if result.error]
    return _section("Failed cells</h2>", tables.Table(("cell", "error"), tuple(rows)))


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
