"""When groups run: how many at a time, how long each may take, and cancellation.

A group waits for its turn first; its clock starts with its work. Every wait runs in a
cancel scope of its own that is left before an event is handed on, so that a consumer
may stop, be cancelled or come back from another task. When the server pushes back,
fewer groups run at a time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import RunVar

from radixflow_sdk._config import RetryPolicy
from radixflow_sdk._events import RequestEnded, RequestSent
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk._transport import Emit, RetryingTransport, Transport
from radixflow_sdk.exceptions import (
    APIStatusError,
    APITimeoutError,
    ClientClosedError,
    WrongLoopError,
)

T = TypeVar("T")


class ScopedTasks:
    """Tasks that run beside a block and end with it.

    What the block raises passes as it is; a task group alone would wrap it into an
    ``ExceptionGroup``.
    """

    def __init__(self) -> None:
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> TaskGroup:
        return await self._tasks.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        # Whose cancellation it is, ours or one from outside, only the group can tell.
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._tasks.__aexit__(kind, error, traceback)
        await self._tasks.__aexit__(None, None, None)
        return None


BACKLOG_LIMIT = 8.0
"""Full rounds of work on a server, beyond which a client sends less at a time."""

# One per event loop, and gone with it.
_LOOP: RunVar[object] = RunVar("radixflow_loop")


class AdaptiveLimit:
    """How many groups at a time: halved when the server pushes back, grown when it can.

    A server pushes back by refusing, or by saying that it has more than
    `BACKLOG_LIMIT` rounds of work: more work would only wait there, on its group's
    time. A burst of pushes counts once: requests that were sent before the limit was
    halved do not halve it again. Any other complete answer adds ``1 / limit``, so it
    takes as many answers as groups are under way to add one. Times are given, not read
    from a clock.

    Args:
        most: The limit to begin with, and never to exceed.

    Attributes:
        limit: Groups at a time, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._exact = float(most)
        self._halved_at = -math.inf

    @property
    def limit(self) -> int:
        """Groups at a time, at least 1."""
        return int(self._exact)

    def note(self, ended: RequestEnded, *, now: float) -> None:
        """Learn from one request that has just ended."""
        if _is_push(ended):
            if now - ended.elapsed >= self._halved_at:
                self._exact = max(self._exact / 2, 1.0)
                self._halved_at = now
        elif ended.error is None:
            self._exact = min(self._exact + 1 / self._exact, self._most)


def _is_push(ended: RequestEnded) -> bool:
    if isinstance(ended.error, APIStatusError):
        return ended.error.status in (429, 503)
    return ended.backlog is not None and ended.backlog > BACKLOG_LIMIT


