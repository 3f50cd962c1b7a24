"""What the plug-in asks of vLLM's own web server."""

import asyncio
from types import SimpleNamespace

import pytest

from server_ext.api import plugin

pytestmark = pytest.mark.asyncio


async def bounded(given: int | None) -> int | None:
    state, config = SimpleNamespace(), SimpleNamespace(timeout_graceful_shutdown=given)
    waiting = asyncio.create_task(plugin._bound_shutdown(state))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    state.server = SimpleNamespace(config=config)  # vLLM makes it later
    await waiting
    return config.timeout_graceful_shutdown


async def test_the_end_of_the_web_server_is_bounded() -> None:
    assert await bounded(None) == plugin.SHUTDOWN_SECONDS
    assert await bounded(30) == 30
