"""Processes with vLLM's web server and signals, our routes, and a slow fake engine.

    python -m tests.server.drained NUMBER

They write their process ids and ports to standard output; the process that started
them writes their ids and exit codes once they have ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.launchers.launcher import serve_http

from server_ext.api.drain import DrainMiddleware, watch_shutdown
from tests.server.fake_engine import FakeEngine, ended, finished, serve

REQUEST_SECONDS = 0.2
SHUTDOWN_SECONDS = 20.0


class DrainingEngine(FakeEngine):
    """Ends what it has when it is shut down, and rejects the rest, as vLLM's does."""

    vllm_config = SimpleNamespace(shutdown_timeout=SHUTDOWN_SECONDS)
    is_running = True
    stopped = threading.Event()

    async def generate(self, *args: Any, **options: Any) -> Any:
        if self.stopped.is_set():
            yield ended("abort")
            return
        self.running.add(args[2])
        await asyncio.sleep(REQUEST_SECONDS)
        async for output in super().generate(*args, **options):
            yield output

    async def check_health(self) -> None:
        """It is well."""

    def shutdown(self, timeout: float) -> None:
        self.stopped.set()
        end = time.monotonic() + timeout
        while self.running and time.monotonic() < end:
            time.sleep(0.01)


async def main() -> None:
    engine = DrainingEngine(finished)
    app = serve(engine)
    app.add_middleware(DrainMiddleware)
    app.add_api_route("/health", engine.check_health)
    app.state.engine_client = engine
    watch_shutdown(engine, app.state)  # type: ignore[arg-type]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        say(os.getpid(), port)
        ending = await serve_http(
            app,
            listener,
            host="127.0.0.1",
            port=port,
            log_level="critical",
            timeout_graceful_shutdown=2,
        )
        await ending


def say(*numbers: int) -> None:
    sys.stdout.write(" ".join(map(str, numbers)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        if not os.fork():  # vLLM is imported once
            asyncio.run(main())
            os._exit(0)
    for _ in range(int(sys.argv[1])):
        child, status = os.wait()
        say(child, os.waitstatus_to_exitcode(status))
