"""Who goes next: waiting branches in lanes, each lane in order of arrival.

A lane holds branches that wait for the same state (or one branch alone).  The queue
shows the oldest head among the lanes, so that a round sees plain order of arrival;
when a head turns out BLOCKED its whole lane is parked for the round, at the cost of
one look, however many branches are in it.  Pure: items and lanes are opaque keys.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

__all__ = ["Lanes"]

Item = Hashable
Lane = Hashable


@dataclass(slots=True)
class Lanes:
    """An ordered queue whose parts can be hidden for a round.

    Adding, popping and parking cost O(log lanes); removing costs the length of the
    lanes that are touched.
    """

    _lanes: dict[Lane, deque[tuple[int, Item]]] = field(default_factory=dict)
    _lane_of: dict[Item, Lane] = field(default_factory=dict)
    _heads: list[tuple[int, int, Lane]] = field(default_factory=list)
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
            position, _, lane = self._heads[0]
            entries = self._lanes.get(lane)
            if entries and entries[0][0] == position and lane not in self._parked:
                return entries[0][1]
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
        _, _, lane = heapq.heappop(self._heads)
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
        if entries:
            self._pushes += 1
            heapq.heappush(self._heads, (entries[0][0], self._pushes, lane))
        elif entries is not None:
            del self._lanes[lane]
