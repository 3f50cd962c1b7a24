"""The wire's hints, read: from a request's ``extra_args`` to a frozen `Hints`.

Hints come from strangers.  A hint that is malformed, out of bounds or of an unknown
version is ignored (the caller counts it); reading one never raises.  The keys are
described in ``docs/wire.md``; ``tests/contract/hints.json`` ties both ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
_NONE: list[int] = []
_NOTHING: Mapping[str, object] = {}
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
    ours = [k for k in extra_args if isinstance(k, str) and k.startswith(_PREFIX)]
    if not ours:
        return None
    group = extra_args.get("radixflow_group")
    role = extra_args.get("radixflow_role")
    branches: Any = extra_args.get("radixflow_branches")
    boundaries = extra_args.get("radixflow_boundaries", _NONE)
    scored_from = extra_args.get("radixflow_scored_from", 0)
    internal = extra_args.get(INTERNAL, _NOTHING)
    if (
        not _KEYS.issuperset(ours)
        or not _is_bounded(extra_args.get("radixflow_v"), VERSION, VERSION)
        or not (isinstance(group, str) and _GROUP_ID.fullmatch(group))
        or role not in ("producer", "consumer")
        or not _is_bounded(branches, 1, MAX_BRANCHES)
        or not _are_boundaries(boundaries)
        or not _is_bounded(scored_from, 0, MAX_TOKENS)
        or not isinstance(internal, Mapping)
    ):
        return IGNORED
    trims = internal.get("trim_rows") is True
    return Hints(group, role, branches, tuple(boundaries), scored_from, trims)


def _is_bounded(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _are_boundaries(value: object) -> bool:
    if not isinstance(value, list) or len(value) > MAX_BOUNDARIES:
        return False
    last = 0
    for tokens in value:
        if type(tokens) is not int or not last < tokens <= MAX_TOKENS:
            return False
        last = tokens
    return True
