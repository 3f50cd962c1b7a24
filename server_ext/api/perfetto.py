"""Rounds as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each row of a round is a track; a round's requests are slices on it, named by request.
An arrow leads from the round in which a branch was BLOCKED to the one that ran it.
Format: the Trace Event Format (JSON array of events).  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

__all__ = ["chrome_trace"]

_PROCESS = 1
_BLOCKED_TRACK = 0


def chrome_trace(rounds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events of a trace.

    Args:
        rounds: rounds as `Round.as_dict` gives them, oldest first.

    Returns:
        JSON-ready events; times in microseconds of the scheduler's clock.  A round
        lasts until the next one starts; the last one as long as the one before.
    """
    kept = list(rounds)
    events = [_name("process_name", 0, "RadixFlow rounds")]
    events.append(_name("thread_name", _BLOCKED_TRACK, "blocked"))
    lengths = _lengths(kept)
    waiting: dict[str, float] = {}
    most_rows = 0
    for entry, length in zip(kept, lengths, strict=True):
        start = entry["at"] * 1e6
        scheduled = entry["scheduled"]
        most_rows = max(most_rows, len(scheduled))
        for row, (request_id, tokens) in enumerate(scheduled.items(), 1):
            events.append(_slice(request_id, row, start, length, entry, tokens))
            if request_id in waiting:
                events += _arrow(request_id, waiting.pop(request_id), start, row)
        for request_id in entry["blocked"]:
            waiting.setdefault(request_id, start)
            blocked = _slice(request_id, _BLOCKED_TRACK, start, length, entry, 0)
            events.append(blocked)
    events += [
        _name("thread_name", row, f"row {row}") for row in range(1, most_rows + 1)
    ]
    return events


def _lengths(rounds: list[Mapping[str, Any]]) -> list[float]:
    starts = [entry["at"] * 1e6 for entry in rounds]
    gaps = [after - before for before, after in pairwise(starts)]
    return [*gaps, gaps[-1] if gaps else 1000.0][: len(rounds)]


def _slice(
    request_id: str,
    row: int,
    start: float,
    length: float,
    entry: Mapping[str, Any],
    tokens: int,
) -> dict[str, Any]:
    return {
        "name": request_id,
        "ph": "X",
        "pid": _PROCESS,
        "tid": row,
        "ts": start,
        "dur": length,
        "args": {"round": entry["number"], "tokens": tokens},
    }


def _arrow(
    request_id: str, blocked_at: float, start: float, row: int
) -> list[dict[str, Any]]:
    common = {"name": "woken", "cat": "woken", "id": request_id, "pid": _PROCESS}
    return [
        {**common, "ph": "s", "tid": _BLOCKED_TRACK, "ts": blocked_at},
        {**common, "ph": "f", "bp": "e", "tid": row, "ts": start},
    ]


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {
        "name": kind,
        "ph": "M",
        "pid": _PROCESS,
        "tid": row,
        "args": {"name": name},
    }
