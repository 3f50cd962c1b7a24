"""A server that is told to stop: it refuses what is new and ends what it has."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI

from server_ext.api.drain import DrainMiddleware, watch_shutdown
from server_ext.api.group import Load
from server_ext.api.plugin import RadixFlowEndpoints
from server_ext.policy.fairness import Window
from tests.server.fake_engine import Client, FakeEngine, group, serve, until


def draining(engine: FakeEngine) -> FastAPI:
    app = serve(engine)
    app.add_middleware(DrainMiddleware)

    @app.get("/health")
    async def health() -> None: ...

    @app.post("/v1/completions")
    async def completions() -> None: ...

    return app


@pytest.mark.asyncio
async def test_branches_that_wait_for_their_turn_enter_before_the_engine_stops() -> (
    None
):
    engine = FakeEngine()
    engine.gate.clear()
    in_engine: list[int] = []

    def stop(seconds: int) -> None:
        in_engine.append(len(engine.running))

    engine.shutdown = stop  # type: ignore[attr-defined]
    app = serve(engine, load=Load(8, Window(tokens=160, requests=8, rounds=2)))
    watch_shutdown(engine, app.state)  # type: ignore[arg-type]
    running = Client(app, body=group(*(f" {number}" for number in range(100))))
    await until(lambda: len(engine.running) == 16)
    await asyncio.to_thread(engine.shutdown, 20)  # type: ignore[attr-defined]
    assert in_engine == [100]
    engine.gate.set()
    assert (await running()).events[-1]["completed"] == 100
    engine.shutdown(0)  # type: ignore[attr-defined]  # from the loop itself: no wait


@pytest.mark.asyncio
async def test_from_the_signal_on_new_work_is_refused_and_old_work_ends() -> None:
    calls: list[Any] = []
    engine = FakeEngine()
    engine.gate.clear()
    engine.shutdown = calls.append  # type: ignore[attr-defined]
    app = draining(engine)
    watch_shutdown(engine, app.state)  # type: ignore[arg-type]
    assert (await Client(app, "GET", "/health")()).status == 200
    running = Client(app, body=group())
    await until(lambda: len(engine.running) == 2)
    await asyncio.to_thread(engine.shutdown, 20)  # type: ignore[attr-defined]
    assert calls == [20]
    for path in ("/v1/branches", "/v1/completions", "/v1/radixflow/policy"):
        refused = await Client(app, path=path, body=group())()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
    assert (await Client(app, "GET", "/health")()).status == 503
    assert (await Client(app, "GET", "/v1/radixflow/groups")()).status == 200
    engine.gate.set()
    assert (await running()).events[-1]["completed"] == 2


@pytest.mark.asyncio
async def test_the_plugin_refuses_too() -> None:
    app = FastAPI()
    RadixFlowEndpoints().attach_router(app)
    app.state.radixflow_draining = True
    refused = await Client(app, body=group())()
    assert (refused.status, refused.error["code"]) == (503, "draining")


@pytest.mark.asyncio
async def test_stats_of_an_engine_that_is_shutting_down() -> None:
    failed = Exception("Call to radixflow_snapshot method failed: Server shutting down")
    engine = FakeEngine(utilities={"radixflow_snapshot": failed})
    client = await Client(serve(engine), "GET", "/v1/radixflow/stats")()
    assert (client.status, client.error["code"]) == (503, "draining")


@contextmanager
def two_servers() -> Iterator[tuple[Callable[[], tuple[int, int]], list[int]]]:
    """Read process id and port of each, later id and exit code; and their ids."""
    command = [sys.executable, "-m", "tests.server.drained", "2"]
    ids: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        out = parent.stdout
        assert out is not None

        def read() -> tuple[int, int]:
            first, second = map(int, out.readline().split())
            return first, second

        try:
            yield read, ids
        finally:
            for one in ids:
                os.kill(one, signal.SIGKILL)
            parent.kill()


def ask(http: httpx.Client, urls: list[str], number: int) -> list[str]:
    """A group of the first server that takes it, and what was tried."""
    tried: list[str] = []
    body = group(" Oslo", " Rome", document={"text": f"{number}. Anna lives in Oslo."})
    for url in urls:
        try:
            answer = http.post(f"{url}/v1/branches", json=body)
        except (httpx.NetworkError, httpx.RemoteProtocolError):  # no timeout
            tried.append("gone")
            continue
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] == "draining"
            tried.append("draining")
            continue
        events = [json.loads(line) for line in answer.text.splitlines()]
        if events[-1] == {**events[-1], "completed": 2, "failed": 0}:
            return [*tried, "well"]
        errors = [event["error"] for event in events if "error" in event]
        assert errors
        assert all(error["retryable"] for error in errors)
        tried.append("cut")
    raise AssertionError(tried)


@pytest.mark.slow
def test_of_two_servers_one_may_stop_at_any_time() -> None:
    """Nothing is lost, and nothing waits for a server that will not answer."""
    with ExitStack() as stack:
        read, ids = stack.enter_context(two_servers())
        ports = dict(read() for _ in range(2))
        ids += ports
        stopped = ids[0]
        urls = [f"http://127.0.0.1:{port}" for port in ports.values()]
        http = stack.enter_context(httpx.Client(timeout=20))
        for url in urls:
            assert http.get(f"{url}/health").status_code == 200
        pool = stack.enter_context(ThreadPoolExecutor(8))
        before = pool.map(lambda number: ask(http, urls, number), range(16))
        assert all(tried == ["well"] for tried in before)
        long = pool.submit(ask, http, urls[:1], 0)  # it runs when the signal comes
        after = [pool.submit(ask, http, urls, number) for number in range(40)]
        after[4].result()
        os.kill(stopped, signal.SIGTERM)
        tried = [one.result() for one in after]
        assert long.result() == ["well"]
        assert all(one[-1] == "well" for one in tried)
        assert any(len(one) > 1 for one in tried)
        assert read() == (stopped, 0)
        ids.remove(stopped)
        assert http.get(f"{urls[1]}/health").status_code == 200
