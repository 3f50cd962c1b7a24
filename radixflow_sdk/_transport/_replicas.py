"""Many servers, one document to each: rendezvous hashing, with fail-over.

Every request about one document goes to the same server, whose prefix cache knows it;
when a server goes, only its own documents move, and they come back with it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import anyio

from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk._transport._base import Transport
from radixflow_sdk.exceptions import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    StreamBrokenError,
)

T = TypeVar("T")

logger = logging.getLogger("radixflow")

_FIRST_BACKOFF = 1.0
_MAX_BACKOFF = 30.0


class Replicas:
    """Sends each request to the server that its session belongs to.

    A server that cannot be reached is marked unavailable: first for a second, then
    twice as long each time, and it is asked for its models before it gets work again.
    Meanwhile the next server in the session's order takes its place. When all are
    unavailable, all are tried.

    Args:
        servers: A transport for each URL.
        clock: Seconds, of any origin.
    """

    def __init__(
        self,
        servers: Mapping[str, Transport],
        *,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._backoffs: dict[str, tuple[float, float]] = {}  # until when, how long

    async def models(self) -> tuple[str, ...]:
        """Names of the models of the first server that can be reached.

        Raises:
            APIError: No server could be asked.
        """
        return await self._ask_one(lambda server: server.models())

    async def stats(self) -> Mapping[str, Any]:
        """The statistics of the first server that can be reached.

        Raises:
            APIError: No server could be asked, or it has no plug-in.
        """
        return await self._ask_one(lambda server: server.stats())

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request to its server, or to the next one that can be reached.

        Raises:
            APIError: No server could be reached, or the one that was failed.
        """
        left = self._order(request.session_id)
        while left:
            url = left.pop(0)
            try:
                await self._check(url)
                async with aclosing(self._servers[url].stream(request)) as events:
                    async for event in events:
                        yield event
                self._backoffs.pop(url, None)
                return
            except APIError as error:
                gone = self._mark_unavailable(url, error)
                # Lost before the answer began: nothing was yielded, nothing is lost.
                if not (gone and left and isinstance(error, APIConnectionError)):
                    raise

    async def aclose(self) -> None:
        """Close every server's transport."""
        for server in self._servers.values():
            await server.aclose()

    async def _ask_one(self, question: Callable[[Transport], Awaitable[T]]) -> T:
        *others, last = self._order("")
        for url in others:
            try:
                return await question(self._servers[url])
            except APIError as error:
                if not self._mark_unavailable(url, error):
                    raise
        return await question(self._servers[last])

    def _order(self, session: str) -> list[str]:
        """The session's servers, its own first, the unavailable ones last."""

        def weight(url: str) -> bytes:
            return hashlib.blake2b(f"{session}\0{url}".encode()).digest()

        now = self._clock()
        ranked = sorted(self._servers, key=weight)
        return sorted(ranked, key=lambda url: self._until(url) > now)

    def _until(self, url: str) -> float:
        return self._backoffs.get(url, (0.0, 0.0))[0]

    async def _check(self, url: str) -> None:
        """Ask a server whose backoff is over whether it answers."""
        if url in self._backoffs and self._until(url) <= self._clock():
            self._back_off(url)  # meanwhile nobody else asks
            await self._servers[url].models()
            del self._backoffs[url]

    def _mark_unavailable(self, url: str, error: APIError) -> bool:
        if not _is_gone(error):
            return False
        if self._until(url) <= self._clock():
            self._back_off(url)
            logger.info("%s marked unavailable after %s", url, type(error).__name__)
        return True

    def _back_off(self, url: str) -> None:
        _, last = self._backoffs.get(url, (0.0, _FIRST_BACKOFF / 2))
        self._backoffs[url] = (
            self._clock() + min(last * 2, _MAX_BACKOFF),
            min(last * 2, _MAX_BACKOFF),
        )


def _is_gone(error: APIError) -> bool:
    if isinstance(error, APIStatusError):
        return error.status in (502, 504) or error.code == "engine_dead"
    return isinstance(error, APIConnectionError | APITimeoutError | StreamBrokenError)
