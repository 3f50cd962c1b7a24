"""Groups through real routers: affinity, a killed replica, streams, who leaves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import TaskStatus

from radixflow_sdk import (
    AuthenticationError,
    RadixFlowClient,
    RetryPolicy,
    ScoreRequest,
)
from radixflow_sdk.testing import FakeServer
from tests.routers.fronts import NGINX, ROOT, ROUTER, nginx, vllm_router

Front = Callable[..., AbstractContextManager[str]]

FRONTS = [
    pytest.param(
        nginx,
        id="nginx",
        marks=pytest.mark.skipif(NGINX is None, reason="no nginx here"),
    ),
    pytest.param(
        vllm_router,
        id="vllm-router",
        marks=[
            pytest.mark.slow,  # `make test-full` builds it
            pytest.mark.skipif(ROUTER is None, reason="see `make routers`"),
        ],
    ),
]
pytestmark = [
    pytest.mark.anyio,
    # See tests/sdk/test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
EVERY = pytest.mark.parametrize("front", FRONTS)
NOBODY = 65534
PATIENT = RetryPolicy(attempts=6, initial=0.05)
DOCUMENTS = [f"{number} {'word ' * 64}" for number in range(24)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Replica(FakeServer):
    """A replica that says that it is well, and can be killed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kill = anyio.Event()

    async def live(self, *, task_status: TaskStatus[str]) -> None:
        """Listen, and break what is open when it is killed."""
        async with self.listen() as url:
            task_status.started(url)
            await self.kill.wait()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/health":
            await super().__call__(scope, receive, send)
            return
        head = {"type": "http.response.start", "status": 200, "headers": []}
        await send(head)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def behind(
    front: Front, folder: Path, **options: Any
) -> AsyncIterator[tuple[str, list[Replica]]]:
    """The URL of a router in front of two replicas, and the replicas."""
    both = [Replica(**options) for _ in range(2)]
    async with anyio.create_task_group() as tasks:
        urls = [await tasks.start(replica.live) for replica in both]
        process = front(folder, urls)
        # In a thread: the router asks the replicas, which run in this loop.
        url = await anyio.to_thread.run_sync(process.__enter__)
        try:
            yield url, both
        finally:
            for replica in both:
                replica.kill.set()
            with anyio.CancelScope(shield=True):
                leave = partial(process.__exit__, None, None, None)
                await anyio.to_thread.run_sync(leave)


@EVERY
async def test_a_document_has_its_replica(front: Front, tmp_path: Path) -> None:
    async with (
        behind(front, tmp_path) as (url, both),
        RadixFlowClient(url, retry=PATIENT) as client,
    ):
        for document in DOCUMENTS:
            await client.score_candidates(document, ["a", "b", "c"])
        for document in DOCUMENTS:
            result = await client.score_candidates(document, ["a", "b", "c"])
            assert result.route == "branches"
            # Of 65 words the first 64 are whole matches: it has been here before.
            assert {c.cached_tokens for c in result.candidates} == {64}
    assert all(len(replica.requests) > 4 for replica in both)  # both have some


@EVERY
async def test_a_killed_replica_costs_no_result(front: Front, tmp_path: Path) -> None:
    asks = [ScoreRequest(document=d, options=["a", "b", "c"]) for d in DOCUMENTS]
    async with behind(front, tmp_path, delay=0.02) as (url, both):

        async def kill_at_work() -> None:
            while not both[1].running:  # noqa: ASYNC110 - a fake server tells nobody
                await anyio.sleep(0.001)
            both[1].kill.set()

        with anyio.fail_after(60):
            async with (
                RadixFlowClient(url, retry=PATIENT) as client,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(kill_at_work)
                outcomes = await client.score_all(asks, concurrency=8, errors="raise")
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(DOCUMENTS)))
    assert both[1].aborted > 0


@EVERY
async def test_branches_come_as_they_end(front: Front, tmp_path: Path) -> None:
    async with (
        behind(front, tmp_path, delay=0.4) as (url, _),
        RadixFlowClient(url) as client,
    ):
        times = [
            time.monotonic()
            async for _ in client.stream_candidates("d", ["a", "b", "c"])
        ]
    assert times[2] - times[0] > 0.5


@EVERY
async def test_a_client_that_leaves_ends_its_group(
    front: Front, tmp_path: Path
) -> None:
    async with (
        behind(front, tmp_path, delay=0.2) as (url, both),
        RadixFlowClient(url) as client,
    ):
        with anyio.move_on_after(0.5):
            await client.score_candidates("d", [f"{n}" for n in range(500)])
        with anyio.fail_after(20):
            while not any(replica.aborted for replica in both):  # noqa: ASYNC110
                await anyio.sleep(0.05)


@EVERY
async def test_a_long_document_passes(front: Front, tmp_path: Path) -> None:
    """nginx puts what is longer than its buffer into a file of its own."""
    async with behind(front, tmp_path) as (url, _), RadixFlowClient(url) as client:
        result = await client.score_candidates("word " * 200_000, ["a", "b"])
    assert len(result.candidates) == 2


@pytest.mark.skipif(NGINX is None, reason="no nginx here")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all of these")
def test_an_ordinary_user_can_start_nginx() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        shutil.copy(ROOT / "examples" / "nginx.conf", folder)
        for place in (folder, folder / "nginx.conf"):
            os.chown(place, NOBODY, NOBODY)
        command = [str(NGINX), "-t", "-p", name, "-c", f"{name}/nginx.conf"]
        tried = subprocess.run(
            command,
            check=False,
            user=NOBODY,
            group=NOBODY,
            capture_output=True,
            text=True,
        )
    assert tried.returncode == 0, tried.stderr


@EVERY
async def test_keys_and_ids(front: Front, tmp_path: Path) -> None:
    """nginx hands on every header; vllm-router 0.1.17 none, not even the key."""
    async with (
        behind(front, tmp_path, api_key="k") as (url, both),
        RadixFlowClient(url, api_key="k", model="fake") as client,
    ):
        if front is vllm_router:
            with pytest.raises(AuthenticationError):
                await client.score_candidates("d", ["a", "b"])
            return
        await client.score_candidates("d", ["a", "b"])
    [request] = [*both[0].requests, *both[1].requests]
    assert request.headers["x-request-id"].startswith("req-")
    assert request.headers["x-session-id"]


@pytest.mark.parametrize("front", FRONTS[:1])
async def test_a_header_that_does_not_end_is_cut_off(
    front: Front, tmp_path: Path
) -> None:
    async with behind(front, tmp_path) as (url, _):
        host, port = url.removeprefix("http://").split(":")

        def drip() -> bytes:
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nX-A: ")
                return connection.recv(1000)

        assert await anyio.to_thread.run_sync(drip) == b""
        large = {"X-A": "a" * 70_000}
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/v1/models", headers=large)).status_code == 400
