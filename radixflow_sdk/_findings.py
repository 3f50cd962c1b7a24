"""What an examination of a server finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was examined.

    Attributes:
        level: ``ok``; ``note`` for what may be intended; ``warn`` for what costs speed
            on a server that works; ``bad`` for what needs a change.
        what: What was found.
        change: What to change.
    """

    level: Literal["ok", "note", "warn", "bad"]
    what: str
    change: str = ""
