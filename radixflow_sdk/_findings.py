"""A finding about a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``ok``; ``note``: possibly intended; ``warn``: slower than necessary;
            ``bad``: needs a change.
        what: The finding.
        change: The change to make.
    """

    level: Literal["ok", "note", "warn", "bad"]
    what: str
    change: str = ""