class Dispatcher:
    """Runs groups over one transport.

    Args:
        transport: Carries single requests.
        concurrency: Groups under way at a time, at most.
        pool: Seconds that a group may wait for its turn; None for no limit.
    """

    def __init__(
        self, transport: Transport, *, concurrency: int, pool: float | None
    ) -> None:
        self._transport = transport
        self._adaptive = AdaptiveLimit(concurrency)
        self._concurrency = concurrency
        self._pool = pool
        self._limiter: anyio.CapacityLimiter | None = None
        self._loop: object = None
        self._waiting: set[anyio.CancelScope] = set()
        self._closed = False

    @property
    def limit(self) -> int:
        """Groups under way at a time, as the server's answers have it now."""
        return self._adaptive.limit

    def check_open(self) -> None:
        """Refuse work once closed.

        Raises:
            ClientClosedError: It is closed.
        """
        if self._closed:
            raise ClientClosedError("The client is closed; make a new one.")

    async def run(
        self,
        request: GroupRequest,
        *,
        total: float | None,
        retry: RetryPolicy,
        emit: Emit,
        on_event: Callable[[BranchEvent], None],
    ) -> None:
        """Run one group, and hand each event to ``on_event`` as it comes.

        Args:
            request: The group.
            total: Seconds for the group's own work; None for no limit.
            retry: How often, and how patiently, it is sent again.
            emit: Called when a request is sent and when it is over.
            on_event: Called with every event.

        Raises:
            APIError: The group failed.
            APITimeoutError: It took longer than ``total``, or waited too long for its
                turn.
            ClientClosedError: The client was closed before the group's end.
        """

        async def work() -> None:
            async with aclosing(self._events(request, retry, emit)) as events:
                async for event in events:
                    on_event(event)

        async with self._turn(request):
            await self._within(total, _deadline(total), work)

    async def events(
        self,
        request: GroupRequest,
        *,
        total: float | None,
        retry: RetryPolicy,
        emit: Emit,
    ) -> AsyncGenerator[BranchEvent, None]:
        """Run one group as `run` does; yield its events as they come."""
        async with self._turn(request):
            deadline = _deadline(total)
            async with aclosing(self._events(request, retry, emit)) as events:
                step = partial(anext, events, None)
                while event := await self._within(total, deadline, step):
                    yield event

    async def ask(
        self,
        question: Callable[[Transport], Awaitable[T]],
        *,
        total: float | None,
        retry: RetryPolicy,
    ) -> T:
        """Ask the server for something other than a group; waits for no turn.

        Raises:
            APIError: The server could not be asked.
            APITimeoutError: It took longer than ``total`` seconds.
            ClientClosedError: The client was closed before the answer.
        """
        self.check_loop()
        work = partial(RetryingTransport(self._transport, retry).ask, question)
        return await self._within(total, _deadline(total), work)

    async def aclose(self) -> None:
        """End what is under way with `ClientClosedError`, then close the transport."""
        self._closed = True
        if self._loop is not None:
            self.check_loop()
        for scope in tuple(self._waiting):
            scope.cancel()
        await self._transport.aclose()

    def check_loop(self) -> None:
        """Belong to the first event loop that asks.

        Raises:
            WrongLoopError: It belongs to another one.
        """
        here = _LOOP.get(None)
        if here is None:
            here = object()
            _LOOP.set(here)
        if self._loop is None:
            self._loop = here
        if self._loop is not here:
            raise WrongLoopError(
                "The client was first used in another event loop, which its "
                "connections belong to; make one client for each asyncio.run, or use "
                "radixflow_sdk.RadixFlow, which any thread may call."
            )

    def _events(
        self, request: GroupRequest, retry: RetryPolicy, emit: Emit
    ) -> AsyncGenerator[BranchEvent, None]:
        def learn(event: RequestSent | RequestEnded) -> None:
            if isinstance(event, RequestEnded):
                self._adaptive.note(event, now=anyio.current_time())
                if self._turns().total_tokens != self._adaptive.limit:
                    self._turns().total_tokens = self._adaptive.limit
            emit(event)

        transport = RetryingTransport(self._transport, retry, emit=learn)
        return transport.stream(request)

    @asynccontextmanager
    async def _turn(self, request: GroupRequest) -> AsyncGenerator[None, None]:
        turn = object()
        try:
            await self._take_turn(turn)
            try:
                yield
            finally:
                self._turns().release_on_behalf_of(turn)
        except APITimeoutError as error:
            error.request_id = error.request_id or request.request_id
            error.group_id = error.group_id or request.group_id
            raise

    def _turns(self) -> anyio.CapacityLimiter:
        # Made on first use: it belongs to the event loop that the client is used in.
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._concurrency)
        return self._limiter

    async def _take_turn(self, turn: object) -> None:
        self.check_open()
        self.check_loop()
        turns = self._turns()
        with suppress(anyio.WouldBlock):
            turns.acquire_on_behalf_of_nowait(turn)
            return
        with anyio.CancelScope(deadline=_deadline(self._pool)) as scope:
            self._waiting.add(scope)
            try:
                await turns.acquire_on_behalf_of(turn)
                return
            finally:
                self._waiting.discard(scope)
        self.check_open()
        raise APITimeoutError(
            f"No connection of the client became free within {self._pool:g} s; raise "
            "max_connections or Timeouts.pool, or ask for less at once."
        )

    async def _within(
        self, total: float | None, deadline: float, work: Callable[[], Awaitable[T]]
    ) -> T:
        self.check_open()
        with anyio.CancelScope(deadline=deadline) as scope:
            self._waiting.add(scope)
            try:
                return await work()
            finally:
                self._waiting.discard(scope)
        self.check_open()
        raise APITimeoutError(
            f"The server took longer than the total timeout of {total:g} s; raise "
            "Timeouts.total or send less at once."
        )


def _deadline(total: float | None) -> float:
    return math.inf if total is None else anyio.current_time() + total
