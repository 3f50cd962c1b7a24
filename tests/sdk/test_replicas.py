"""Many servers: every document has its own, and a server that goes costs no result."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from radixflow_sdk import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    InvalidInputError,
    RadixFlow,
    RadixFlowClient,
    RateLimitError,
    RetryPolicy,
    ScoreRequest,
    ServerError,
    StreamBrokenError,
)
from radixflow_sdk._messages import GroupRequest
from radixflow_sdk._transport import Replicas
from radixflow_sdk.testing import FakeServer, FakeTransport
from tests.sdk.wire import plan

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=3, initial=0.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Ailing(FakeTransport):
    """Fails with its error for as long as it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: APIError | None = None
        self.asked = 0

    async def models(self) -> tuple[str, ...]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return await super().models()

    async def stream(self, request: GroupRequest) -> Any:
        if self.error is not None:
            raise self.error
        async for event in super().stream(request):
            yield event


class House:
    """Three servers behind one `Replicas`, and a clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.servers = {f"http://{name}": Ailing() for name in "abc"}
        self.replicas = Replicas(self.servers, clock=self.clock)

    async def send(self, session: str) -> str:
        """The server that answered."""
        before = {url: len(server.requests) for url, server in self.servers.items()}
        request = replace(plan(["x"]).request, session_id=session)
        assert [event async for event in self.replicas.stream(request)]
        [url] = [u for u, s in self.servers.items() if len(s.requests) > before[u]]
        return url


async def test_a_session_stays_and_sessions_spread() -> None:
    house = House()
    homes = {f"s{number}": await house.send(f"s{number}") for number in range(300)}
    assert min(Counter(homes.values()).values()) > 60
    for session in list(homes)[:20]:
        assert await house.send(session) == homes[session]


async def test_only_the_documents_of_a_server_that_goes_move() -> None:
    house = House()
    homes = {f"s{number}": await house.send(f"s{number}") for number in range(60)}
    house.servers["http://b"].error = APIConnectionError("refused")
    later = {session: await house.send(session) for session in homes}
    assert "http://b" not in later.values()
    assert all(later[s] == home for s, home in homes.items() if home != "http://b")
    moved = [later[s] for s, home in homes.items() if home == "http://b"]
    assert len(set(moved)) == 2  # they spread over the others


async def home(house: House, url: str) -> str:
    """A session of that server."""
    for number in range(100):
        if await house.send(f"s{number}") == url:
            return f"s{number}"
    raise AssertionError(url)


async def test_it_rests_is_asked_and_comes_back() -> None:
    house = House()
    session, sick = await home(house, "http://a"), house.servers["http://a"]
    sick.error = APIConnectionError("refused")
    assert await house.send(session) != "http://a"
    house.clock.now += 0.9
    await house.send(session)
    assert sick.asked == 0  # it rests
    house.clock.now += 0.2
    await house.send(session)
    assert sick.asked == 1  # still gone: two seconds more
    sick.error = None
    house.clock.now += 1.9
    assert await house.send(session) != "http://a"
    house.clock.now += 0.2
    assert await house.send(session) == "http://a"
    assert sick.asked == 2
    assert await house.send(session) == "http://a"
    assert sick.asked == 2


async def test_when_all_rest_all_are_tried() -> None:
    house = House()
    for server in house.servers.values():
        server.error = APIConnectionError("refused")
    with pytest.raises(APIConnectionError):
        await house.send("s")
    for server in house.servers.values():
        server.error = None
    await house.send("s")


@pytest.mark.parametrize(
    ("error", "moves"),
    [
        (APITimeoutError("slow"), True),
        (StreamBrokenError("cut"), True),
        (ServerError("bad gateway", status=502), True),
        (ServerError("dead", status=503, code="engine_dead"), True),
        (ServerError("busy", status=503), False),
        (RateLimitError("slow down", status=429), False),
    ],
)
async def test_what_sends_a_document_elsewhere(error: APIError, moves: bool) -> None:
    house = House()
    session = await home(house, "http://a")
    house.servers["http://a"].error = error
    with pytest.raises(type(error)):  # the work had begun: for the retries to decide
        await house.send(session)
    house.servers["http://a"].error = None
    assert (await house.send(session) != "http://a") is moves


async def test_a_server_that_shuts_down_hands_its_documents_over_at_once() -> None:
    house = House()
    session = await home(house, "http://a")
    refusal = ServerError("shutting down", status=503, code="draining")
    house.servers["http://a"].error = refusal
    for _ in range(3):
        assert await house.send(session) != "http://a"
        house.clock.now += 60
    for server in house.servers.values():
        server.error = refusal
    with pytest.raises(ServerError):
        await house.send(session)


async def test_models_are_those_of_a_server_that_is_there() -> None:
    house = House()
    first = house.replicas._order("")[0]
    house.servers[first].error = APIConnectionError("refused")
    assert await house.replicas.models() == ("fake",)
    for server in house.servers.values():
        server.error = ServerError("x", status=500)
    with pytest.raises(ServerError):
        await house.replicas.models()


# --- over sockets -------------------------------------------------------------------


@asynccontextmanager
async def listening(servers: Sequence[FakeServer]) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(server.listen()) for server in servers]


async def test_documents_are_cached_where_they_go() -> None:
    servers = [FakeServer(), FakeServer()]
    documents = [f"{number} {'word ' * 64}" for number in range(20)]
    async with listening(servers) as urls, RadixFlowClient(urls, retry=NOW) as client:
        for document in documents:
            await client.score_candidates(document, ["a", "b"])
        for document in documents:
            result = await client.score_candidates(document, ["a", "b"])
            assert result.best.cached_tokens == 64
    assert all(len(server.requests) > 4 for server in servers)


async def test_a_killed_server_costs_no_result() -> None:
    servers = [FakeServer(delay=0.01), FakeServer(delay=0.1)]
    kill, killed = anyio.Event(), []

    async def serve(*, task_status: TaskStatus[str]) -> None:
        async with servers[1].listen() as url:
            task_status.started(url)
            await kill.wait()

    asks = [ScoreRequest(document=str(n), options=["a", "b"]) for n in range(40)]
    with anyio.fail_after(20):
        async with servers[0].listen() as stays, anyio.create_task_group() as tasks:
            urls = [stays, await tasks.start(serve)]
            async with (
                RadixFlowClient(urls, retry=NOW) as client,
                client.score_many(asks, concurrency=8, errors="raise") as outcomes,
            ):
                got = []
                async for outcome in outcomes:
                    got.append(outcome.index)
                    if len(got) >= 10 and servers[1].running and not killed:
                        killed.append(servers[1].running)
                        kill.set()
    assert sorted(got) == list(range(40))
    assert killed[0] > 0  # it had groups under way


async def test_urls_are_read_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXFLOW_BASE_URL", "http://a/v1, http://b:1,http://a")
    assert "http://a,http://b:1 " in repr(RadixFlowClient())
    for urls in (["http://a", "nowhere"], ["http://a", 7], [""]):
        with pytest.raises(InvalidInputError, match="base_url"):
            RadixFlowClient(urls)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="base_url"):
        RadixFlow(["http://u:p@host"])
