"""Who goes next: waiting branches in lanes, each lane in order of arrival.

A lane holds branches that wait for the same state (or one branch alone).  The queue
shows the oldest head among the lanes, so that a round sees plain order of arrival;
when a head turns out BLOCKED its whole lane is parked for the round, at the cost of
one look, however many branches are in it.  Pure: items and lanes are opaque keys.

With ``order="group"`` a lane is a group, and `GroupOrder` ranks the groups.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field

__all__ = ["GroupOrder", "Lanes"]

Item = Hashable
Lane = Hashable
Rank = tuple[float, ...]

ROW_WORK = 64
"""What a row costs beside its tokens, in tokens (its share of a round's fixed cost)."""


@dataclass(slots=True)
class Lanes:
    """An ordered queue whose parts can be hidden for a round.

    Adding, popping and parking cost O(log lanes); removing costs the length of the
    lanes that are touched.

    Attributes:
        rank: orders lanes before their heads' arrival does; `refresh` a lane when its
            rank has changed.
    """

    rank: Callable[[Lane], Rank] = lambda lane: ()
    _lanes: dict[Lane, deque[tuple[int, Item]]] = field(default_factory=dict)
    _lane_of: dict[Item, Lane] = field(default_factory=dict)
    _heads: list[tuple[Rank, int, int, Lane]] = field(default_factory=list)
    _shown: dict[Lane, int] = field(default_factory=dict)
    _parked: set[Lane] = field(default_factory=set)
    _popped: dict[Item, tuple[int, Lane]] = field(default_factory=dict)
    _last: int = 0
    _first: int = 0
    _pushes: int = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, item: Item) -> bool:
        return item in self._lane_of

    def __iter__(self) -> Iterator[Item]:
        """Every item, parked ones too, in order."""
        entries = sorted(
            (entry for lane in self._lanes.values() for entry in lane),
            key=lambda entry: entry[0],
        )
        return iter([item for _, item in entries])

    @property
    def parked(self) -> int:
        """Items in parked lanes."""
        return sum(len(self._lanes.get(lane, ())) for lane in self._parked)

    def add(self, item: Item, lane: Lane) -> None:
        """Append a new arrival."""
        self._last += 1
        self._insert(self._last, item, lane, front=False)

    def push_front(self, item: Item, lane: Lane) -> None:
        """Put an item before everything that waits."""
        self._first -= 1
        self._insert(self._first, item, lane, front=True)

    def restore(self, item: Item) -> None:
        """Put a popped item back where it was; the last one popped goes first."""
        position, lane = self._popped.pop(item)
        self._insert(position, item, lane, front=True)

    def was_popped(self, item: Item) -> bool:
        """Whether the item was popped in this round."""
        return item in self._popped

    def head(self) -> Item | None:
        """The next visible item, or None."""
        while self._heads:
            _, _, shown, lane = self._heads[0]
            if self._shown.get(lane) == shown and lane not in self._parked:
                return self._lanes[lane][0][1]
            heapq.heappop(self._heads)
        return None

    def pop(self, *, park: bool = False) -> Item:
        """Remove and return the next visible item.

        Args:
            park: hide the rest of its lane, and the item if it is restored, until the
                next round.

        Raises:
            IndexError: nothing is visible.
        """
        if self.head() is None:
            raise IndexError("pop from a queue with nothing visible")
        *_, lane = heapq.heappop(self._heads)
        position, item = self._lanes[lane].popleft()
        del self._lane_of[item]
        self._popped[item] = (position, lane)
        if park:
            self._parked.add(lane)
        self._show(lane)
        return item

    def next_round(self) -> None:
        """Show every lane again and forget what was popped."""
        self._popped.clear()
        parked, self._parked = self._parked, set()
        for lane in parked:
            self._show(lane)

    def refresh(self, lane: Lane) -> None:
        """The rank of a lane has changed."""
        if lane in self._lanes:
            self._show(lane)

    def remove(self, items: Collection[Item]) -> None:
        """Remove items, those that are not here ignored."""
        wanted = set(items)
        for lane in {self._lane_of.pop(i) for i in wanted if i in self._lane_of}:
            left = deque(e for e in self._lanes[lane] if e[1] not in wanted)
            self._lanes[lane] = left
            self._show(lane)

    def _insert(self, position: int, item: Item, lane: Lane, *, front: bool) -> None:
        entries = self._lanes.setdefault(lane, deque())
        was_head = not entries
        if front:
            entries.appendleft((position, item))
        else:
            entries.append((position, item))
        self._lane_of[item] = lane
        if front or was_head:
            self._show(lane)

    def _show(self, lane: Lane) -> None:
        """Offer the lane's head; a lane that has run empty is forgotten."""
        entries = self._lanes.get(lane)
        if not entries:
            self._lanes.pop(lane, None)
            self._shown.pop(lane, None)
            return
        self._pushes += 1
        self._shown[lane] = self._pushes
        entry = (self.rank(lane), entries[0][0], self._pushes, lane)
        heapq.heappush(self._heads, entry)


