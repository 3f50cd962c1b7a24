"""One ``POST /v1/branches`` and its NDJSON answer.

Leaving the stream in any way closes the answer; the server then aborts what is
unfinished.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixflow_sdk._messages import (
    BranchEvent,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
)
from radixflow_sdk._transport._http import Answer, HTTPSession
from radixflow_sdk._transport._ndjson import read_lines
from radixflow_sdk._transport._wire import read_event, write_request
from radixflow_sdk.exceptions import InvalidResponseError, StreamBrokenError


async def stream_branches(
    http: HTTPSession, request: GroupRequest
) -> AsyncGenerator[BranchEvent, None]:
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
        http.open(
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
