"""Who is ready: the readiness of a waiting branch within one round.

A *hit* is the prefix of a branch whose attention and recurrent states are published.
It is usable unless a recurrent state at its end is being written in this very round:
the kernel that reads it would run beside the kernel that writes it.
Source: the state check of vLLM's ``MambaManager.get_num_blocks_to_allocate``, asked
here before the scan stops at it (arXiv 2610.18143, state-ready traversal).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

__all__ = ["Readiness", "classify"]


class Readiness(Enum):
    """What the state check says of a waiting branch in this round."""

    READY = "ready"
    BLOCKED = "blocked"


def classify(
    hits: Iterable[tuple[object | None, Collection[object]]],
) -> Readiness:
    """Sort a branch by the recurrent states that its hit ends on.

    Args:
        hits: for each recurrent cache group, the key of the state at the end of the
            hit (``None``: no hit in that group) and the keys written in this round.

    Returns:
        BLOCKED if any group's state is written in this round, else READY.  Whether a
        READY branch fits (rows, token budget, memory) is for the native loop to say.
    """
    if any(key is not None and key in pending for key, pending in hits):
        return Readiness.BLOCKED
    return Readiness.READY
