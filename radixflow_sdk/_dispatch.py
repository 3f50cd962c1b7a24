"""When groups run: concurrency, timeouts and cancellation.

A group first waits for a slot; its total timeout starts when it gets one. Every wait
runs in a cancel scope of its own, which ends before an event is yielded, so that a
consumer may stop, be canceled or continue from another task. Fewer groups run at a time
while the server is overloaded.
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
    """Tasks that run during a block and are canceled at its end.

    The block's exception propagates unchanged; a task group alone would wrap it into an
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
        # Only the task group knows whether it or an outer scope was canceled.
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._tasks.__aexit__(kind, error, traceback)
        await self._tasks.__aexit__(None, None, None)
        return None


BACKLOG_LIMIT = 8.0
"""Rounds of work queued on a server above which a client sends fewer groups."""

# One value per event loop; it ends with the loop.
_LOOP: RunVar[object] = RunVar("radixflow_loop")


class AdaptiveLimit:
    """Concurrent groups: additive increase, multiplicative decrease.

    The limit is halved when the server is overloaded: it answers 429 or 503, or reports
    a backlog of more than `BACKLOG_LIMIT` rounds, where further groups would only wait
    on their own timeout. A burst counts once: requests sent before the limit was halved
    do not halve it again. Any other complete answer adds ``1 / limit``. The caller
    passes the time.

    Args:
        maximum: The initial limit, and its upper bound.

    Attributes:
        limit: Maximum concurrent groups, at least 1.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._exact = float(maximum)
        self._halved_at = -math.inf

    @property
    def limit(self) -> int:
        """Maximum concurrent groups, at least 1."""
        return int(self._exact)

    def note(self, ended: RequestEnded, *, now: float) -> None:
        """Adapt to one request that has just ended."""
        if _is_overload(ended):
            if now - ended.elapsed >= self._halved_at:
                self._exact = max(self._exact / 2, 1.0)
                self._halved_at = now
        elif ended.error is None:
            self._exact = min(self._exact + 1 / self._exact, self._maximum)


def _is_overload(ended: RequestEnded) -> bool:
    if isinstance(ended.error, APIStatusError):
        return ended.error.status in (429, 503)
    return ended.backlog is not None and ended.backlog > BACKLOG_LIMIT


class Dispatcher:
    """Runs groups over one transport.

    Args:
        transport: Sends single requests.
        concurrency: Maximum concurrent groups.
        pool: Seconds that a group may wait for a slot; None for no limit.
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
        """Maximum concurrent groups, adapted to the server's answers."""
        return self._adaptive.limit

    def check_open(self) -> None:
        """Refuse work after `aclose`.

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
        """Run one group, and call ``on_event`` with each event as it arrives.

        Args:
            request: The group.
            total: Seconds for the group, without the wait for a slot; None: no limit.
            retry: Number of attempts, and the waits between them.
            emit: Called when a request is sent and when it ends.
            on_event: Called with every event.

        Raises:
            APIError: The group failed.
            APITimeoutError: It took longer than ``total``, or waited too long for a
                slot.
            ClientClosedError: The client was closed before the group's end.
        """

        async def work() -> None:
            async with aclosing(self._events(request, retry, emit)) as events:
                async for event in events:
                    on_event(event)

        async with self._slot(request):
            await self._within(total, _deadline(total), work)

    async def events(
        self,
        request: GroupRequest,
        *,
        total: float | None,
        retry: RetryPolicy,
        emit: Emit,
    ) -> AsyncGenerator[BranchEvent, None]:
        """Run one group as `run` does; yield its events as they arrive."""
        async with self._slot(request):
            deadline = _deadline(total)
            async with aclosing(self._events(request, retry, emit)) as events:
                step = partial(anext, events, None)
                while event := await self._within(total, deadline, step):
                    yield event

    async def query(
        self,
        query: Callable[[Transport], Awaitable[T]],
        *,
        total: float | None,
        retry: RetryPolicy,
    ) -> T:
        """Request something other than a group, without waiting for a slot.

        Raises:
            APIError: The request failed.
            APITimeoutError: It took longer than ``total`` seconds.
            ClientClosedError: The client was closed before the answer.
        """
        self.check_loop()
        work = partial(RetryingTransport(self._transport, retry).query, query)
        return await self._within(total, _deadline(total), work)

    async def aclose(self) -> None:
        """End calls in progress with `ClientClosedError`, then close the transport."""
        self._closed = True
        if self._loop is not None:
            self.check_loop()
        for scope in tuple(self._waiting):
            scope.cancel()
        await self._transport.aclose()

    def check_loop(self) -> None:
        """Bind the client to the first event loop that uses it.

        Raises:
            WrongLoopError: It is bound to another one.
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
        def adapt(event: RequestSent | RequestEnded) -> None:
            if isinstance(event, RequestEnded):
                self._adaptive.note(event, now=anyio.current_time())
                if self._slots().total_tokens != self._adaptive.limit:
                    self._slots().total_tokens = self._adaptive.limit
            emit(event)

        transport = RetryingTransport(self._transport, retry, emit=adapt)
        return transport.stream(request)

    @asynccontextmanager
    async def _slot(self, request: GroupRequest) -> AsyncGenerator[None, None]:
        borrower = object()
        try:
            await self._acquire_slot(borrower)
            try:
                yield
            finally:
                self._slots().release_on_behalf_of(borrower)
        except APITimeoutError as error:
            error.request_id = error.request_id or request.request_id
            error.group_id = error.group_id or request.group_id
            raise

    def _slots(self) -> anyio.CapacityLimiter:
        # Created on first use, since it belongs to the client's event loop.
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._concurrency)
        return self._limiter

    async def _acquire_slot(self, borrower: object) -> None:
        self.check_open()
        self.check_loop()
        slots = self._slots()
        with suppress(anyio.WouldBlock):
            slots.acquire_on_behalf_of_nowait(borrower)
            return
        with anyio.CancelScope(deadline=_deadline(self._pool)) as scope:
            self._waiting.add(scope)
            try:
                await slots.acquire_on_behalf_of(borrower)
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
