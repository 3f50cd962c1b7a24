"""HTTP: the routes, and the answer that streams a group.

The streaming answer owns its tasks: the group runs inside the response, so that a
client that goes away cancels it, and with it every branch in the engine.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from vllm.tracing import extract_trace_headers

from server_ext import __version__
from server_ext.api.adapters import adapters_of
from server_ext.api.body import read_body
from server_ext.api.group import Group
from server_ext.api.listing import (
    arrivals_response,
    rounds_response,
    trace_response,
)
from server_ext.api.progress import Groups
from server_ext.api.protocol import (
    BranchesRequest,
    RequestRefused,
    parse_request,
    shortened,
)
from server_ext.api.server import Server
from server_ext.api.tokens import GroupPrompts

__all__ = ["make_group", "router", "while_connected"]

T = TypeVar("T")

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
RANK = re.compile(r"[0-9]{1,9}")
ROUND = re.compile(r"[0-9]{1,18}")
MAX_BODY = 64 * 1024 * 1024
LARGE_BODY = 64 * 1024
"""Bytes from which a body is read in a thread."""
MAX_POLICY_BODY = 4096
BODY_SECONDS = 60.0
"""For a whole body; 64 MiB in that time are 9 Mbit a second."""
EVENTS_WAITING = 64
"""Events that may wait for a slow reader before the group waits too."""

router = APIRouter(tags=["radixflow"])


class GroupResponse(Response):
    """``application/x-ndjson``: a group's events, one line each, as they come."""

    media_type = "application/x-ndjson"

    def __init__(self, group: Group, groups: Groups) -> None:
        super().__init__(headers={"X-Request-ID": group.request_id})
        del self.headers["content-length"]
        self._group = group
        self._groups = groups

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the group until it ends or the client goes away."""
        async with anyio.create_task_group() as tasks:

            async def until_disconnected() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_disconnected)
            with self._groups.under_way(self._group):
                await self._stream(send)
            tasks.cancel_scope.cancel()

    async def _stream(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        events_in, events_out = anyio.create_memory_object_stream[dict[str, Any]](
            EVENTS_WAITING
        )
        # The group ends before its stream does: cancelled, it has nowhere to fail.
        async with events_out, anyio.create_task_group() as tasks:

            async def run() -> None:
                async with events_in:
                    await self._group.run(events_in.send)

            tasks.start_soon(run)
            async for event in events_out:
                await send({"type": "http.response.body", "body": _line(event)} | _MORE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_MORE = {"more_body": True}


def _line(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _refusing(handler: Callable[..., Awaitable[Response]]) -> Any:
    """Answer a `RequestRefused` of a route with its status and body."""

    @functools.wraps(handler)
    async def answer(*args: Any, **kwargs: Any) -> Response:
        try:
            return await handler(*args, **kwargs)
        except RequestRefused as refusal:
            # The unread part of a body must not be parsed as the next request.
            unread = refusal.status in (408, 413, 415)
            headers = {"Connection": "close"} if unread else None
            return JSONResponse(refusal.body(), refusal.status, headers)

    return answer


def _for_operators(handler: Callable[[Request], Awaitable[Response]]) -> Any:
    """A route that needs the admin key, where the server has one."""

    @_refusing
    @functools.wraps(handler)
    async def answer(http: Request) -> Response:
        server: Server = http.app.state.radixflow
        server.check_operator(http.headers.get("authorization"))
        return await handler(http)

    return answer


@router.post("/v1/branches", response_model=None)
@_refusing
async def branches(http: Request) -> Response:
    """Score N branches of one document; see ``docs/wire.md``."""
    return await _answer(http)


async def _answer(http: Request) -> Response:
    server: Server = http.app.state.radixflow
    group = await make_group(server, await _request(server, http), http)
    return GroupResponse(group, server.groups)


async def make_group(server: Server, request: BranchesRequest, http: Request) -> Group:
    """A group, checked and encoded, ready to run.

    Raises:
        RequestRefused: The server cannot take it, or its client went away.
    """
    adapter = server.adapters.find(http.app.state, request.model)
    model = server.check(request, adapters_of(http.app.state))
    given = _rank(http.headers.get("x-data-parallel-rank"), server.ranks)
    prompts = await _prompts(server, request, http)
    rank = given if given is not None else server.home(prompts, request.cache_salt)
    return Group(
        engine=server.engine,
        request=request,
        prompts=prompts,
        route=server.route,
        load=server.load,
        group_id=request.group_id or f"g-{secrets.token_hex(8)}",
        request_id=_request_id(http.headers.get("x-request-id")),
        model=model,
        adapter=adapter,
        tenant=_tenant(request, http),
        rank=rank,
        trace_headers=extract_trace_headers(http.headers) or None,
    )


def _tenant(request: BranchesRequest, http: Request) -> tuple[str, str]:
    """Who shares the engine with others: a salt's users, else those of an API key."""
    if request.cache_salt is not None:
        return "salt", request.cache_salt
    return "key", http.headers.get("authorization", "")


