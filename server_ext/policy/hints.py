"""The wire's hints, read: from a request's ``extra_args`` to a frozen `Hints`.

Hints come from strangers.  A hint that is malformed, out of bounds or of an unknown
version is ignored (the caller counts it); reading one never raises.  The keys are
described in ``docs/wire.md``; ``tests/contract/hints.json`` ties both ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

__all__ = ["IGNORED", "TRIM_ROWS", "Hints", "read_hints"]

VERSION = 1
MAX_BRANCHES = 4096
MAX_BOUNDARIES = 64
MAX_TOKENS = 2**31 - 1
_PREFIX = "radixflow_"
INTERNAL = "radixflow_internal"
TRIM_ROWS = {INTERNAL: {"trim_rows": True}}
"""What only our own endpoint can ask for: an object cannot be sent in ``vllm_xargs``
(scalars and flat lists).  See `Hints.trim_rows`."""
_KEYS = frozenset(
    _PREFIX + key
    for key in (
        "v",
        "group",
        "role",
        "branches",
        "boundaries",
        "scored_from",
        "internal",
    )
)
_GROUP_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request says about itself.

    Attributes:
        group: opaque group id; meaningful only beside the request's cache salt.
        role: ``producer`` computes a prefix for others, ``consumer`` is a branch.
        branches: number of branches that the group will send.
        boundaries: prefix lengths, in tokens and ascending, at which prompts are
            expected to part; the group's own branches part at the last one.
        scored_from: index of the first scored token (a cache hit must leave the row
            before it to be computed), 0 if nothing is scored.
        trim_rows: hand over the prompt rows from `scored_from` on, and no others.
    """

    group: str
    role: Literal["producer", "consumer"]
    branches: int
    boundaries: tuple[int, ...] = ()
    scored_from: int = 0
    trim_rows: bool = False


IGNORED = object()
"""Returned for hints that are there but cannot be used."""


def _bounded(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def read_hints(extra_args: object) -> Hints | object | None:
    """Read the hints of one request.

    Args:
        extra_args: ``SamplingParams.extra_args``, whatever the caller put there.

    Returns:
        `Hints`; ``None`` when no key of ours is there; `IGNORED` when one is but the
        whole is not a valid set of hints.
    """
    if not isinstance(extra_args, Mapping):
        return None
    ours = {
        key: value
        for key, value in extra_args.items()
        if isinstance(key, str) and key.startswith(_PREFIX)
    }
    if not ours:
        return None
    internal = ours.get(INTERNAL, {})
    if not _wellformed(ours) or not isinstance(internal, Mapping):
        return IGNORED
    return Hints(
        group=ours["radixflow_group"],
        role=ours["radixflow_role"],
        branches=ours["radixflow_branches"],
        boundaries=tuple(ours.get("radixflow_boundaries", ())),
        scored_from=ours.get("radixflow_scored_from", 0),
        trim_rows=internal.get("trim_rows") is True,
    )


def _wellformed(ours: Mapping[str, Any]) -> bool:
    group = ours.get("radixflow_group")
    return (
        ours.keys() <= _KEYS
        and _bounded(ours.get("radixflow_v"), VERSION, VERSION)
        and isinstance(group, str)
        and _GROUP_ID.fullmatch(group) is not None
        and ours.get("radixflow_role") in ("producer", "consumer")
        and _bounded(ours.get("radixflow_branches"), 1, MAX_BRANCHES)
        and _are_boundaries(ours.get("radixflow_boundaries", []))
        and _bounded(ours.get("radixflow_scored_from", 0), 0, MAX_TOKENS)
    )


def _are_boundaries(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_BOUNDARIES
        and all(_bounded(tokens, 1, MAX_TOKENS) for tokens in value)
        and all(one < other for one, other in pairwise(value))
    )
