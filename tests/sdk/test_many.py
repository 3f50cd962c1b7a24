"""Many groups at a time: what comes out, in which order, and what is never lost."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from radixflow_sdk import (
    APIConnectionError,
    BranchError,
    ClientClosedError,
    GenerationRequest,
    InvalidInputError,
    Outcome,
    PartialGroupError,
    Progress,
    RadixFlow,
    RadixFlowClient,
    RadixFlowError,
    RateLimitError,
    RequestEnded,
    RetryPolicy,
    ScoreRequest,
    ScoreResult,
    ServerError,
)
from radixflow_sdk._dispatch import BACKLOG_LIMIT, AdaptiveLimit
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk.testing import FakeServer, FakeTransport

pytestmark = pytest.mark.anyio
NOW = RetryPolicy(attempts=2, initial=0.0)


def asks(count: int) -> Iterator[ScoreRequest]:
    return (
        ScoreRequest(document=str(number), options=["a", "b"])
        for number in range(count)
    )


class Backwards(FakeTransport):
    """Answers the last group of a full house first."""

    def __init__(self, house: int, **rest: Any) -> None:
        super().__init__(**rest)
        self._house = house
        self._inside: list[anyio.Event] = []
        self.most = 0

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        mine = anyio.Event()
        self._inside.append(mine)
        self.most = max(self.most, len(self._inside))
        if len(self._inside) == self._house:
            mine.set()
        await mine.wait()
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event
        self._inside.remove(mine)
        if self._inside:
            self._inside[-1].set()


# --- one group as a value -----------------------------------------------------------


async def test_a_request_is_a_value_that_runs_like_a_call() -> None:
    fake = FakeTransport({"b": -0.1})
    request = ScoreRequest(document="d", options=["a", "b"], question="Where?")
    async with RadixFlowClient(transport=fake) as client:
        ran = await client.run(request)
        called = await client.score_candidates("d", ["a", "b"], question="Where?")
    assert [(c.text, c.score) for c in ran.candidates] == [
        (c.text, c.score) for c in called.candidates
    ]


@pytest.mark.parametrize(
    ("request_of", "call"),
    [
        (ScoreRequest, RadixFlowClient.score_candidates),
        (GenerationRequest, RadixFlowClient.generate_branches),
    ],
)
def test_a_request_has_the_arguments_of_a_call(
    request_of: type[Any], call: Callable[..., Any]
) -> None:
    ours = inspect.signature(request_of).parameters
    theirs = inspect.signature(call).parameters
    assert list(ours) == list(theirs)[1:]
    assert [ours[name].default for name in ours] == [
        theirs[name].default for name in ours
    ]


async def test_part_of_a_group_can_be_a_result() -> None:
    fake = FakeTransport({"b": BranchError("gone", code="aborted")})
    async with RadixFlowClient(transport=fake) as client:
        result = await client.score_candidates("d", ["a", "b", "c"], partial="return")
        assert [c.text for c in result.candidates] == ["a", "c"]
        assert sum(c.probability for c in result.candidates) == pytest.approx(1.0)
        assert [(f.index, f.code) for f in result.failures] == [(1, "aborted")]
        whole = await client.score_candidates("d", ["a"], partial="return")
        assert whole.failures == ()
        with pytest.raises(RadixFlowError, match="1 of 1"):
            await client.score_candidates("d", ["b"], partial="return")
        with pytest.raises(InvalidInputError, match="partial"):
            await client.score_candidates("d", ["b"], partial="keep")  # type: ignore[arg-type]


class Cut(FakeTransport):
    """Answers one branch, and breaks."""

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        async with aclosing(super().stream(request)) as events:
            yield await anext(events)
            yield await anext(events)
            raise APIConnectionError("cut")


async def test_a_group_that_broke_can_be_a_result() -> None:
    async with RadixFlowClient(
        transport=Cut(), retry=RetryPolicy(attempts=1)
    ) as client:
        result = await client.score_candidates("d", ["a", "b"], partial="return")
    assert [f.code for f in result.failures] == ["not_answered"]
    assert result.usage.prompt_tokens == 10


# --- many ---------------------------------------------------------------------------


async def test_every_request_has_one_outcome() -> None:
    async with (
        RadixFlowClient(transport=FakeTransport()) as client,
        client.score_many(asks(50)) as outcomes,
    ):
        got = [outcome async for outcome in outcomes]
    assert sorted(outcome.index for outcome in got) == list(range(50))
    assert all(outcome.unwrap().best.text == "a" for outcome in got)
    assert all(outcome.request.document == str(outcome.index) for outcome in got)


@pytest.mark.parametrize("ordered", [True, False])
async def test_outcomes_come_in_order_or_as_they_end(ordered: bool) -> None:
    fake = Backwards(4, model="m")
    async with RadixFlowClient(transport=fake, model="m") as client:
        many = client.score_many(asks(4), concurrency=4, ordered=ordered)
        with anyio.fail_after(5):
            async with many as outcomes:
                got = [outcome.index async for outcome in outcomes]
    assert got == (sorted(got) if ordered else [3, 2, 1, 0])
    assert fake.most == 4


async def test_gathered() -> None:
    fake = FakeTransport({"b": -0.5})
    requests = list(asks(9))
    async with RadixFlowClient(transport=fake) as client:
        outcomes = await client.score_all(requests, concurrency=3)
    assert [outcome.request for outcome in outcomes] == requests


async def mixed() -> AsyncGenerator[ScoreRequest, None]:
    yield ScoreRequest(document="d", options=["a"])
    yield ScoreRequest(document="d", options=[])
    yield ScoreRequest(document="d", options=["a", "bad"])


async def test_a_failed_group_is_an_outcome_like_the_others() -> None:
    fake = FakeTransport({"bad": BranchError("gone")})
    async with RadixFlowClient(transport=fake) as client:
        outcomes = await client.score_all(mixed())
        names = [type(outcome.error).__name__ for outcome in outcomes]
        assert names == ["NoneType", "InvalidInputError", "PartialGroupError"]
        with pytest.raises(InvalidInputError):
            outcomes[1].unwrap()
        with pytest.raises(InvalidInputError):
            await client.score_all(mixed(), errors="raise")
        many = client.score_many(mixed(), errors="raise", ordered=True)
        async with many as stream:
            assert (await anext(stream)).error is None
            with pytest.raises(InvalidInputError):
                await anext(stream)
            with pytest.raises(RadixFlowError):  # the one behind it is not lost
                await anext(stream)


async def test_progress() -> None:
    told: list[Progress] = []
    fake = FakeTransport({"bad": BranchError("gone")})
    requests = [ScoreRequest(document="d", options=[o]) for o in ("a", "bad")]
    async with RadixFlowClient(transport=fake) as client:
        await client.score_all(requests, progress=told.append)
        await client.score_all(iter(requests[:1]), progress=told.append)
    assert [(p.done, p.failed, p.total) for p in told] == [
        (1, 0, 2),
        (2, 1, 2),
        (1, 0, None),
    ]


async def test_a_slow_reader_slows_the_work_down() -> None:
    read = 0

    def requests() -> Iterator[ScoreRequest]:
        nonlocal read
        for request in asks(10_000):
            read += 1
            yield request

    async with (
        RadixFlowClient(transport=FakeTransport()) as client,
        client.score_many(requests(), concurrency=2) as outcomes,
    ):
        for taken in range(1, 200):
            await anext(outcomes)
            if taken % 50 == 0:
                await anyio.wait_all_tasks_blocked()
            assert read - taken <= 8
        assert len(outcomes._done) <= 8


async def test_leaving_early_ends_what_is_under_way() -> None:
    fake = Backwards(99)  # nobody is ever answered
    async with RadixFlowClient(transport=fake, model="m") as client:
        with anyio.fail_after(5):
            async with client.score_many(asks(9), concurrency=3):
                await anyio.wait_all_tasks_blocked()
                assert fake.most == 3
            with pytest.raises(ZeroDivisionError):
                async with client.score_many(asks(9)) as outcomes:
                    raise ZeroDivisionError
            with anyio.move_on_after(0.05):
                async with client.score_many(asks(9)) as outcomes:
                    await anext(outcomes)


async def test_requests_that_raise_lose_nothing_before_them() -> None:
    def requests() -> Iterator[ScoreRequest]:
        yield from asks(5)
        raise ZeroDivisionError

    got: list[Outcome[ScoreRequest, ScoreResult]] = []

    async def read(client: RadixFlowClient, ordered: bool) -> None:
        async with client.score_many(requests(), ordered=ordered) as outcomes:
            async for outcome in outcomes:
                got.append(outcome)  # noqa: PERF401 - it ends in an error

    async with RadixFlowClient(transport=FakeTransport()) as client:
        for ordered in (True, False):
            with pytest.raises(ZeroDivisionError):
                await read(client, ordered)
    assert len(got) == 10


async def test_closing_the_client_ends_it_with_a_reason() -> None:
    client = RadixFlowClient(transport=Backwards(99), model="m")
    with anyio.fail_after(5):
        async with client.score_many(asks(1000), ordered=True) as outcomes:
            await anyio.wait_all_tasks_blocked()
            await client.aclose()
            with pytest.raises(ClientClosedError):
                await anext(outcomes)
    with pytest.raises(ClientClosedError):
        client.score_many(asks(1))


@pytest.mark.parametrize("change", [{"concurrency": 0}, {"errors": "keep"}])
async def test_bad_arguments(change: dict[str, Any]) -> None:
    async with RadixFlowClient(transport=FakeTransport()) as client:
        with pytest.raises(InvalidInputError, match=next(iter(change))):
            client.score_many(asks(1), **change)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_without_an_event_loop(anyio_backend: str) -> None:
    with RadixFlow(transport=FakeTransport()) as client:
        assert [o.index for o in client.score_many(asks(5), ordered=True)] == [
            *range(5)
        ]
        assert len(client.score_all(asks(3))) == 3
        assert client.run(next(asks(1))).best.text == "a"
        some = client.score_many(asks(10_000))
        next(some)
        some.close()
        others = client.score_many(asks(10_000))
        next(others)
    with pytest.raises(ClientClosedError):
        next(others)
    with pytest.raises(ClientClosedError):
        client.score_many(asks(1))


# --- many that go on ----------------------------------------------------------------


def writes(count: int, branches: Sequence[str] = (" a", " b")) -> Iterator[Any]:
    return (
        GenerationRequest(document=str(number), branches=branches, max_tokens=3)
        for number in range(count)
    )


async def test_many_groups_that_go_on() -> None:
    told: list[Progress] = []
    fake = FakeTransport(texts={" a": " x y z w"})
    async with RadixFlowClient(transport=fake) as client:
        one = await client.run(next(writes(1)))
        outcomes = await client.generate_all(writes(9), progress=told.append)
        async with client.generate_many(writes(10_000), concurrency=2) as many:
            for _ in range(20):
                await anext(many)
            assert len(many._done) <= 8
    assert one.branches[0].text == " x y"
    assert [outcome.request for outcome in outcomes] == [*writes(9)]
    assert {o.unwrap().branches[0].text for o in outcomes} == {one.branches[0].text}
    assert told[-1].done == 9


async def test_part_of_a_group_that_goes_on_is_kept() -> None:
    requests: list[Any] = [*writes(1), *asks(1)]
    once = RetryPolicy(attempts=1)
    async with RadixFlowClient(transport=Cut(), retry=once) as client:
        cut, wrong = await client.generate_all(requests)
    assert isinstance(cut.error, PartialGroupError)
    assert [branch.branch for branch in cut.error.branches] == [" a"]
    assert isinstance(wrong.error, InvalidInputError)
    assert "GenerationRequest" in str(wrong.error)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_many_that_go_on_without_an_event_loop(anyio_backend: str) -> None:
    with RadixFlow(transport=FakeTransport()) as client:
        assert len(client.run(next(writes(1))).branches) == 2
        assert len(client.generate_all(writes(3))) == 3
        indexes = [o.index for o in client.generate_many(writes(5), ordered=True)]
    assert indexes == [*range(5)]


# --- fewer at a time while the server pushes back -----------------------------------

PUSH = RateLimitError("slow down", status=429)


def ended(
    error: Exception | None = None,
    *,
    elapsed: float = 1.0,
    backlog: float | None = None,
) -> RequestEnded:
    return RequestEnded(
        group_id="g",
        request_id="r",
        attempt=1,
        elapsed=elapsed,
        error=error,
        backlog=backlog,
    )


def test_a_burst_halves_the_limit_once() -> None:
    limit = AdaptiveLimit(16)
    for began in (0.0, 0.1, 0.2):
        limit.note(ended(PUSH, elapsed=1.0 - began), now=1.0)
    assert limit.limit == 8
    limit.note(ended(ServerError("busy", status=503), elapsed=0.5), now=2.0)
    assert limit.limit == 4


def test_a_server_with_a_backlog_gets_less_at_a_time() -> None:
    limit = AdaptiveLimit(16)
    limit.note(ended(backlog=BACKLOG_LIMIT), now=1.0)
    assert limit.limit == 16
    for _ in range(3):  # sent before anything was known
        limit.note(ended(backlog=BACKLOG_LIMIT + 1, elapsed=0.5), now=1.0)
    assert limit.limit == 8
    limit.note(ended(APIConnectionError("x"), backlog=BACKLOG_LIMIT + 1), now=2.0)
    assert limit.limit == 4


def test_it_never_falls_below_one_and_never_grows_beyond_the_most() -> None:
    limit = AdaptiveLimit(4)
    for step in range(10):
        limit.note(ended(PUSH, elapsed=0.0), now=float(step))
    assert limit.limit == 1
    for _ in range(100):
        limit.note(ended(), now=21.0)
    assert limit.limit == 4


def test_it_takes_a_round_of_answers_to_add_one() -> None:
    limit = AdaptiveLimit(16)
    limit.note(ended(PUSH), now=0.0)
    for _ in range(8):
        limit.note(ended(), now=2.0)
    assert limit.limit == 8
    limit.note(ended(), now=2.0)
    assert limit.limit == 9


def test_other_errors_say_nothing_about_load() -> None:
    limit = AdaptiveLimit(4)
    for error in (ServerError("x", status=500), APIConnectionError("x")):
        limit.note(ended(error), now=1.0)
    assert limit.limit == 4


async def test_groups_wait_here_and_not_at_a_server_with_a_backlog() -> None:
    busy = FakeServer(delay=0.02, settings={"rows": 1})
    async with (
        busy.listen() as url,
        RadixFlowClient(url, model="fake", max_connections=32) as client,
    ):
        limits: list[int] = []
        view = client.with_options(
            on_event=lambda event: limits.append(client._dispatcher.limit)
        )
        outcomes = await view.score_all(asks(200))
        assert all(outcome.error is None for outcome in outcomes)
        assert limits[0] == 32
        assert min(limits) <= 8
    idle = FakeServer(delay=0.02, settings={"rows": 1000})
    async with (
        idle.listen() as url,
        RadixFlowClient(url, model="fake", max_connections=32) as client,
    ):
        await client.score_all(asks(200))
        assert client._dispatcher.limit == 32


async def test_fewer_groups_work_while_the_server_pushes_back() -> None:
    fake = FakeTransport(errors=[PUSH, PUSH, PUSH])
    async with RadixFlowClient(
        transport=fake, max_connections=8, retry=NOW, model="m"
    ) as client:
        async with client.score_many(asks(1)) as outcomes:
            assert (await anext(outcomes)).error is PUSH
        assert client._dispatcher.limit == 2
        assert client._dispatcher._slots().total_tokens == 2
        await client.score_all(asks(100))
        assert client._dispatcher._slots().total_tokens == 8
