"""Long lists, read from the engine in pages and sent as each page arrives.

The engine makes a page between two rounds, so it is a small one, and no reader gets two
of them between the same rounds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import anyio.to_thread
from starlette.responses import StreamingResponse

from server_ext.api.perfetto import chrome_trace

if TYPE_CHECKING:
    from server_ext.api.server import Server

__all__ = ["arrivals_response", "rounds_response", "trace_response"]

SLICE = 500
"""Events of a trace that are encoded at once."""

Pages = AsyncIterator[Sequence[Any]]


async def rounds_response(server: Server, after: int) -> StreamingResponse:
    """``GET /v1/radixflow/rounds``."""
    first = await server.rounds_page(after)
    return _json({"v": 1}, "rounds", _rounds(server, first))


async def trace_response(server: Server) -> StreamingResponse:
    """``GET /v1/radixflow/trace``."""
    rounds: list[Any] = []
    async for page in _rounds(server, await server.rounds_page(0)):
        rounds += page
    events = await anyio.to_thread.run_sync(chrome_trace, rounds)

    async def slices() -> Pages:
        for start in range(0, len(events), SLICE):
            yield events[start : start + SLICE]
            await anyio.lowlevel.checkpoint()

    return StreamingResponse(_list(slices()), media_type="application/json")


async def arrivals_response(server: Server, after: int) -> StreamingResponse:
    """``GET /v1/radixflow/arrivals``."""
    first = await server.arrivals_page(after, 0)
    common = {
        name: value
        for name, value in first.items()
        if name not in ("arrivals", "next", "end", "dropped")
    }
    # Entries dropped while the list is read were in it, or are counted here.
    end = {"dropped": first["dropped"]}

    async def pages() -> Pages:
        page = first
        while True:
            yield page["arrivals"]
            end["dropped"] = page["dropped"]
            if page["next"] >= first["end"]:
                return
            page = await server.arrivals_page(after, page["next"])

    return _json({"v": 1, **common}, "arrivals", pages(), end)


async def _rounds(server: Server, first: Mapping[str, Any]) -> Pages:
    page = first
    while page["rounds"]:
        yield page["rounds"]
        last = page["rounds"][-1]["number"]
        if last >= first["newest"]:
            return
        page = await server.rounds_page(last)


def _json(
    begin: Mapping[str, Any],
    name: str,
    pages: Pages,
    end: Mapping[str, Any] | None = None,
) -> StreamingResponse:
    """An object with one long list; `end` is read once the list has been."""

    async def body() -> AsyncIterator[str]:
        yield f"{json.dumps(begin)[:-1]}, {json.dumps(name)}: "
        async for part in _list(pages):
            yield part
        yield f", {json.dumps(end)[1:]}" if end else "}"

    return StreamingResponse(body(), media_type="application/json")


async def _list(pages: Pages) -> AsyncIterator[str]:
    separator = "["
    async for page in pages:
        if page:
            yield separator + json.dumps(page)[1:-1]
            separator = ", "
    yield "[]" if separator == "[" else "]"
