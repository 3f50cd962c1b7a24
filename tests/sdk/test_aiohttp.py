"""httpx over aiohttp's connections (extra ``aiohttp``): the same client, and faults."""

import gc
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from radixflow_sdk import (
    APIConnectionError,
    APITimeoutError,
    RadixFlowClient,
    RetryPolicy,
)
from radixflow_sdk.testing import FakeServer, Fault

httpx_aiohttp = pytest.importorskip("httpx_aiohttp")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # aiohttp knows no other


@asynccontextmanager
async def connected(
    url: str | list[str], *, read: float = 10.0, attempts: int = 3, **options: Any
) -> AsyncGenerator[RadixFlowClient, None]:
    async with (
        httpx_aiohttp.HttpxAiohttpClient(timeout=httpx.Timeout(10, read=read)) as http,
        RadixFlowClient(
            url,
            http_client=http,
            retry=RetryPolicy(attempts=attempts, initial=0),
            **options,
        ) as client,
    ):
        yield client


async def test_it_scores_and_generates() -> None:
    server = FakeServer({"b": -0.1}, texts={" a": " x"})
    async with server.listen() as url, connected(url) as client:
        result = await client.score_candidates("d", ["a", "b"])
        texts = await client.generate_branches("d", [" a"], max_tokens=4)
    assert result.best.text == "b"
    assert result.route == "branches"
    assert texts.branches[0].text == " x"


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(cut_after=1), Fault(fail=(0,))]
)
async def test_what_is_missing_is_sent_again(fault: Fault) -> None:
    server = FakeServer(faults=[fault])
    async with server.listen() as url, connected(url, model="fake") as client:
        result = await client.score_candidates("d", ["a", "b"])
    assert len(result.candidates) == 2
    assert len(server.requests) == 2


async def test_its_errors_are_ours() -> None:
    server = FakeServer(faults=[Fault(delay=math.inf)])
    async with (
        server.listen() as url,
        connected(url, read=0.2, attempts=1, model="fake") as client,
    ):
        with pytest.raises(APITimeoutError):
            await client.score_candidates("d", ["a"])
    async with connected(url, attempts=1, model="fake") as client:
        # A refused connection, too, is a ``ConnectTimeout`` to httpx-aiohttp 0.2.
        with pytest.raises(APIConnectionError):
            await client.score_candidates("d", ["a"])


async def test_a_server_that_cannot_be_reached_is_passed_over() -> None:
    async with FakeServer().listen() as gone:
        pass
    async with (
        FakeServer().listen() as url,
        connected([gone, url], attempts=1) as client,
    ):
        for number in range(10):
            await client.score_candidates(f"d{number}", ["a"])


async def test_a_cancelled_call_leaves_the_connections_well() -> None:
    server = FakeServer(delay=0.05)
    async with server.listen() as url, connected(url, max_connections=2) as client:
        for _ in range(5):
            with anyio.move_on_after(0.01):
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(client.score_candidates, "d", ["a", "b"])
            assert (await client.score_candidates("d", ["a"])).best.text == "a"
    gc.collect()  # nothing is left open
