"""How one round's scan of the waiting queue goes."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Scan"]


@dataclass(slots=True)
class Scan:
    """One round, from its first visit to its last.

    Attributes:
        tokens_left: tokens of the round's budget that nobody has taken.
        admitted: whether a waiting request has been admitted.
        passed: requests that may run, as far as we can say; one that was not scheduled
            was skipped by the native loop for a reason of its own (such as the number
            of adapters in a round), and the last one may have ended its scan.
        deferred: branches deferred because they would have been cut short (+Frag).
        crowded: requests left for the next round since the cache is crowded.
        cut: the scan ended at the scan limit.
    """

    tokens_left: int
    admitted: bool = False
    passed: list[str] = field(default_factory=list)
    deferred: int = 0
    crowded: set[str] = field(default_factory=set)
    cut: bool = False
