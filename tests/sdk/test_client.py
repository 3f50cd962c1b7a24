"""The client's promises, on `FakeTransport`: no server, no socket."""

import contextlib
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from radixflow_sdk import (
    APIConnectionError,
    APITimeoutError,
    BranchError,
    ClientClosedError,
    InvalidInputError,
    PartialGroupError,
    RadixFlowClient,
    RetryPolicy,
    ScoreResult,
    Timeouts,
)
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk.testing import FakeServer, FakeTransport

pytestmark = pytest.mark.anyio
NOW = RetryPolicy(initial=0.0)


async def test_the_best_option_comes_first() -> None:
    fake = FakeTransport({"Oslo": -0.1, "Rome": -2.0})
    async with RadixFlowClient(transport=fake) as client:
        result = await client.score_candidates("d", ["Rome", "Oslo"], question="Where?")
    assert result.best.text == "Oslo"
    assert result.best.index == 1
    assert result.best.probability == pytest.approx(1 / (1 + math.exp(-1.9)))
    assert result.model == "fake"
    assert result.elapsed >= 0
    assert fake.closed


async def test_duplicates_have_the_same_score_and_are_flagged() -> None:
    fake = FakeTransport({"A": -1.0, "B": -0.5})
    async with RadixFlowClient(transport=fake) as client:
        result = await client.score_candidates("d", ["A", "B", "A"])
    flags = [(c.index, c.score, c.duplicate_of, c.tied) for c in result.candidates]
    assert flags == [(1, -0.5, None, False), (0, -1.0, None, True), (2, -1.0, 0, True)]
    assert len(fake.requests[0].branches) == 2


async def test_label_scoring() -> None:
    fake = FakeTransport({"A": math.log(0.9), "B": math.log(0.2)})
    async with RadixFlowClient(transport=fake) as client:
        raw = await client.score_candidates("d", ["A", "B"], scoring="label")
        share = await client.score_candidates(
            "d", ["A", "B"], scoring="label", normalize="label"
        )
    assert raw.best.score == pytest.approx(math.log(0.9))
    assert [math.exp(c.score) for c in share.candidates] == pytest.approx([0.9, 0.2])


async def test_streamed_candidates_are_those_of_the_result() -> None:
    fake = FakeTransport({"A": -1.0, (3, 4): -0.5})
    async with RadixFlowClient(transport=fake) as client:
        stream = client.stream_candidates("d", ["A", [3, 4], "A"])
        async with aclosing(stream) as candidates:
            got = [(c.index, c.text, c.score) async for c in candidates]
    assert got == [(0, "A", -1.0), (2, "A", -1.0), (1, None, -0.5)]


async def test_a_stream_says_at_its_end_what_failed() -> None:
    fake = FakeTransport({"B": BranchError("broke", code="engine_error")})
    seen = []

    async def read(client: RadixFlowClient) -> None:
        async with aclosing(client.stream_candidates("d", ["A", "B"])) as stream:
            async for candidate in stream:
                seen.append(candidate)  # noqa: PERF401 - the stream ends in an error

    async with RadixFlowClient(transport=fake) as client:
        with pytest.raises(PartialGroupError, match="engine_error: broke") as caught:
            await read(client)
    assert [candidate.index for candidate in seen] == [0]
    assert caught.value.candidates == ()  # yielded, and not kept


async def test_bad_input_is_refused_before_anything_is_sent() -> None:
    fake = FakeTransport()
    async with RadixFlowClient(transport=fake) as client:
        with pytest.raises(InvalidInputError):
            await client.score_candidates("d", [])
        with pytest.raises(InvalidInputError):
            client.stream_candidates("d", [])  # at the call, not at the first step
        for timeout in (math.nan, -1.0, 0.0, math.inf, True, "3"):
            with pytest.raises(InvalidInputError, match="timeout"):
                await client.score_candidates("d", ["a"], timeout=timeout)  # type: ignore[arg-type]
    assert not fake.requests


async def test_errors_are_retried_through_any_transport() -> None:
    fake = FakeTransport(errors=[APIConnectionError("x"), APIConnectionError("x")])
    async with RadixFlowClient(transport=fake, retry=NOW) as client:
        await client.score_candidates("d", ["a"])
    assert len(fake.requests) == 3


async def test_salt_of_the_call_goes_before_salt_of_the_client() -> None:
    fake = FakeTransport()
    async with RadixFlowClient(transport=fake, cache_salt="all", model="m") as client:
        await client.score_candidates("d", ["a"])
        await client.score_candidates("d", ["a"], cache_salt="one")
    assert [request.cache_salt for request in fake.requests] == ["all", "one"]
    assert {request.model for request in fake.requests} == {"m"}


