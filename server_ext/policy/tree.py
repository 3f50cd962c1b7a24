"""Prefix tree: where prompts part, who computes a shared prefix, where chunks end.

A recurrent state can be resumed only where a chunk of work ended.  The tree holds the
prompts that wait, run, or ended lately; a *point* is a prefix at which some of them
part.  At most one request *leads* at a point: it comes by first and may leave a
checkpoint.  Requests behind it wait there until the point is published, passed, or
left without a leader.  Invariant: a request that waits leads nowhere, so that no two
requests wait for each other.

The tree is a plan and never the truth: what a request resumes from is what vLLM's
prefix cache returns.  A wrong plan costs time, not exactness.

Pure: requests are opaque keys, prompts are chained 8-byte prefix keys (equal key =
equal prefix), one for each match unit.  Adding a request costs O(points on its path)
and at most two points; points of ended requests are remembered within bounds.
Choosing when a stop pays is the ski-rental problem (Karlin et al., 1988): each request
that computes past an unpublished point adds one to the requests expected there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

__all__ = ["KEY_BYTES", "Point", "PrefixTree"]

Item = Hashable

KEY_BYTES = 8
MAX_AHEAD = 12
"""Points ahead of a request that one decision weighs."""
MAX_EXPECTED = 8
"""Bound on the requests expected at a point from its history."""
MAX_BRANCHES = 64
"""Bound on the branches expected at a point from a client's hint."""
MAX_GROUPS = 4096
"""Groups whose missing branches are counted."""
MAX_PATH = 256
"""Points on one path; a prompt that parts more often is kept up to there."""
SPECULATION = 0.2
"""Share of long unknown edges that are taken to be shared later on."""


class Point:
    """A prefix of `depth` units, and the edge that leads to it from its parent.

    Attributes:
        parent: the point above, None for the root.
        edge: keys of the units between the parent and this point.
        depth: length of the prefix in units.
        children: points below, by the first key of their edge.
        waiting: waiting requests at or below that can resume from a checkpoint here.
        ends: requests, in any state, whose prompt ends here.
        expected: requests that are expected to resume here beside the waiting ones.
        leader: the request that will compute this prefix first, if any.
        computed: whether a request has computed this prefix.
        published: whether a checkpoint is believed to be in the cache.
    """

    __slots__ = (
        "children",
        "computed",
        "depth",
        "edge",
        "ends",
        "expected",
        "leader",
        "parent",
        "published",
        "waiting",
    )

    def __init__(self, parent: Point | None, edge: bytes, depth: int) -> None:
        self.parent = parent
        self.edge = edge
        self.depth = depth
        self.children: dict[bytes, Point] = {}
        self.waiting = 0
        self.ends = 0
        self.expected = 0
        self.leader: Item | None = None
        self.computed = False
        self.published = False


class _Place:
    """Where a request is: its prompt's point, and the units computed so far."""

    __slots__ = ("computed", "point", "rank", "resumes", "waits")

    def __init__(self, point: Point, rank: tuple[float, ...], resumes: bool) -> None:
        self.point = point
        self.rank = rank
        self.resumes = resumes
        self.waits = True
        self.computed = 0