@dataclass(slots=True)
class _Group:
    arrived: float
    finish: float
    left: float = 0.0
    members: int = 0


@dataclass(slots=True)
class GroupOrder:
    """The group with the least work left first, within a bound.

    Time is counted in work: tokens computed, and `ROW_WORK` for each row.  Beside the
    real queue runs a virtual one, first come, first served, which says when each group
    would have ended.  The longest stay in it of a group that is here, times `overtake`,
    is what every group's stay is held to.  That gives each group a deadline, all in
    order of arrival; a group may pass the earlier ones if the work that it still has
    leaves each of them time to meet its own.  Of those that may, the one with the least
    work left goes first (Schrage, 1968); one that may not waits its turn.  Bounding
    shortest-remaining-first by a virtual queue is the idea of the fair sojourn protocol
    (Friedman and Henderson, 2003).

    Attributes:
        overtake: how much longer than the virtual queue's slowest a group may take.
    """

    overtake: float = 1.05
    _now: float = 0.0
    _virtual: float = 0.0
    _groups: dict[Lane, _Group] = field(default_factory=dict)
    _may_pass: set[Lane] = field(default_factory=set)

    def arrived(self, group: Lane, tokens: int) -> None:
        """A branch with this many tokens to compute has arrived."""
        work = tokens + ROW_WORK
        self._virtual = max(self._virtual, self._now) + work
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group(self._now, self._virtual)
        known.finish = self._virtual
        known.left += work
        known.members += 1

    def served(self, group: Lane, tokens: int) -> None:
        """A round computes this many tokens of a branch."""
        self._now += tokens + ROW_WORK
        known = self._groups.get(group)
        if known is not None:
            known.left = max(0.0, known.left - tokens - ROW_WORK)

    def gone(self, group: Lane) -> None:
        """A branch has left the scheduler."""
        known = self._groups.get(group)
        if known is None:
            return
        known.members -= 1
        if not known.members:
            del self._groups[group]
            self._may_pass.discard(group)

    def next_round(self) -> set[Lane]:
        """Say anew who may pass; the groups whose rank has changed by that."""
        before, self._may_pass = self._may_pass, set(self._passing())
        return before ^ self._may_pass

    def _passing(self) -> Iterator[Lane]:
        stays = (known.finish - known.arrived for known in self._groups.values())
        bound = self.overtake * max(stays, default=0.0)
        ahead, spare = 0.0, float("inf")
        for group, known in self._groups.items():  # in order of arrival
            if known.left <= spare:
                yield group
            ahead += known.left
            spare = min(spare, known.arrived + bound - self._now - ahead)

    def rank(self, group: Lane) -> Rank:
        """Sorts before the ranks of the groups that go later."""
        known = self._groups.get(group)
        if known is None:
            return (0.0, self._now, 0.0)
        if group in self._may_pass:
            return (0.0, known.left, known.arrived)
        return (1.0, known.arrived, 0.0)
