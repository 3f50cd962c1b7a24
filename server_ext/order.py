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
    reach: int = 0


@dataclass(slots=True)
class _Branch:
    group: Lane
    left: float
    due: float
    start: int
    shared: int


@dataclass(slots=True)
class GroupOrder:
    """The group with the least work left first, within a bound.

    Time is counted in work: tokens computed, and `ROW_WORK` for each row.  Beside the
    real queue runs a virtual one, first come, first served, which says when each group
    would have ended.  The longest stay in it of a group that is here, times `overtake`,
    is what every group's stay is held to: a group that would exceed it becomes urgent,
    and urgent groups go first, in order of arrival.  Shortest remaining work first is
    that of Schrage (1968); bounding it by a virtual queue is the idea of the fair
    sojourn protocol (Friedman and Henderson, 2003).

    A document that several groups share is *due* once, with the first of them; the
    others are ranked with it too, since whoever goes first has to compute it, until it
    is in the cache.

    Attributes:
        overtake: how much longer than the virtual queue's slowest a group may take.
    """

    overtake: float = 1.0
    _now: float = 0.0
    _virtual: float = 0.0
    _groups: dict[Lane, _Group] = field(default_factory=dict)
    _branches: dict[Item, _Branch] = field(default_factory=dict)
    _missing: set[Item] = field(default_factory=set)
    _urgent: set[Lane] = field(default_factory=set)
    _changed: set[Lane] = field(default_factory=set)

    def arrived(
        self,
        group: Lane,
        branch: Item,
        tokens: int,
        *,
        shared: int = 0,
        cached: int = 0,
        promised: int = 0,
    ) -> None:
        """A branch has arrived.

        Args:
            group: its group.
            branch: the branch.
            tokens: its length.
            shared: its first tokens, which the group has in common; the group's first
                branch is counted with them, the others resume behind them.
            cached: its first tokens that need not be computed.
            promised: its first tokens that a branch which waits already is counted
                with.  They are not due again, but a group that goes before that branch
                has to compute them.
        """
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group(self._now, 0.0)
        start = max(cached, min(known.reach, shared))
        known.reach = max(known.reach, shared)
        left = max(0, tokens - start) + ROW_WORK
        due = max(0, tokens - max(start, promised)) + ROW_WORK
        self._virtual = max(self._virtual, self._now) + due
        known.finish = self._virtual
        known.left += left
        known.members += 1
        self._branches[branch] = _Branch(group, left, due, start, shared)
        if start < shared:
            self._missing.add(branch)

    @property
    def missing(self) -> tuple[Item, ...]:
        """Branches that wait, counted with shared tokens that nobody has computed."""
        return tuple(self._missing)

    def served(self, branch: Item, tokens: int) -> None:
        """A round computes this many tokens of a branch."""
        self._now += tokens + ROW_WORK
        known = self._branches.get(branch)
        if known is not None:
            self._take(known, tokens + ROW_WORK)
            self._changed.add(known.group)
            self._missing.discard(branch)  # it does that work itself

    def cached(self, branch: Item, tokens: int) -> None:
        """The first `tokens` of a branch that waits are in the cache now."""
        known = self._branches[branch]
        less = min(tokens, known.shared) - known.start
        if less <= 0:
            return
        known.start += less
        if known.start == known.shared:
            self._missing.discard(branch)
        self._forgive(known, less)

    def gone(self, branch: Item) -> None:
        """A branch has left the scheduler."""
        known = self._branches.pop(branch, None)
        if known is None:
            return
        self._missing.discard(branch)
        self._forgive(known, known.left)
        group = self._groups[known.group]
        group.members -= 1
        if not group.members:
            del self._groups[known.group]
            self._changed.discard(known.group)
            self._urgent.discard(known.group)

    def _forgive(self, branch: _Branch, work: float) -> None:
        """Take work that will not be done off the branch and the virtual queue."""
        due = self._take(branch, work)
        self._changed.add(branch.group)
        if due <= 0:
            return
        self._virtual -= due
        finish = self._groups[branch.group].finish
        for other in self._groups.values():
            if other.finish >= finish:
                other.finish -= due

    def _take(self, branch: _Branch, work: float) -> float:
        """Take work off the branch; how much of it was due."""
        group = self._groups[branch.group]
        left, due = min(branch.left, work), 0.0
        branch.left -= left
        group.left -= left
        if branch.due > branch.left:
            due = branch.due - branch.left
            branch.due -= due
        return due

    def next_round(self) -> set[Lane]:
        """Say anew who is urgent; the groups whose rank has changed since."""
        stays = (known.finish - known.arrived for known in self._groups.values())
        bound = self.overtake * max(stays, default=0.0)
        urgent = {
            group
            for group, known in self._groups.items()
            if self._now - known.arrived + known.left >= bound
        }
        changed, self._changed = self._changed | (urgent - self._urgent), set()
        self._urgent |= urgent
        return changed

    def rank(self, group: Lane) -> Rank:
        """Sorts before the ranks of the groups that go later."""
        known = self._groups.get(group)
        if known is None:
            return (0.0, self._now, 0.0)
        if group in self._urgent:
            return (0.0, known.arrived, 0.0)
        return (1.0, known.left, known.arrived)
