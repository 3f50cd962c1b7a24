"""The waiting queue: order of arrival among the requests that may run in this round.

vLLM's loop peeks, pops and skips as ever; what it sees are requests that wait for
nobody.  Requests that wait for a shared prefix are in the *bucket* of the point that
blocks them, and held ones are kept aside; both stay in ``len()``, so that all of
vLLM's counts are right.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from server_ext.policy.tree import Point, PrefixTree

__all__ = ["PrefixQueue"]

MAX_MOVES = 512
"""Requests that one round moves into buckets; its scan ends there."""

Position = tuple[int, str]


class PrefixQueue(RequestQueue):
    """First come, first served, without the requests that wait for a shared prefix.

    A bucket is closed while its point has a leader.  Once the point is released its
    first request is asked again: it runs, moves to another bucket, or (the point has a
    new leader) closes the whole bucket, at the cost of one question however many are
    in it.

    Args:
        tree: says at which point a request should wait, and which points were
            released; None: nobody waits for anybody.
        holds: asked once for each arrival; true keeps it out until `admit`.
    """

    def __init__(
        self,
        tree: PrefixTree | None,
        holds: Callable[[Request], bool],
    ) -> None:
        self._blocking_point = (lambda _: None) if tree is None else tree.blocking_point
        self._released = [] if tree is None else tree.released
        self._holds = holds
        self._requests: dict[str, Request] = {}
        self._position: dict[str, int] = {}
        self._bucket_of: dict[str, Point | None] = {}
        self._ready: list[Position] = []
        self._buckets: dict[Point, list[Position]] = {}
        self._open: list[tuple[int, int, Point]] = []
        self._opened: dict[Point, int] = {}
        self._skipped: list[str] = []
        self._held: dict[str, Request] = {}
        self._head: str | None = None
        self._first = self._last = self._openings = self._moves = self._blocked = 0
        self.closed = False
        """True ends the scan of this round."""

    # -- what the scheduler asks for ---------------------------------------------

    def next_round(self) -> None:
        """A scheduler step begins: requests skipped in the last one are visible."""
        self.closed, self._moves, self._head = False, 0, None
        for name in self._skipped:
            if name in self._requests:
                heapq.heappush(self._ready, (self._position[name], name))
        self._skipped.clear()

    def admit(self, request_ids: Iterable[object]) -> None:
        """Let held requests in, in this order."""
        for request_id in request_ids:
            request = self._held.pop(str(request_id), None)
            if request is not None:
                self._last += 1
                self._place(request, self._last)

    @property
    def blocked(self) -> int:
        """Requests that wait in a bucket."""
        return self._blocked

    @property
    def open_points(self) -> Collection[Point]:
        """Points without a leader that requests still wait behind."""
        return self._opened

    def is_blocked(self, request: Request) -> bool:
        """Whether a request waits in a bucket."""
        return self._bucket_of.get(request.request_id) is not None

    # -- vLLM's interface --------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take an arrival, held or by its position."""
        if self._holds(request):
            self._held[request.request_id] = request
            return
        self._last += 1
        self._place(request, self._last)

    def __bool__(self) -> bool:
        return not self.closed and self._visible() is not None

    def peek_request(self) -> Request:
        """The next visible request.

        Raises:
            IndexError: nothing is visible.
        """
        name = self._visible()
        if name is None:
            raise IndexError("peek from a queue with nothing visible")
        return self._requests[name]

    def pop_request(self) -> Request:
        """Remove and return the next visible request."""
        request = self.peek_request()
        name, self._head = request.request_id, None
        heapq.heappop(self._ready)
        del self._requests[name], self._bucket_of[name]
        return request

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request before all others."""
        self._first -= 1
        self._place(request, self._first)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put back what a round skipped: hidden until the next one, then in place."""
        for request in requests:
            name = request.request_id
            if name not in self._position:
                self.prepend_request(request)
                continue
            self._requests[name] = request
            self._bucket_of[name] = None
            self._skipped.append(name)

    def remove_request(self, request: Request) -> None:
        """Remove one request."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove requests; those that are not here are ignored."""
        self._head = None
        for request in requests:
            name = request.request_id
            self._held.pop(name, None)
            if self._requests.pop(name, None) is None:
                continue
            bucket = self._bucket_of.pop(name)
            self._position.pop(name, None)
            if bucket is None:
                continue
            self._blocked -= 1
            if bucket in self._opened:
                self._open_bucket(bucket)

    def forget(self, name: str) -> None:
        """A request has left the scheduler."""
        self._position.pop(name, None)

    def __len__(self) -> int:
        return len(self._requests) + len(self._held)

    def __iter__(self) -> Iterator[Request]:
        placed = self._requests.values()
        yield from sorted(placed, key=lambda r: self._position[r.request_id])
        yield from self._held.values()

    # -- who is visible ----------------------------------------------------------

    def _place(self, request: Request, position: int) -> None:
        name = request.request_id
        self._head = None
        self._requests[name] = request
        self._position[name] = position
        self._move(name, self._blocking_point(name))

    def _move(self, name: str, point: Point | None) -> None:
        """To the bucket of a point, or among those that may run."""
        self._blocked += (point is not None) - (self._bucket_of.get(name) is not None)
        self._bucket_of[name] = point
        entry = (self._position[name], name)
        if point is None:
            heapq.heappush(self._ready, entry)
        else:
            heapq.heappush(self._buckets.setdefault(point, []), entry)

    def _visible(self) -> str | None:
        if self._head is None:
            self._head = self._find()
        return self._head

    def _find(self) -> str | None:
        """The next request that may run; others on the way are moved to buckets."""
        while not self.closed:
            if self._released:
                self._open_released()
            ready, bucket = self._first_ready(), self._first_open()
            if bucket is not None and (ready is None or bucket[0] < ready[0]):
                self._ask_bucket(bucket[1])
            elif ready is None:
                return None
            else:
                name = ready[1]
                point = self._blocking_point(name)
                if point is None:
                    return name
                heapq.heappop(self._ready)
                self._moves += 1
                self._move(name, point)
            if self._moves >= MAX_MOVES:
                self.closed = True
        return None

    def _ask_bucket(self, point: Point) -> None:
        """Ask the first request of an open bucket where it belongs."""
        heapq.heappop(self._open)
        name = self._buckets[point][0][1]
        target = self._blocking_point(name)
        if target is point:
            self._opened.pop(point, None)
            return
        heapq.heappop(self._buckets[point])
        self._moves += 1
        self._move(name, target)
        self._open_bucket(point)

    def _open_released(self) -> None:
        for point in self._released:
            if point in self._buckets and point not in self._opened:
                self._open_bucket(point)
        self._released.clear()

    def _open_bucket(self, point: Point) -> None:
        """Offer a bucket's first request; an empty bucket is forgotten."""
        bucket = self._buckets.get(point)
        while bucket and not self._is_in(bucket[0], point):
            heapq.heappop(bucket)
        if not bucket:
            self._buckets.pop(point, None)
            self._opened.pop(point, None)
            return
        self._openings += 1
        self._opened[point] = self._openings
        heapq.heappush(self._open, (bucket[0][0], self._openings, point))

    def _is_in(self, entry: Position, point: Point | None) -> bool:
        """Whether a heap's entry is still where its request is."""
        position, name = entry
        return (
            name in self._requests
            and self._bucket_of[name] is point
            and self._position[name] == position
        )

    def _first_ready(self) -> Position | None:
        while self._ready and not self._is_in(self._ready[0], None):
            heapq.heappop(self._ready)
        return self._ready[0] if self._ready else None

    def _first_open(self) -> tuple[int, Point] | None:
        while self._open:
            position, opening, point = self._open[0]
            if self._opened.get(point) == opening:
                bucket = self._buckets.get(point)
                first = bucket[0] if bucket else None
                if first and first[0] == position and self._is_in(first, point):
                    return position, point
                heapq.heappop(self._open)
                self._open_bucket(point)
            else:
                heapq.heappop(self._open)
        return None
