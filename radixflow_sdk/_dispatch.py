"""When things happen: how many groups at a time, how long each may take, and the end.

A group waits for its turn first; its clock starts when its work does. Every wait runs
in a cancel scope of its own that is left before an event is handed on, so that a
consumer may stop, be cancelled or come back from another task. This room must not look
into requests or events.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import anyio

from radixflow_sdk._transport import Transport
from radixflow_sdk.exceptions import APITimeoutError, ClientClosedError
from radixflow_sdk.types import BranchEvent, BranchRequest

T = TypeVar("T")


class Dispatcher:
    """Runs groups over one transport.

    Args:
        transport: Carries them.
        concurrency: Groups under way at a time.
    """

    def __init__(self, transport: Transport, *, concurrency: int) -> None:
        self._transport = transport
        self._concurrency = concurrency
        self._limiter: anyio.CapacityLimiter | None = None
        self._waiting: set[anyio.CancelScope] = set()
        self._closed = False

    def check_open(self) -> None:
        """Refuse work once closed.

        Raises:
            ClientClosedError: It is closed.
        """
        if self._closed:
            raise ClientClosedError("The client is closed; make a new one.")

    async def events(
        self, request: BranchRequest, *, total: float | None
    ) -> AsyncGenerator[BranchEvent, None]:
        """Run one group; yield its events as they come.

        Args:
            request: The group.
            total: Seconds for the group's own work; None for no limit.

        Raises:
            APIError: The group failed.
            APITimeoutError: It took longer than ``total``.
            ClientClosedError: The client was closed before the group's end.
        """
        turn = object()
        await self._take_turn(turn)
        try:
            deadline = _deadline(total)
            async with aclosing(self._transport.stream(request)) as events:
                step = partial(anext, events, None)
                while event := await self._within(total, deadline, step):
                    yield event
        except APITimeoutError as error:
            error.request_id = error.request_id or request.request_id
            error.group_id = error.group_id or request.group_id
            raise
        finally:
            self._turns().release_on_behalf_of(turn)

    async def models(self, *, total: float | None) -> tuple[str, ...]:
        """Names of the served models; waits for no turn.

        Raises:
            APIError: The server could not be asked.
            APITimeoutError: It took longer than ``total`` seconds.
            ClientClosedError: The client was closed before the answer.
        """
        return await self._within(total, _deadline(total), self._transport.models)

    async def aclose(self) -> None:
        """End what is under way with `ClientClosedError`, then close the transport."""
        self._closed = True
        for scope in tuple(self._waiting):
            scope.cancel()
        await self._transport.aclose()

    def _turns(self) -> anyio.CapacityLimiter:
        # Made on first use: it belongs to the event loop that the client is used in.
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._concurrency)
        return self._limiter

    async def _take_turn(self, turn: object) -> None:
        self.check_open()
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                await self._turns().acquire_on_behalf_of(turn)
                return
            finally:
                self._waiting.discard(scope)
        self.check_open()

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
