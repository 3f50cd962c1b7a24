"""The ``vllm.endpoint_plugins`` entry: routes onto vLLM's own API server."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm.logger import init_logger

from server_ext.api import page
from server_ext.api.exposition import SchedulerCollector
from server_ext.api.router import router
from server_ext.api.server import Server
from server_ext.config import page_wanted

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

__all__ = ["RadixFlowEndpoints"]

logger = init_logger("vllm.radixflow")


class RadixFlowEndpoints:
    """``/v1/branches``, ``/v1/radixflow/...`` and, where asked for, the page."""

    name = "radixflow"
    required_tasks: Any = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Called once while vLLM builds its app."""
        app.include_router(router)
        if page_wanted(os.environ):
            app.include_router(page.router)
            logger.info("RadixFlow page: /radixflow")

    async def init_state(
        self, engine_client: EngineClient | None, state: State, args: Namespace
    ) -> None:
        """Called once when the engine is up; says what the server runs with."""
        if engine_client is None:
            return
        server = await Server.build(engine_client, args)
        state.radixflow = server
        if server.route.ours:
            collector = SchedulerCollector(server.snapshot)
            REGISTRY.register(collector)
            # Kept on the state: the loop holds its tasks by weak reference only.
            state.radixflow_metrics = asyncio.create_task(collector.follow())
        logger.info("%s", _describe(server.startup))


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
        f"{settings['rows']} rows a round, async scheduling {asynchronous}"
    )
