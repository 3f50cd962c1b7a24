"""Just enough HTTP/1.1 to put an ASGI app on a socket without a web server installed.

Connections are kept alive; a client that goes away cancels its request. Not for
production: no TLS, no limits, no pipelining.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream

from radixflow_sdk._dispatch import ScopedTasks

_App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


@asynccontextmanager
async def listen(app: _App, *, port: int) -> AsyncIterator[str]:
    """Serve ``app`` on 127.0.0.1 for the length of a block; give its URL."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, ScopedTasks() as tasks:
        tasks.start_soon(listener.serve, partial(_serve, app))
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"


async def _serve(app: _App, stream: SocketStream) -> None:
    try:
        async with stream:
            connection = _Connection(stream)
            while await connection.next_request():
                await connection.answer(app)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the client went away while it was being answered


class _Connection:
    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._rest = bytearray()
        self._scope: dict[str, Any] = {}
        self._body = b""
        self._ended = False

    async def next_request(self) -> bool:
        """Read a request; False when the client has closed the connection."""
        try:
            while (end := self._rest.find(b"\r\n\r\n")) < 0:
                self._rest += await self._stream.receive()
            first, *lines = bytes(self._rest[:end]).split(b"\r\n")
            headers = [_header(line) for line in lines]
            length = int(dict(headers).get(b"content-length", 0))
            del self._rest[: end + 4]
            while len(self._rest) < length:
                self._rest += await self._stream.receive()
        except anyio.EndOfStream:
            return False
        self._body = bytes(self._rest[:length])
        del self._rest[:length]
        method, target, _ = first.decode("latin-1").split(" ")
        path, _, query = target.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
        }
        return True

    async def answer(self, app: _App) -> None:
        self._ended = False
        async with ScopedTasks() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            await app(self._scope, self._receive, self._send)
        if not self._ended:  # the client went away
            await self._stream.aclose()

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Cancel the answer when the client goes away."""
        try:
            while True:
                self._rest += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            scope.cancel()

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            lines = [b"HTTP/1.1 %d -" % message["status"]]
            lines += [b"%s: %s" % pair for pair in message["headers"]]
            lines += [b"transfer-encoding: chunked", b"", b""]
            await self._stream.send(b"\r\n".join(lines))
        elif body := message["body"]:
            await self._stream.send(b"%x\r\n%s\r\n" % (len(body), body))
        if message.get("more_body") is False:
            await self._stream.send(b"0\r\n\r\n")
            self._ended = True


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()
