"""The routes behind the web server that vLLM runs them on, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Serve `app` on a free port of 127.0.0.1, in a thread, for the length of a block.

    uvicorn with vLLM's settings where they matter: its HTTP parser, no time limits.
    """
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # at once: a client that comes before uvicorn waits
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)
