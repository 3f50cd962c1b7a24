"""The waiting queue of the engine: `Lanes` and a `Gate` behind vLLM's interface.

vLLM's loop peeks, pops and skips as ever; what it sees is what may enter in this round.
Held and parked branches stay in ``len()``, so all of vLLM's counts are right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from server_ext.order import GroupOrder, Lanes

__all__ = ["LaneQueue"]


class LaneQueue(RequestQueue):
    """First come, first served, with lanes that can be parked and branches held.

    Args:
        lane_of: the lane of a request.
        holds: asked once for each arrival; true keeps it out until `admit`.
        order: ranks the lanes, where they are groups; None: order of arrival.
    """

    def __init__(
        self,
        lane_of: Callable[[Request], Hashable],
        holds: Callable[[Request], bool],
        order: GroupOrder | None = None,
    ) -> None:
        self._lane = lane_of
        self._holds = holds
        self._order = order
        self._lanes = Lanes() if order is None else Lanes(rank=order.rank)
        self._held: dict[str, Request] = {}
        self._requests: dict[str, Request] = {}
        self._parks: str | None = None
        self.closed = False
        """True ends the scan of this round."""

    # -- what RadixFlow asks for -----------------------------------------------

    def next_round(self) -> None:
        """A scheduler step begins."""
        self.closed = False
        self._lanes.next_round()
        if self._order is not None:
            for lane in self._order.next_round():
                self._lanes.refresh(lane)

    def park(self, request: Request) -> None:
        """When vLLM pops this request to skip it, hide its lane for the round."""
        self._parks = request.request_id

    def admit(self, request_ids: Iterable[Hashable]) -> None:
        """Let held requests into their lanes, in this order."""
        for request_id in request_ids:
            request = self._held.pop(str(request_id), None)
            if request is not None:
                self._lanes.add(request.request_id, self._lane(request))

    @property
    def parked(self) -> int:
        """Requests hidden in this round."""
        return self._lanes.parked

    # -- vLLM's interface ------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take an arrival, held or into its lane."""
        self._requests[request.request_id] = request
        if self._holds(request):
            self._held[request.request_id] = request
        else:
            self._lanes.add(request.request_id, self._lane(request))

    def peek_request(self) -> Request:
        """The next visible request.

        Raises:
            IndexError: nothing is visible.
        """
        head = self._lanes.head()
        if head is None:
            raise IndexError("peek from a queue with nothing visible")
        return self._requests[str(head)]

    def pop_request(self) -> Request:
        """Remove and return the next visible request."""
        park = self._lanes.head() == self._parks
        self._parks = None
        return self._requests.pop(str(self._lanes.pop(park=park)))

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request before all others."""
        self._requests[request.request_id] = request
        self._lanes.push_front(request.request_id, self._lane(request))

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put back what a round skipped; vLLM hands it over last skipped first."""
        for request in requests:
            if self._lanes.was_popped(request.request_id):
                self._requests[request.request_id] = request
                self._lanes.restore(request.request_id)
            else:
                self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove one request."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove requests, those that are not here ignored."""
        ids = {request.request_id for request in requests}
        for request_id in ids & self._requests.keys():
            del self._requests[request_id]
            self._held.pop(request_id, None)
        self._lanes.remove(ids)

    def __bool__(self) -> bool:
        return not self.closed and self._lanes.head() is not None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        yield from (self._requests[str(item)] for item in self._lanes)
        yield from self._held.values()
