"""The ``vllm.endpoint_plugins`` entry: routes onto vLLM's own API server."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm.logger import init_logger

from server_ext.api import page, rerank
from server_ext.api.drain import DrainMiddleware, watch_shutdown
from server_ext.api.exposition import SchedulerCollector
from server_ext.api.router import router
from server_ext.api.server import Server
from server_ext.policy.config import page_wanted

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

__all__ = ["RadixFlowEndpoints"]

logger = init_logger("vllm.radixflow")

SHUTDOWN_SECONDS = 2
"""How long the web server waits for open answers after the engine has ended."""


class RadixFlowEndpoints:
    """``/v1/branches``, ``/rerank``, ``/v1/radixflow/...``; the page if enabled."""

    name = "radixflow"
    required_tasks: Any = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Called once while vLLM builds its app."""
        app.include_router(router)
        app.include_router(rerank.router)
        app.add_middleware(DrainMiddleware)
        if page_wanted(os.environ):
            app.include_router(page.router)
            logger.info("RadixFlow page: /radixflow")

    async def init_state(
        self, engine_client: EngineClient | None, state: State, args: Namespace
    ) -> None:
        """Called once when the engine is up; logs the settings in effect."""
        if engine_client is None:
            return
        server = await Server.build(engine_client, args)
        state.radixflow = server
        watch_shutdown(engine_client, state)
        state.radixflow_shutdown = asyncio.create_task(_bound_shutdown(state))
        if server.route.ours:
            collector = SchedulerCollector(server.snapshot)
            REGISTRY.register(collector)
            # Kept on the state: the loop holds its tasks by weak reference only.
            state.radixflow_metrics = asyncio.create_task(collector.follow())
        logger.info("%s", _describe(server.startup))


async def _bound_shutdown(state: State) -> None:
    """Bound the shutdown of the web server, once there is one.

    vLLM ends its engine first, and then waits without limit for open answers, which
    nothing computes any more. With a bound their clients can retry on another replica.
    """
    while not hasattr(state, "server"):  # noqa: ASYNC110 - vLLM has no hook for it
        await asyncio.sleep(0.5)
    if state.server.config.timeout_graceful_shutdown is None:
        state.server.config.timeout_graceful_shutdown = SHUTDOWN_SECONDS


def _describe(startup: dict[str, Any]) -> str:
    settings = startup.get("settings")
    if settings is None:
        return (
            f"RadixFlow endpoints on the scheduler {startup['scheduler']}: scores are "
            "exact but recompute the document; start with `radixflow serve` for reuse"
        )
    asynchronous = "on" if settings["async_scheduling"] else "off"
    return (
        f"RadixFlow: vLLM {startup['vllm_version']}, {startup['scheduler']} "
        f"(policy {startup['policy']['name']}), block {settings['block_size']}, match "
        f"unit {settings['match_unit']}, {settings['token_budget']} tokens and "
        f"{settings['rows']} slots a round, async scheduling {asynchronous}"
    )
