"""Scheduling hints (docs/wire.md), and the session id that routers route by.

Hints are for requests outside ``POST /v1/branches``; the dict goes into ``vllm_xargs``.
A hint changes when a request runs, never what it computes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from radixflow_sdk._requests import Document

HINTS_VERSION = 1
MAX_BOUNDARIES = 64


def write_hints(
    group: str,
    *,
    role: Literal["producer", "consumer"],
    branches: int,
    boundaries: Iterable[int] = (),
    scored_from: int | None = None,
) -> dict[str, str | int | list[int]]:
    """One request's hints, as the server reads them.

    Args:
        group: The group's id.
        role: Whether the request computes a shared prefix for others or is a branch.
        branches: Number of branches in the group.
        boundaries: Expected branch points, as prefix lengths in tokens, in any order.
            Of more than 64 the longest are written.
        scored_from: Index of the first scored token; None without scoring.
    """
    hints: dict[str, str | int | list[int]] = {
        "radixflow_v": HINTS_VERSION,
        "radixflow_group": group,
        "radixflow_role": role,
        "radixflow_branches": branches,
    }
    lengths = sorted({length for length in boundaries if 0 < length < 2**31})
    if lengths:
        hints["radixflow_boundaries"] = lengths[-MAX_BOUNDARIES:]
    if scored_from is not None:
        hints["radixflow_scored_from"] = scored_from
    return hints


def session_id(salt: str | None, model: str | None, document: Document) -> str:
    """``X-Session-ID``: the same for every request about one document, on any machine.

    Args:
        salt: Isolates the prefix cache, and so distinguishes documents.
        model: The served model.
        document: As given, without question and options. Parts are concatenated.
    """
    spelled = json.dumps(
        [salt, model, _concatenated(document)], sort_keys=True, default=_plain
    )
    return f"s-{hashlib.blake2b(spelled.encode(), digest_size=16).hexdigest()}"


def _concatenated(document: Document) -> object:
    parts: list[Any] = [document] if isinstance(document, str) else list(document)
    if parts and isinstance(parts[0], str):
        return "".join(parts)
    if parts and isinstance(parts[0], Sequence):
        return [token for part in parts for token in part]
    return parts


def _plain(part: object) -> object:
    return dict(part) if isinstance(part, Mapping) else str(part)
