"""Who may enter: holding arrived branches until there is a round worth running.

Source: flexible admission (Flex) and the fixed timers of arXiv 2610.18143.  Each
branch is held on its own, at most `Policy.hold_ms` after it arrived.  Pure: time comes
in as a number, branches as keys.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import takewhile

from server_ext.policy.config import Policy

__all__ = ["Gate", "Room"]

SHORT_WAIT = 0.002
"""An idle engine turns about every this many seconds (vLLM's pause, and its work)."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a round could hold.

    Attributes:
        running: requests that run already.
        rows: most requests in a round.
        tokens: most tokens in a round.
    """

    running: int
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Held:
    at: float
    residual: int
    rounds: int


@dataclass(slots=True)
class Gate:
    """The branches that are held now, in order of arrival.

    Attributes:
        policy: what to hold, and for how long.
        deferrals: branches that were kept out of at least one round.
        overtakes: releases that passed a branch which had arrived earlier.
        longest: longest hold so far, in seconds.
    """

    policy: Policy
    deferrals: int = 0
    overtakes: int = 0
    longest: float = 0.0
    _held: dict[Hashable, _Held] = field(default_factory=dict)
    _rounds: int = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def hold(self, key: Hashable, now: float, residual: int) -> bool:
        """Hold a branch that arrived `now`, if the policy holds branches.

        Args:
            key: the branch.
            now: arrival, in seconds of any steady clock.
            residual: tokens that the cache does not cover.
        """
        if self.policy.admission == "none":
            return False
        self._held[key] = _Held(now, residual, self._rounds)
        return True

    def drop(self, key: Hashable) -> None:
        """The branch is gone (aborted)."""
        self._held.pop(key, None)

    def release(self, now: float, room: Room) -> list[Hashable]:
        """The branches that may enter this round, in order of arrival.

        The paper's Timer reads each timer when its branch is visited: see `expired`.
        """
        self._rounds += 1
        if not self._held:
            return []
        if self.policy.admission == "flex" and self._worth_a_round(room):
            return self._let_go(list(self._held), now)
        if self.policy.admission == "timer":
            return []
        due = takewhile(lambda entry: self._due(entry[1].at, now), self._held.items())
        return self._let_go([key for key, _ in due], now)

    def is_due(self, key: Hashable, now: float) -> bool:
        """Whether a held branch's own timer has run out."""
        return self._due(self._held[key].at, now)

    def expired(self, key: Hashable, now: float) -> bool:
        """Whether a held branch's own timer has run out; if so it is released."""
        if not self.is_due(key, now):
            return False
        self.overtakes += next(iter(self._held)) != key
        self._let_go([key], now)
        return True

    def next_deadline(self) -> float | None:
        """When the first hold runs out, or None if nothing is held."""
        first = next(iter(self._held.values()), None)
        return None if first is None else first.at + self.policy.hold_ms / 1000

    def short_wait(self, now: float) -> float:
        """Seconds by which an engine that turns in steps would be late, else 0."""
        deadline = self.next_deadline()
        wait = 0.0 if deadline is None else deadline - now
        return wait if 0 < wait <= SHORT_WAIT else 0.0

    def under(self, policy: Policy) -> Gate:
        """An empty gate for another policy that goes on counting."""
        return Gate(policy, self.deferrals, self.overtakes, self.longest)

    def _worth_a_round(self, room: Room) -> bool:
        return (
            room.running > 0
            or len(self._held) >= room.rows
            or sum(held.residual for held in self._held.values()) >= room.tokens
        )

    def _due(self, at: float, now: float) -> bool:
        return now - at >= self.policy.hold_ms / 1000

    def _let_go(self, keys: list[Hashable], now: float) -> list[Hashable]:
        for key in keys:
            held = self._held.pop(key)
            self.longest = max(self.longest, now - held.at)
            self.deferrals += self._rounds - held.rounds > 1
        return keys