class Gate(FakeTransport):
    """Holds every request until it is opened, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()
        self.inside = 0

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        self.inside += 1
        await self.open.wait()
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event
        self.inside -= 1


@pytest.mark.parametrize("partial", ["raise", "return"])
async def test_a_stream_ends_as_its_request_says(partial: Any) -> None:
    fake = FakeTransport({"Rome": BranchError("x", code="aborted")})
    found = []
    async with RadixFlowClient(transport=fake) as client:
        stream = client.stream_candidates("d", ["Oslo", "Rome"], partial=partial)
        ends: Any = contextlib.nullcontext()
        with pytest.raises(PartialGroupError) if partial == "raise" else ends:
            async for candidate in stream:
                found += [candidate.text]
    assert found == ["Oslo"]


async def test_models_and_statistics_of_the_server() -> None:
    server = FakeServer(model="m")
    async with server.listen() as url, RadixFlowClient(url) as client:
        assert await client.models() == ("m",)
        stats = await client.stats()
    assert stats["scheduler"] == "RadixFlowScheduler"
    assert stats["settings"]["match_unit"] == 16
    with pytest.raises(ClientClosedError):
        await client.models()
    async with RadixFlowClient(transport=FakeTransport()) as client:
        assert (await client.stats())["v"] == 1


async def test_groups_wait_for_their_turn_and_the_wait_is_not_counted() -> None:
    gate = Gate()
    results: list[ScoreResult] = []
    async with RadixFlowClient(transport=gate, max_connections=2) as client:

        async def call(timeout: float | None) -> None:
            results.append(await client.score_candidates("d", ["a"], timeout=timeout))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, None)
                tasks.start_soon(call, None)
                await anyio.wait_all_tasks_blocked()
                # Had this one's clock started, it would be over before its turn.
                tasks.start_soon(call, 0.3)
                with anyio.move_on_after(0.35):
                    await anyio.sleep_forever()
                assert gate.inside == 2
                gate.open.set()
    assert len(results) == 3


async def test_a_timeout_keeps_what_was_in() -> None:
    class Stuck(FakeTransport):
        async def stream(
            self, request: GroupRequest
        ) -> AsyncGenerator[BranchEvent, None]:
            async with aclosing(super().stream(request)) as events:
                yield await anext(events)
                yield await anext(events)
                await anyio.sleep_forever()

    async with RadixFlowClient(transport=Stuck(), timeout=0.05, model="m") as client:
        with pytest.raises(PartialGroupError) as caught:
            await client.score_candidates("d", ["a", "b", "b"])
    assert isinstance(caught.value.__cause__, APITimeoutError)
    assert [c.text for c in caught.value.candidates] == ["a"]
    assert [f.index for f in caught.value.failures] == [1, 2]


async def test_many_calls_ask_for_the_model_once() -> None:
    class Counting(FakeTransport):
        asked = 0

        async def models(self) -> tuple[str, ...]:
            self.asked += 1
            await anyio.lowlevel.checkpoint()
            return await super().models()

    fake = Counting()
    async with (
        RadixFlowClient(transport=fake) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(20):
            tasks.start_soon(client.score_candidates, "d", ["a"])
    assert fake.asked == 1
    assert len(fake.requests) == 20


async def test_many_calls_fail_to_ask_for_the_model_once() -> None:
    class Gone(FakeTransport):
        asked = 0

        async def models(self) -> tuple[str, ...]:
            self.asked += 1
            await anyio.sleep(0.01)
            raise APIConnectionError("gone")

    gone = Gone()
    groups: list[str | None] = []

    async def ask(name: str) -> None:
        with pytest.raises(APIConnectionError, match="gone") as caught:
            await client.score_candidates("d", ["a"], group_id=name)
        groups.append(caught.value.group_id)

    retry = RetryPolicy(attempts=2, initial=0)
    async with RadixFlowClient(transport=gone, retry=retry) as client:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, f"g{number}")
        assert gone.asked == 2
        assert sorted(map(str, groups)) == sorted(f"g{number}" for number in range(20))
        await ask("later")  # asks anew
        assert gone.asked == 4


async def test_the_largest_group() -> None:
    options = [str(number) for number in range(4096)]
    fake = FakeTransport({"77": -0.5})
    async with RadixFlowClient(transport=fake) as client:
        result = await client.score_candidates("d", options)
    assert result.best.text == "77"
    assert len(result.candidates) == 4096


BAD_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("base_url", {"base_url": "localhost:8000"}),
    ("base_url", {"base_url": "ftp://host"}),
    ("base_url", {"base_url": "http://"}),
    ("base_url", {"base_url": "http://host:99999"}),
    ("base_url", {"base_url": "http://host/?a=1"}),
    ("base_url", {"base_url": "http://user:secret@host"}),
    ("api_key", {"api_key": "secret\n"}),
    ("api_key", {"api_key": "sécret"}),
    ("api_key", {"api_key": "  "}),
    ("timeout.total", {"timeout": math.nan}),
    ("timeout.total", {"timeout": -1}),
    ("max_connections", {"max_connections": 0}),
    ("max_connections", {"max_connections": 1.5}),
]


@pytest.mark.parametrize(("field", "change"), BAD_SETTINGS, ids=str)
def test_bad_settings_are_refused_without_secrets(
    field: str, change: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        RadixFlowClient(**change)
    assert caught.value.field == field
    assert "secret" not in repr(caught.value)
    assert "s\\xe9cret" not in str(vars(caught.value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, True, "1"])
@pytest.mark.parametrize("name", ["connect", "read", "write", "pool", "total"])
def test_bad_timeouts(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"timeout.{name}"):
        Timeouts(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", 0),
        ("attempts", True),
        ("attempts", 1.0),
        ("initial", -0.1),
        ("maximum", math.nan),
        ("retry_after_maximum", math.inf),
    ],
)
def test_bad_retry_policies(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"retry.{name}"):
        RetryPolicy(**{name: value})


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8000",
        "http://host:8000/",
        "http://host:8000/v1",
        " http://host:8000/v1/",
    ],
)
def test_the_base_url_may_have_v1(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<RadixFlowClient http://host:8000 " in repr(RadixFlowClient(url))
    monkeypatch.setenv("RADIXFLOW_BASE_URL", url)
    assert "<RadixFlowClient http://host:8000 " in repr(RadixFlowClient())


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "http://127.0.0.1:8000" in repr(RadixFlowClient())
    monkeypatch.setenv("RADIXFLOW_API_KEY", "bad\nkey")
    with pytest.raises(InvalidInputError, match="api_key"):
        RadixFlowClient()
