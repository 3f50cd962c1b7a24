"""One client, several event loops and threads: a clear error, never a hang."""

import asyncio
import threading

import pytest
import trio

from radixflow_sdk import ClientClosedError, RadixFlowClient, WrongLoopError
from radixflow_sdk.testing import FakeServer, FakeTransport

pytestmark = pytest.mark.timeout(30)


async def ask(client: RadixFlowClient) -> str | None:
    return (await client.score_candidates("d", ["Oslo"])).best.text


def test_a_second_event_loop_is_refused_and_the_first_goes_on() -> None:
    with FakeServer().listen_in_thread() as url:
        client = RadixFlowClient(url)
        with asyncio.Runner() as first:
            assert first.run(ask(client)) == "Oslo"
            for _ in range(2):
                with pytest.raises(WrongLoopError, match=r"asyncio\.run"):
                    asyncio.run(ask(client))
            assert first.run(ask(client)) == "Oslo"
            first.run(client.aclose())


def test_asyncio_run_twice() -> None:
    client = RadixFlowClient(transport=FakeTransport())
    assert asyncio.run(ask(client)) == "Oslo"
    with pytest.raises(WrongLoopError):
        asyncio.run(ask(client))
    with pytest.raises(WrongLoopError):
        asyncio.run(client.aclose())
    with pytest.raises(ClientClosedError):
        asyncio.run(ask(client))


def test_asyncio_then_trio() -> None:
    client = RadixFlowClient(transport=FakeTransport())
    asyncio.run(ask(client))
    with pytest.raises(WrongLoopError):
        trio.run(ask, client)


def test_a_client_may_be_made_outside_of_the_loop() -> None:
    client = RadixFlowClient(transport=FakeTransport())

    async def main() -> str | None:
        async with client:
            return await ask(client)

    assert asyncio.run(main()) == "Oslo"
    with pytest.raises(ClientClosedError):
        asyncio.run(main())


def test_two_threads() -> None:
    client = RadixFlowClient(transport=FakeTransport())
    ends: list[str | None] = []
    both = threading.Barrier(2)

    def work() -> None:
        async def main() -> None:
            try:
                ends.append(await ask(client))
            except WrongLoopError:
                ends.append("refused")
            both.wait()

        asyncio.run(main())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, ends)) == ["Oslo", "refused"]


def test_many_groups_in_a_second_loop() -> None:
    client = RadixFlowClient(transport=FakeTransport())
    asyncio.run(ask(client))

    async def many() -> None:
        await client.score_all([])

    asyncio.run(many())  # nothing to do, nothing to refuse
