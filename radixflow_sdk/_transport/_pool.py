"""Connections: one httpx client for each request under way, used again when it is over.

httpx's own pool looks at every connection for every other one on each request, and a
request cancelled inside it can leave it stuck (httpcore#1093). Here a client carries
one request at a time, and one that saw an error is closed, so neither can happen. How
many there are is bounded by who calls: a group needs a turn first. This room must not
know the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import httpx

from radixflow_sdk._config import Timeouts, check_kind
from radixflow_sdk._transport._errors import check_open
from radixflow_sdk.exceptions import APIStatusError

HTTPClient: TypeAlias = httpx.AsyncClient

IDLE_SECONDS = 4.0
"""How long a connection may lie idle and be used again.  vLLM's server closes it after
5; one that is used as it closes costs a request."""


class Pool:
    """Lends httpx clients.

    Args:
        timeouts: For the clients that it makes.
        http_client: Lent to all, and left open; None makes clients as needed.
    """

    def __init__(self, timeouts: Timeouts, http_client: HTTPClient | None) -> None:
        self._timeout = httpx.Timeout(
            connect=timeouts.connect,
            read=timeouts.read,
            write=timeouts.write,
            pool=None,
        )
        if http_client is not None:
            check_kind("http_client", http_client, httpx.AsyncClient)
        self._given = http_client
        self._idle: list[HTTPClient] = []
        self._verify = None if http_client else httpx.create_ssl_context()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[HTTPClient, None]:
        """A client for one request.

        Raises:
            ClientClosedError: The caller's own client is closed.
        """
        if self._given is not None:
            check_open(self._given)
            yield self._given
            return
        client = self._idle.pop() if self._idle else self._make()
        whole = False
        try:
            yield client
            whole = True
        except APIStatusError:
            whole = True  # an answer like another
            raise
        finally:
            if whole:
                self._idle.append(client)
            else:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def aclose(self) -> None:
        """Close the clients that are not lent; the others close when they come back."""
        while self._idle:
            await self._idle.pop().aclose()

    def _make(self) -> HTTPClient:
        return httpx.AsyncClient(
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS),
            verify=self._verify or True,
        )