async def _request(server: Server, http: Request) -> BranchesRequest:
    """Read a large body off the event loop, too.

    json and pydantic hold the interpreter for as long as they read, but not for the
    whole time: other requests wait for a part of it, about 25 ms a MiB of token ids.
    """
    body = await read_body(http, max_bytes=MAX_BODY, seconds=BODY_SECONDS)
    read = functools.partial(parse_request, body, limit=server.prompt_limit)
    if len(body) <= LARGE_BODY:
        return read()
    return await anyio.to_thread.run_sync(read, limiter=server.readers)


async def _prompts(
    server: Server, request: BranchesRequest, http: Request
) -> GroupPrompts:
    """Encode the request's texts, unless its client goes away."""
    return await while_connected(
        http,
        lambda: server.encoders.prompts(
            request, vocabulary=server.vocabulary, limit=server.prompt_limit
        ),
    )


async def while_connected(http: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Do some work, and cancel it if the client goes away.

    Raises:
        RequestRefused: The work's own, or the client went away.
    """
    refusal = RequestRefused(400, "client_gone", "the client went away")
    async with anyio.create_task_group() as tasks:

        async def until_disconnected() -> None:
            while (await http.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_disconnected)
        try:
            return await work()
        except RequestRefused as error:
            refusal = error
        finally:
            tasks.cancel_scope.cancel()
    raise refusal


def _request_id(given: str | None) -> str:
    if given is not None and REQUEST_ID.fullmatch(given):
        return given
    return f"req-{secrets.token_hex(8)}"


def _rank(given: str | None, ranks: int) -> int | None:
    if given is None:
        return None
    if RANK.fullmatch(given) is None or int(given) >= ranks:
        raise RequestRefused(
            422,
            "invalid_request",
            f"X-data-parallel-rank: {shortened(given)} is not one of this server's "
            f"ranks 0 to {ranks - 1}",
            "X-data-parallel-rank",
        )
    return int(given)


def _after(http: Request) -> int:
    """The round in ``?after=``, 0 where it is left out."""
    given = http.query_params.get("after", "0")
    if ROUND.fullmatch(given) is None:
        raise RequestRefused(
            422,
            "invalid_request",
            f"after: {shortened(given)} is not the number of a round",
            "after",
        )
    return int(given)


@router.get("/v1/radixflow/stats", response_model=None)
@_refusing
async def stats(http: Request) -> Response:
    """Snapshot of the scheduler."""
    server: Server = http.app.state.radixflow
    snapshot = await server.snapshot()
    return JSONResponse(
        {
            "v": 1,
            "version": __version__,
            "vllm_version": snapshot.get("vllm_version"),
            "scheduler": snapshot["scheduler"],
            "policy": snapshot.get("policy"),
            "settings": snapshot.get("settings"),
            "counters": snapshot.get("counters"),
            "gauges": snapshot.get("gauges"),
            "engine": snapshot.get("engine"),
        }
    )


@router.get("/v1/radixflow/rounds", response_model=None)
@_for_operators
async def rounds(http: Request) -> Response:
    """The last rounds, row by row."""
    return await rounds_response(http.app.state.radixflow, _after(http))


@router.get("/v1/radixflow/groups", response_model=None)
@_for_operators
async def groups(http: Request) -> Response:
    """How far the groups of this process are."""
    server: Server = http.app.state.radixflow
    return JSONResponse({"v": 1, **server.groups.as_dict()})


@router.get("/v1/radixflow/arrivals", response_model=None)
@_for_operators
async def arrivals(http: Request) -> Response:
    """The last arrivals, for ``radixflow replay export``."""
    return await arrivals_response(http.app.state.radixflow, _after(http))


@router.get("/v1/radixflow/trace", response_model=None)
@_for_operators
async def trace(http: Request) -> Response:
    """The last rounds as a Chrome trace (open it in Perfetto)."""
    return await trace_response(http.app.state.radixflow)


@router.post("/v1/radixflow/policy", response_model=None)
@_for_operators
async def policy(http: Request) -> Response:
    """Switch the policy of an idle server."""
    server: Server = http.app.state.radixflow
    body = await read_body(http, max_bytes=MAX_POLICY_BODY, seconds=BODY_SECONDS)
    name = await server.switch_policy(body)
    return JSONResponse({"policy": name})
