"""The round timeline: rounds as columns, rows as cells colored by group.

Pure: from kept rounds to a plotly figure as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server_ext.replay.figures import RoundRow
from server_ext.replay.ledger import Outcome

__all__ = ["timeline_figure"]

_COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2",
    "#ff9da7", "#9c755f", "#86bcb6", "#d4a6c8", "#8cd17d", "#f1ce63",
    "#a0cbe8", "#499894", "#fabfd2", "#d7b5a6",
)  # fmt: skip
_GREY = len(_COLORS)
_RED = _GREY + 1
_SHOWN_BLOCKED = 8


def timeline_figure(
    outcomes: Mapping[str, Outcome], *, rows: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Plotly data and layout: one policy above the other, on one axis of rounds.

    Args:
        outcomes: kept rounds and figures by policy, the first on top.
        rows: maximum requests of a round (its slots).
    """
    names = [
        name for one in outcomes.values() for row in one.rounds for name in row.rows
    ]
    groups = {group: index for index, group in enumerate(_groups(names))}
    data = [
        _cells(name, one.rounds, index, rows, groups)
        for index, (name, one) in enumerate(outcomes.items(), start=1)
    ]
    layout: dict[str, Any] = {
        "grid": {"rows": len(outcomes), "columns": 1, "pattern": "coupled"},
        "xaxis": {"title": {"text": "round"}, "zeroline": False},
        "annotations": [],
    }
    height = 1 / len(outcomes)
    for index, (name, one) in enumerate(outcomes.items()):
        axis = "yaxis" if index == 0 else f"yaxis{index + 1}"
        top = 1 - index * height
        layout[axis] = {
            "title": {"text": "rows, blocked below 0"},
            "zeroline": True,
            "zerolinecolor": "#202124",
            "domain": [top - height * 0.84, top - height * 0.08],
        }
        layout["annotations"].append(
            {
                "text": f"<b>{name}</b>: {one.figures.rounds} rounds, "
                f"{one.figures.tokens:,} tokens, mean latency "
                f"{one.figures.latency_mean:.2f} s (simulated)",
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": top,
                "yanchor": "top",
                "showarrow": False,
            }
        )
    return data, layout


def _groups(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("#")[0] for name in names))


def _cells(
    policy: str,
    rounds: Sequence[RoundRow],
    index: int,
    rows: int,
    groups: Mapping[str, int],
) -> dict[str, Any]:
    bottom = -_SHOWN_BLOCKED - 2
    levels = list(range(bottom, rows))
    columns: list[dict[int, tuple[int, str]]] = []
    for number, entry in enumerate(rounds, start=1):
        column: dict[int, tuple[int, str]] = {}
        for slot, (name, tokens) in enumerate(entry.rows.items()):
            group = name.rpartition("#")[0]
            text = f"round {number}: {name}<br>{tokens:,} tokens"
            if entry.ended:
                text += f"<br>the round ended for: {entry.ended}"
            column[slot] = (groups[group] % len(_COLORS), text)
        blocked = entry.blocked
        for slot, name in enumerate(blocked[:_SHOWN_BLOCKED]):
            more = f" (of {len(blocked)})" if len(blocked) > _SHOWN_BLOCKED else ""
            column[-1 - slot] = (_GREY, f"round {number}: {name} BLOCKED{more}")
        if entry.bubble:
            column[bottom] = (_RED, f"round {number}: avoidable bubble")
        columns.append(column)
    return {
        "type": "heatmap",
        "name": policy,
        "x": list(range(1, len(columns) + 1)),
        "y": levels,
        "z": [[column.get(y, (None, ""))[0] for column in columns] for y in levels],
        "text": [[column.get(y, (None, ""))[1] for column in columns] for y in levels],
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "zmin": 0,
        "zmax": _RED,
        "showscale": False,
        "colorscale": _scale(),
        "xaxis": "x",
        "yaxis": "y" if index == 1 else f"y{index}",
    }


def _scale() -> list[list[Any]]:
    """A color scale of steps: one color around each whole number."""
    colors = [*_COLORS, "#c4c7c5", "#d93025"]
    last = len(colors) - 1
    scale: list[list[Any]] = []
    for index, color in enumerate(colors):
        low = max(0.0, (index - 0.5) / last)
        high = min(1.0, (index + 0.5) / last)
        scale += [[low, color], [high, color]]
    return scale
