"""Who is ready: the readiness of a waiting branch within one round.

A *hit* is the prefix of a branch whose attention and recurrent states are published.
It is usable unless a recurrent state at its end is being written in this very round:
the kernel that reads it would run beside the kernel that writes it.
Source: the state check of vLLM's ``MambaManager.get_num_blocks_to_allocate``, asked
here before the scan stops at it (arXiv 2610.18143, state-ready traversal).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["CommitFence", "Readiness", "classify"]


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
            hit (``None``: no hit in that group) and the keys that may not be read yet.

    Returns:
        BLOCKED if any group's state may not be read yet, else READY.  Whether a READY
        branch fits (rows, token budget, memory) is for the native loop to say.
    """
    if any(key is not None and key in pending for key, pending in hits):
        return Readiness.BLOCKED
    return Readiness.READY


@dataclass(slots=True)
class CommitFence:
    """States that were published by rounds whose output has not been processed.

    vLLM publishes a state when it schedules the round that will write it.  With
    asynchronous scheduling the next rounds are planned before that one has run.  One
    device runs them in order, so only pipeline stages need the fence.  Rounds are
    processed in the order in which they were planned.
    """

    _rounds: deque[frozenset[Hashable]] = field(default_factory=deque)
    _pending: Counter[Hashable] = field(default_factory=Counter)

    def __contains__(self, key: object) -> bool:
        return key in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def planned(self, published: Iterable[Hashable]) -> None:
        """A round was planned that will write `published`."""
        keys = frozenset(published)
        self._rounds.append(keys)
        self._pending.update(keys)

    def processed(self) -> None:
        """The oldest planned round has run."""
        if not self._rounds:
            return
        for key in self._rounds.popleft():
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]
