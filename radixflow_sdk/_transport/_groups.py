"""One ``POST /v1/branches`` and its NDJSON answer, over httpx.

Leaving the stream in any way closes the answer; the server then aborts what is
unfinished. This room must not retry and must not interpret events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from radixflow_sdk._config import Settings
from radixflow_sdk._transport._base import Transport
from radixflow_sdk._transport._errors import Wall, status_error
from radixflow_sdk._transport._ndjson import read_lines
from radixflow_sdk._transport._pool import HTTPClient, Pool
from radixflow_sdk._transport._replicas import Replicas
from radixflow_sdk._transport._wire import (
    read_event,
    read_models,
    read_stats,
    write_request,
)
from radixflow_sdk.exceptions import InvalidResponseError, StreamBrokenError
from radixflow_sdk.types import (
    BranchEvent,
    BranchRequest,
    GroupCompleted,
    GroupStarted,
)

# An error body is for people; a stray answer of gigabytes is not read to its end.
_MAX_ERROR_BYTES = 64 * 2**10


class HTTPTransport:
    """Speaks the wire to one server.

    Args:
        settings: Where the server is.
        http_client: Used as it is and left open; None makes one that is closed with
            this.
        base_url: One of the settings' servers; None: the first.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        http_client: HTTPClient | None = None,
        base_url: str | None = None,
    ) -> None:
        self._base_url = base_url or settings.base_urls[0]
        self._api_key = settings.api_key
        self._pool = Pool(settings.timeouts, http_client)

    async def models(self) -> tuple[str, ...]:
        """Names of the served models (``GET /v1/models``).

        Raises:
            APIError: The server could not be asked.
        """
        return read_models(await self._get("/v1/models"))

    async def stats(self) -> Mapping[str, Any]:
        """The server's own account (``GET /v1/radixflow/stats``).

        Raises:
            APIError: The server could not be asked, or has no plug-in.
        """
        return read_stats(await self._get("/v1/radixflow/stats"))

    async def stream(self, request: BranchRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Raises:
            APIError: The request failed.
        """
        url = f"{self._base_url}/v1/branches"
        wall = Wall(url, request_id=request.request_id, group_id=request.group_id)
        headers = self._headers(
            {
                "Accept": "application/x-ndjson",
                "Content-Type": "application/json",
                "X-Request-ID": request.request_id,
                "X-Session-ID": request.session_id,
                **request.extra_headers,
            }
        )
        with wall.guard():
            async with (
                self._pool.client() as client,
                client.stream(
                    "POST", url, content=write_request(request), headers=headers
                ) as response,
            ):
                await self._check_status(response, url)
                wall.started = True
                async with aclosing(_read_events(response, request)) as events:
                    async for event in events:
                        yield event

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the caller's client."""
        await self._pool.aclose()

    async def _get(self, path: str) -> bytes:
        url = f"{self._base_url}{path}"
        headers = self._headers({"Accept": "application/json"})
        with Wall(url).guard():
            async with (
                self._pool.client() as client,
                client.stream("GET", url, headers=headers) as response,
            ):
                await self._check_status(response, url)
                return await response.aread()

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        key = self._api_key
        return headers if key is None else {**headers, "Authorization": f"Bearer {key}"}

    async def _check_status(self, response: httpx.Response, url: str) -> None:
        if response.status_code == 200:
            return
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_ERROR_BYTES:
                break
        raise status_error(
            response.status_code,
            response.headers,
            bytes(body),
            url=url,
            api_key=self._api_key,
        )


async def _read_events(
    response: httpx.Response, request: BranchRequest
) -> AsyncGenerator[BranchEvent, None]:
    """Events in the wire's order; the last one once the body has ended.

    Read to the end, the connection can be used again, and the server does not take the
    close for a client that went away.
    """
    started = False
    completed: GroupCompleted | None = None
    async with aclosing(read_lines(response.aiter_bytes())) as lines:
        async for line in lines:
            event = read_event(line, request)
            if event is None:
                continue
            # Exactly the first event is a start, and nothing comes after the end.
            if completed is not None or started is isinstance(event, GroupStarted):
                raise InvalidResponseError(
                    f"The server sent {type(event).__name__} out of order; report this "
                    "to whoever runs it."
                )
            started = True
            if isinstance(event, GroupCompleted):
                completed = event
            else:
                yield event
    if completed is None:
        raise StreamBrokenError(
            "The server's answer ended before group.completed; try again."
        )
    yield completed


def connect(settings: Settings, *, http_client: HTTPClient | None = None) -> Transport:
    """A transport to the server, or to all of the servers.

    Args:
        settings: Where they are.
        http_client: Used as it is and left open; None makes one.
    """
    servers = {
        url: HTTPTransport(settings, http_client=http_client, base_url=url)
        for url in settings.base_urls
    }
    return Replicas(servers) if len(servers) > 1 else servers[settings.base_urls[0]]
