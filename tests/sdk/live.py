"""An HTTP/1.1 server on a real socket that says its lines and waits for the client."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream

Script: TypeAlias = Sequence[bytes | anyio.Event]

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class LiveServer:
    """Plays one script a connection: bytes to send, or an event to wait for.

    Attributes:
        gone: For each connection on which the client went away, one token.
    """

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.url = ""
        self.accepted = 0
        self.arrived = anyio.Event()
        self._gone_in, self.gone = anyio.create_memory_object_stream[int](100)

    async def serve(self, stream: SocketStream) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        async with stream:
            await self._read_request(stream)
            self.arrived.set()
            for step in self.scripts.pop(0):
                if isinstance(step, anyio.Event):
                    await step.wait()
                else:
                    await stream.send(step)
            try:
                await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                self._gone_in.send_nowait(number)

    async def _read_request(self, stream: SocketStream) -> None:
        text = b""
        while b"\r\n\r\n" not in text:
            text += await stream.receive()
        head, _, rest = text.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        while len(rest) < length:
            rest += await stream.receive()

    def close(self) -> None:
        self._gone_in.close()
        self.gone.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(data: bytes) -> bytes:
    return HEAD + chunk(data) + b"0\r\n\r\n"


@asynccontextmanager
async def live(*scripts: Script) -> AsyncIterator[LiveServer]:
    server = LiveServer(*scripts)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()
            server.close()
