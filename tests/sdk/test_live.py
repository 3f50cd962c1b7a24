"""Cancellation, timeouts and the connection pool, on real sockets."""

import asyncio
from contextlib import aclosing

import anyio
import pytest

from radixflow_sdk import (
    APIConnectionError,
    APITimeoutError,
    ClientClosedError,
    RadixFlowClient,
    RetryPolicy,
    ScoreResult,
    StreamBrokenError,
    Timeouts,
)
from radixflow_sdk._transport import _http
from radixflow_sdk.testing import FakeServer
from tests.sdk.live import HEAD, LiveServer, Script, chunk, live, whole
from tests.sdk.wire import GOOD, body, completed, started

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
ONCE = RetryPolicy(attempts=1)
BEGUN = HEAD + chunk(body(started(), completed(0)))


def connect(
    server: LiveServer,
    *,
    timeout: Timeouts | float | None = None,
    max_connections: int = 1,
) -> RadixFlowClient:
    return RadixFlowClient(
        server.url,
        model="m",
        retry=ONCE,
        timeout=timeout,
        max_connections=max_connections,
    )


async def ask(client: RadixFlowClient) -> ScoreResult:
    return await client.score_candidates("d", ["Oslo", "Rome"], group_id="g")


async def test_a_connection_is_used_again() -> None:
    async with live([whole(GOOD)]) as server, connect(server) as client:
        with anyio.fail_after(5):
            assert (await ask(client)).best.text == "Oslo"
            # The second request comes on the first connection, whose script is over.
            with pytest.raises(APIConnectionError):
                await ask(client)
        assert server.accepted == 1


async def test_a_connection_that_lay_idle_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_http, "IDLE_SECONDS", 0.01)
    async with live([whole(GOOD)], [whole(GOOD)]) as server, connect(server) as client:
        with anyio.fail_after(5):
            await ask(client)
            await anyio.sleep(0.05)
            assert (await ask(client)).best.text == "Oslo"
        assert server.accepted == 2


async def test_cancelling_closes_the_answer_and_leaves_the_pool_healthy() -> None:
    scripts = [[BEGUN] for _ in range(5)]
    async with live(*scripts, [whole(GOOD)]) as server, connect(server) as client:
        with anyio.fail_after(10):
            for _ in range(5):
                server.arrived = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, client)
                    tasks.start_soon(
                        ask, client
                    )  # waits for its turn, and never gets it
                    await server.arrived.wait()
                    tasks.cancel_scope.cancel()
                await server.gone.receive()
            assert (await ask(client)).best.text == "Oslo"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancellation_works_too() -> None:
    async with live([BEGUN], [whole(GOOD)]) as server, connect(server) as client:
        with anyio.fail_after(5):
            task = asyncio.create_task(ask(client))
            await server.arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.gone.receive()
            assert (await ask(client)).best.text == "Oslo"


async def test_leaving_a_stream_early_closes_the_answer() -> None:
    async with live([BEGUN], [whole(GOOD)]) as server, connect(server) as client:
        with anyio.fail_after(5):
            stream = client.stream_candidates("d", ["Oslo", "Rome"], group_id="g")
            async with aclosing(stream) as candidates:
                first = await anext(candidates)
            assert first.text == "Oslo"
            await server.gone.receive()
            assert (await ask(client)).best.text == "Oslo"


async def test_a_candidate_comes_before_the_group_is_over() -> None:
    more = anyio.Event()
    rest = chunk(GOOD[len(body(started())) :]) + b"0\r\n\r\n"
    begun = HEAD + chunk(body(started(), completed(1, -2.0)))
    script: Script = [begun, more, rest]
    async with live(script) as server, connect(server) as client:
        with anyio.fail_after(5):
            stream = client.stream_candidates("d", ["Oslo", "Rome"], group_id="g")
            async with aclosing(stream) as candidates:
                assert (await anext(candidates)).text == "Rome"


@pytest.mark.parametrize("begun", [HEAD, b""], ids=["answering", "silent"])
async def test_the_total_timeout_ends_the_group(begun: bytes) -> None:
    script = [begun] if begun else []
    async with live(script) as server, connect(server, timeout=0.25) as client:
        with anyio.fail_after(5):
            with pytest.raises(APITimeoutError, match=r"0\.25 s") as caught:
                await ask(client)
            assert caught.value.group_id == "g"
            await server.gone.receive()


async def test_the_read_timeout_ends_a_silent_answer() -> None:
    async with (
        live([HEAD]) as server,
        connect(server, timeout=Timeouts(read=0.05)) as client,
    ):
        with pytest.raises(APITimeoutError, match="ReadTimeout"):
            await ask(client)


async def test_closing_the_client_ends_calls_with_a_reason() -> None:
    async with live([BEGUN[: len(HEAD)]]) as server:
        client = connect(server)
        ends: list[ClientClosedError] = []

        async def call() -> None:
            with pytest.raises(ClientClosedError) as caught:
                await ask(client)
            ends.append(caught.value)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                tasks.start_soon(call)
                await server.arrived.wait()
                await anyio.wait_all_tasks_blocked()
                await client.aclose()
        assert len(ends) == 2


async def test_a_connection_that_breaks_in_the_answer() -> None:
    script = [HEAD + chunk(body(started())) + b"zz\r\n"]
    async with live(script) as server, connect(server) as client:
        with pytest.raises(StreamBrokenError, match="RemoteProtocolError"):
            await ask(client)


async def test_nobody_listens() -> None:
    async with live() as server:
        url = server.url
    async with RadixFlowClient(url, model="m", retry=ONCE) as client:
        with pytest.raises(APIConnectionError, match="check that the server runs"):
            await ask(client)


async def test_cancelled_calls_leave_the_pool_healthy() -> None:
    server = FakeServer(delay=0.02)
    async with (
        server.listen() as url,
        RadixFlowClient(url, model="fake", retry=ONCE, max_connections=2) as client,
    ):
        for _ in range(50):
            with anyio.move_on_after(0.05):
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(ask, client)
            with anyio.fail_after(10):
                assert len((await ask(client)).candidates) == 2
        while server.running:
            await anyio.lowlevel.checkpoint()
    assert server.aborted > 0


async def test_the_pool_timeout_ends_the_wait_for_a_turn() -> None:
    waits = Timeouts(pool=0.05)
    async with (
        live([HEAD]) as server,
        connect(server, timeout=waits) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask, client)
        await server.arrived.wait()
        with pytest.raises(APITimeoutError, match="max_connections") as caught:
            await ask(client)
        tasks.cancel_scope.cancel()
    assert caught.value.group_id == "g"
