"""One ``POST /v1/branches`` and its NDJSON answer, over httpx.

Leaving the stream in any way closes the answer; the server then aborts what is
unfinished. This room must not retry and must not interpret events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from radixflow_sdk._config import Settings
from radixflow_sdk._pipe import BranchEvent, GroupCompleted, GroupRequest, GroupStarted
from radixflow_sdk._transport._http import Answer, HTTPSession
from radixflow_sdk._transport._ndjson import read_lines
from radixflow_sdk._transport._pool import HTTPClient
from radixflow_sdk._transport._wire import (
    read_event,
    read_models,
    read_stats,
    write_request,
)
from radixflow_sdk.exceptions import InvalidResponseError, StreamBrokenError


class HTTPTransport:
    """Speaks the wire to one server.

    The arguments are those of `HTTPSession`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        http_client: HTTPClient | None = None,
        base_url: str | None = None,
    ) -> None:
        self.http = HTTPSession(settings, http_client=http_client, base_url=base_url)

    async def models(self) -> tuple[str, ...]:
        """Names of the served models (``GET /v1/models``).

        Raises:
            APIError: The server could not be asked.
        """
        return await self.http.get("/v1/models", read_models)

    async def stats(self) -> Mapping[str, Any]:
        """The server's own account (``GET /v1/radixflow/stats``).

        Raises:
            APIError: The server could not be asked, or has no plug-in.
        """
        return await self.http.get("/v1/radixflow/stats", read_stats)

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Raises:
            APIError: The request failed.
        """
        headers = {
            "Accept": "application/x-ndjson",
            "Content-Type": "application/json",
            "X-Request-ID": request.request_id,
            "X-Session-ID": request.session_id,
            **request.extra_headers,
        }
        async with (
            self.http.open(
                "POST",
                "/v1/branches",
                headers=headers,
                content=write_request(request),
                group_id=request.group_id,
                on_response=request.on_response,
            ) as answer,
            aclosing(_read_events(answer, request)) as events,
        ):
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the caller's client."""
        await self.http.aclose()


async def _read_events(
    answer: Answer, request: GroupRequest
) -> AsyncGenerator[BranchEvent, None]:
    """Events in the wire's order; the last one once the body has ended.

    Read to the end, the connection can be used again, and the server does not take the
    close for a client that went away.
    """
    started = False
    completed: GroupCompleted | None = None
    async with aclosing(read_lines(answer.chunks())) as lines:
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
                yield answer.secrets.redact_event(event)
    if completed is None:
        raise StreamBrokenError(
            "The server's answer ended before group.completed; try again."
        )
    yield completed