class PrefixTree:
    """Points, leaders, and where chunks should end.

    Args:
        unit: tokens of a match unit.
        block: units of a cache block.
        rows: maximum requests in a round.
        row_tokens: what one more request in a round costs, in tokens.
        round_tokens: what one more round costs, in tokens.
        max_leaves: leaves of ended requests that are remembered.
        max_units: units on their edges that are remembered.
    """

    def __init__(
        self,
        unit: int,
        *,
        block: int = 1,
        rows: int = 256,
        row_tokens: int = 0,
        round_tokens: int = 0,
        max_leaves: int = 16384,
        max_units: int = 1 << 20,
    ) -> None:
        self.unit = unit
        self.block = block
        self.rows = rows
        self.row_tokens = row_tokens
        self.round_tokens = round_tokens
        self.root = Point(None, b"", 0)
        self.points = 0
        self.released: list[Point] = []
        """Points whose waiting requests must be asked again; the queue empties it."""
        self._places: dict[Item, _Place] = {}
        self._leaves: OrderedDict[Point, None] = OrderedDict()
        self._leaf_units = 0
        self._max_leaves = max_leaves
        self._max_units = max_units
        self._groups: OrderedDict[Hashable, tuple[Point, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: object) -> bool:
        return item in self._places

    # -- requests come and go ----------------------------------------------------

    def add(
        self,
        item: Item,
        keys: bytes,
        *,
        rank: tuple[float, ...] = (),
        resumes: bool = True,
    ) -> Point:
        """Add a waiting request.

        Args:
            item: the request.
            keys: `KEY_BYTES` bytes for each unit of the prompt that can be resumed
                behind.
            rank: a request waits for no waiting leader of a higher rank.
            resumes: whether it may resume from a checkpoint; one that may not can
                still leave checkpoints for others.

        Returns:
            The point at which its prompt ends.
        """
        point = self._descend(keys)
        point.ends += 1
        self._recall(point)
        self._places[item] = place = _Place(point, rank, resumes)
        self._count(place, 1)
        return point

    def expect(self, item: Item, depths: Iterable[int]) -> None:
        """Prompts that have not arrived part from this one at these depths, in units.

        Args:
            item: a request that was added.
            depths: lengths in units; those outside its prompt are ignored.
        """
        for depth in depths:
            point = self._point_at(item, depth)
            if point is not None and not point.published:
                point.expected = max(point.expected, 1)

    def expect_group(
        self, item: Item, group: Hashable, depth: int, branches: int
    ) -> None:
        """Count a group's branches that have not arrived where the group parts.

        Args:
            item: a branch that was added.
            group: its group.
            depth: where the group's branches part, in units.
            branches: requests that the group will send, this one included.
        """
        known = self._groups.get(group)
        if known is not None:
            point, missing = known
            point.expected = max(0, point.expected - 1)
            if missing > 1:
                self._groups[group] = point, missing - 1
            else:
                del self._groups[group]
            return
        parting = self._point_at(item, depth)
        if branches < 2 or parting is None or parting.published:
            return
        parting.expected = min(parting.expected + branches - 1, MAX_BRANCHES)
        self._groups[group] = parting, branches - 1
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def admitted(self, item: Item, hit: int) -> None:
        """A waiting request was admitted behind a hit of `hit` units."""
        place = self._places[item]
        if place.waits:
            self._count(place, -1)
            place.waits = False
        place.computed = hit

    def advanced(self, item: Item, end: int, *, published: bool) -> None:
        """A round takes a request to `end` units, and publishes its state there or not.

        Args:
            item: an admitted request.
            end: its computed length in units.
            published: whether the round leaves a checkpoint at exactly `end`.
        """
        place = self._places[item]
        before, place.computed = place.computed, end
        for point in self._path(place.point):
            if point.depth > end:
                break
            point.computed = True
            if point.depth == end and published:
                point.published = True
                point.expected = 0
                self._release(point)
            elif point.depth > before:
                if not point.published and point.expected < MAX_EXPECTED:
                    point.expected += 1
                if point.leader == item:
                    self._release(point)

    def preempted(self, item: Item) -> None:
        """An admitted request waits again, from its beginning."""
        place = self._places[item]
        if not place.waits:
            place.waits = True
            self._count(place, 1)
        place.computed = 0

    def resigns(self, item: Item) -> None:
        """A request cannot run for a reason of its own: it leads nowhere."""
        place = self._places.get(item)
        if place is not None:
            self._leave_points(item, self._path(place.point))

    def finished(self, item: Item) -> None:
        """A request has left the scheduler; its prompt is remembered for a while."""
        place = self._places.pop(item, None)
        if place is None:
            return
        if place.waits:
            self._count(place, -1)
        self._leave_points(item, self._path(place.point))
        place.point.ends -= 1
        self._remember(place.point)

    # -- questions ---------------------------------------------------------------

    def observe_hit(self, item: Item, hit: int) -> bool:
        """Correct the plan by what the prefix cache holds for a request.

        Args:
            item: a waiting request.
            hit: units of its prompt that the cache holds a checkpoint behind.

        Returns:
            Whether a checkpoint that was believed to be there is gone.
        """
        lost = False
        for point in self._path(self._places[item].point):
            if point.depth > hit:
                if point.published:
                    point.published = False
                    point.expected = max(point.expected, 1)
                    lost = True
            elif point.depth == hit and not point.published:
                point.published = True
                self._release(point)
            elif point.leader == item:
                self._release(point)
        return lost

    def blocking_point(self, item: Item) -> Point | None:
        """The point at which a waiting request should wait, or None: it may run.

        A request that may run leads at each point ahead that has no leader.
        """
        place = self._places.get(item)
        if place is None or not place.waits:
            return None
        ahead: list[Point] = []
        known = place.point
        while not known.published and known.parent is not None:
            ahead.append(known)
            known = known.parent
        ahead.reverse()
        blocking = self._deepest_worth_waiting(item, place, known.depth, ahead)
        if blocking is not None:
            self._leave_points(item, self._path(place.point))
            return blocking
        for point in ahead:
            if point.leader is None or self._outranks(place, point.leader):
                point.leader = item
        return None

    def next_stop(
        self, item: Item, start: int, unplanned: Sequence[int] | None = ()
    ) -> int:
        """Where the chunk that begins at `start` should end, to leave a checkpoint.

        Args:
            item: a request.
            start: its computed length in units.
            unplanned: vLLM's own stops, in units and ascending, made where the request
                is alone: then they cost nobody else a round.  None: the client has
                announced where prompts part, and nothing is guessed.

        Returns:
            A length in units; 0: nobody is expected to resume from it.
        """
        place = self._places.get(item)
        if place is None:
            return 0
        ahead = [point for point in self._path(place.point) if point.depth > start]
        sharing = ahead[0].waiting if ahead else self._counts(place)
        nobody_else_waits = self.root.waiting <= sharing
        certainty = 1.0 if nobody_else_waits else SPECULATION
        if not unplanned:
            certainty = 0.0
        stop = self._planned_stop(item, place, start, ahead, certainty)
        if not stop and len(self._places) == 1:
            stop = next((depth for depth in unplanned or () if depth > start), 0)
        return stop

    def end_of(self, item: Item) -> Point:
        """The point at which a request's prompt ends."""
        return self._places[item].point

    def published_depth(self, item: Item) -> int:
        """Units of a request's prompt behind which a checkpoint is believed to be."""
        point: Point | None = self._places[item].point
        while point is not None and not point.published:
            point = point.parent
        return 0 if point is None else point.depth

    def shared_point(self, item: Item, depth: int) -> Point | None:
        """The published point at this depth that others wait to resume from too."""
        point: Point | None = self._places[item].point
        while point is not None and point.depth > depth:
            point = point.parent
        if point is None or point.depth != depth or not point.published:
            return None
        return point if point.waiting > 1 else None

    # -- choosing ----------------------------------------------------------------

    def _deepest_worth_waiting(
        self, item: Item, place: _Place, depth: int, ahead: Sequence[Point]
    ) -> Point | None:
        if not place.resumes:
            return None
        deepest = None
        for point in ahead:
            leader = point.leader
            if leader is None or leader == item or self._outranks(place, leader):
                continue
            resumers = point.waiting - self._counts(self._places[leader])
            saved = (point.depth - depth) * self.unit * resumers
            if saved >= self._stop_cost(point):
                # Each step must pay over the step before, as in the leader's stops.
                deepest, depth = point, point.depth
        return deepest

    def _outranks(self, place: _Place, leader: Item) -> bool:
        other = self._places[leader]
        return other.waits and place.rank < other.rank

    def _stop_cost(self, point: Point) -> float:
        """A row, and a share of a round that the work of others fills too.

        Where more wait than a round has rows, a stop takes one of these rows.
        """
        others = self.root.waiting - point.waiting
        return self.row_tokens + self.round_tokens / min(1 + others, self.rows)

    def _planned_stop(
        self,
        item: Item,
        place: _Place,
        start: int,
        ahead: Sequence[Point],
        certainty: float,
    ) -> int:
        mine = self._counts(place)
        open_points = [
            point
            for point in ahead
            if not point.published and point.leader in (None, item)
        ][:MAX_AHEAD]
        # Requests that part at each point: those below it and not below the next.
        parting: list[int] = []
        below_next = 0
        for point in reversed(open_points):
            below = point.waiting - mine
            parting.append(below - below_next + point.expected)
            below_next = below
        parting.reverse()
        if not any(count > 0 for count in parting):
            return self._speculative_stop(place, start, (), certainty)
        known = [p for p, count in zip(open_points, parting, strict=True) if count > 0]
        guess = self._speculative_stop(place, start, known, certainty)
        return guess or self._cheapest_stops(open_points, parting, start)

    def _speculative_stop(
        self, place: _Place, start: int, known: Sequence[Point], certainty: float
    ) -> int:
        """A stop on a long edge of which nobody knows yet where prompts will part.

        Taken at the last cache block boundary before the only known point on it,
        where `certainty` of the tokens saved would pay for the stop.
        """
        if len(known) > 1:
            return 0
        end = known[0].depth if known else place.point.depth
        stop = end // self.block * self.block
        saved = (stop - start) * self.unit * certainty
        if stop <= start or saved < self.row_tokens + self.round_tokens:
            return 0
        if stop == end and known:
            return 0
        point = place.point
        while point.parent is not None and point.parent.depth >= stop:
            point = point.parent
        if point.depth != stop:
            self._split(point, stop).expected = 0
        return stop

    def _cheapest_stops(
        self, points: Sequence[Point], parting: Sequence[int], start: int
    ) -> int:
        """The first of the cheapest set of stops at these points, 0 for none.

        A stop costs `_stop_cost`; a point without one costs, for each request that
        parts there, the tokens from the stop before it.  Dynamic program from the
        deepest point up.
        """
        count, unit = len(points), self.unit
        best = [0.0] * count

        def cheapest_from(depth: int, first: int) -> tuple[float, int]:
            recomputed, least, stop = 0.0, -1.0, 0
            for index in range(first, count):
                total = recomputed + best[index]
                if least < 0 or total < least:
                    least, stop = total, points[index].depth
                recomputed += parting[index] * (points[index].depth - depth) * unit
            if least < 0 or recomputed <= least:
                return recomputed, 0
            return least, stop

        for index in range(count - 1, -1, -1):
            rest, _ = cheapest_from(points[index].depth, index + 1)
            best[index] = self._stop_cost(points[index]) + rest
        return cheapest_from(start, 0)[1]

    # -- the tree ----------------------------------------------------------------

    @staticmethod
    def _path(point: Point) -> list[Point]:
        """Points from below the root to `point`."""
        path = []
        above = point.parent
        while above is not None:
            path.append(point)
            point, above = above, above.parent
        path.reverse()
        return path

    @staticmethod
    def _counts(place: _Place) -> int:
        return int(place.waits and place.resumes)

    def _count(self, place: _Place, by: int) -> None:
        if not place.resumes:
            return
        point: Point | None = place.point
        while point is not None:
            point.waiting += by
            point = point.parent

    def _release(self, point: Point) -> None:
        point.leader = None
        self.released.append(point)

    def _leave_points(self, item: Item, points: Iterable[Point]) -> None:
        for point in points:
            if point.leader == item:
                self._release(point)

    def _point_at(self, item: Item, depth: int) -> Point | None:
        """The point at this depth of a request's path, made if it is not there."""
        point = self._places[item].point
        if not 0 < depth <= point.depth:
            return None
        while point.parent is not None and point.parent.depth >= depth:
            point = point.parent
        return point if point.depth == depth else self._split(point, depth)

    def _descend(self, keys: bytes) -> Point:
        point, done = self.root, 0
        for _ in range(MAX_PATH):
            if done == len(keys):
                break
            child = point.children.get(keys[done : done + KEY_BYTES])
            if child is None:
                return self._hang(point, keys[done:])
            edge = child.edge
            if keys.startswith(edge, done):
                point = child
            else:
                point = self._split(child, point.depth + _common(keys, done, edge))
            done = point.depth * KEY_BYTES
        return point

    def _hang(self, parent: Point, edge: bytes) -> Point:
        point = Point(parent, edge, parent.depth + len(edge) // KEY_BYTES)
        parent.children[edge[:KEY_BYTES]] = point
        self._recall(parent)
        self.points += 1
        return point

    def _split(self, child: Point, depth: int) -> Point:
        parent = child.parent
        assert parent is not None
        cut = (depth - parent.depth) * KEY_BYTES
        middle = Point(parent, child.edge[:cut], depth)
        if child in self._leaves:
            self._leaf_units -= cut // KEY_BYTES
        child.edge = child.edge[cut:]
        parent.children[middle.edge[:KEY_BYTES]] = middle
        middle.children[child.edge[:KEY_BYTES]] = child
        child.parent = middle
        middle.waiting = child.waiting
        leader = child.leader
        led_past = leader is not None and self._places[leader].computed >= depth
        middle.computed = child.computed or led_past
        if not middle.computed:
            middle.leader = leader
        if middle.computed:
            middle.expected = 1  # one request has passed this point unnoticed
        self.points += 1
        return middle

    def _recall(self, point: Point) -> None:
        if point in self._leaves:
            del self._leaves[point]
            self._leaf_units -= len(point.edge) // KEY_BYTES

    def _remember(self, point: Point) -> None:
        if point.ends or point.children or point is self.root:
            return
        self._recall(point)
        self._leaves[point] = None
        self._leaf_units += len(point.edge) // KEY_BYTES
        while len(self._leaves) > self._max_leaves or (
            self._leaf_units > self._max_units
        ):
            oldest = next(iter(self._leaves))
            self._recall(oldest)
            self._cut(oldest)

    def _cut(self, leaf: Point) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.edge[:KEY_BYTES]]
        self.points -= 1
        if parent is self.root or parent.ends:
            return
        if not parent.children:
            self._remember(parent)
        elif len(parent.children) == 1 and not parent.waiting:
            self._merge(parent)

    def _merge(self, point: Point) -> None:
        """Take out a point with one child: nobody parts there any more."""
        (child,) = point.children.values()
        above = point.parent
        assert above is not None
        if child in self._leaves:
            self._leaf_units += len(point.edge) // KEY_BYTES
        child.edge = point.edge + child.edge
        child.parent = above
        above.children[child.edge[:KEY_BYTES]] = child
        self.points -= 1


def _common(keys: bytes, begin: int, edge: bytes) -> int:
    """Units that `keys` from `begin` and an edge have in common, at least one.

    Keys are chained: where one unit is equal, all before it are.
    """
    low, high = 1, min((len(keys) - begin), len(edge)) // KEY_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = (middle - 1) * KEY_BYTES
        if keys[begin + at : begin + at + KEY_BYTES] == edge[at : at + KEY_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
