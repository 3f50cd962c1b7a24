"""Refuse new work while the server shuts down.

vLLM shuts its engine down first. With ``--shutdown-timeout`` the engine finishes what
it has and rejects later requests, whose clients would read an empty answer. From the
signal on, new work is refused with 503 and ``Retry-After``, and ``/health``
fails, so that a load balancer uses another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server_ext.api.protocol import RequestRefused

if TYPE_CHECKING:
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

__all__ = ["DrainMiddleware", "draining_refusal", "watch_shutdown"]

RETRY_SECONDS = 1
"""Another replica can answer at once."""


SUBMIT_SECONDS = 0.5
"""Time to hand the branches of running groups to the engine before it stops."""


class DrainMiddleware:
    """Refuse new work once the server shuts down.

    Args:
        app: what answers until then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "http" and is_draining(scope["app"].state):
            if scope["method"] == "GET" and scope["path"] == "/health":
                app = Response(status_code=503)
            elif scope["method"] == "POST":
                refusal = draining_refusal()
                headers = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
                app = JSONResponse(refusal.body(), refusal.status, headers)
        await app(scope, receive, send)


def watch_shutdown(engine_client: EngineClient, state: State) -> None:
    """Mark `state` as draining once vLLM shuts its engine down.

    vLLM calls ``engine_client.shutdown`` in a thread on the signal, and has no other
    hook for it. Branches of running groups that wait for their turn enter the engine
    first: it finishes them within ``--shutdown-timeout`` and accepts none later.
    """
    native = engine_client.shutdown
    loop, owner = asyncio.get_running_loop(), threading.get_ident()

    def shutdown(*args: Any, **options: Any) -> None:
        state.radixflow_draining = True
        if loop.is_running() and threading.get_ident() != owner:
            submitted = asyncio.run_coroutine_threadsafe(_submit_waiting(state), loop)
            with contextlib.suppress(TimeoutError):
                submitted.result(10 * SUBMIT_SECONDS)
        native(*args, **options)

    engine_client.shutdown = shutdown


async def _submit_waiting(state: State) -> None:
    window = state.radixflow.load.window
    if window is not None and window.waiting:
        window.open()
        await asyncio.sleep(SUBMIT_SECONDS)


def is_draining(state: State) -> bool:
    """Whether the server is shutting down."""
    return bool(getattr(state, "radixflow_draining", False))


def draining_refusal() -> RequestRefused:
    """The refusal of new work."""
    return RequestRefused(
        503, "draining", "the server is shutting down: ask another replica"
    )
