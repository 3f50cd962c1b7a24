"""``on_response``: the HTTP answers behind a result, as they came."""

from contextlib import aclosing

import httpx
import pytest

from radixflow_sdk import (
    RadixFlow,
    RadixFlowClient,
    RawResponse,
    RetryPolicy,
    ServerError,
)
from radixflow_sdk.testing import FakeServer, Fault
from tests.sdk.stock import StockServer
from tests.sdk.wire import GOOD, Chunks, Server, client

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=2, initial=0.0)


async def test_every_answer_of_a_group_is_told_with_its_bytes() -> None:
    told: list[RawResponse] = []
    faults = [Fault(status=503, headers={"X-Pod": "7"}), Fault(cut_after=1)]
    server = FakeServer(faults=faults)
    retry = RetryPolicy(attempts=3, initial=0.0)
    async with server.listen() as url, RadixFlowClient(url, retry=retry) as radixflow:
        view = radixflow.with_options(on_response=told.append)
        result = await view.score_candidates("d", ["a", "b"])
        await radixflow.score_candidates("d", ["a", "b"])
    refused, cut, whole = told
    assert (refused.status, refused.headers["x-pod"]) == (503, "7")
    assert b"as told" in refused.body
    assert [event["event"] for event in cut.events] == [
        "group.started",
        "branch.completed",
    ]
    assert [event["event"] for event in whole.events][-1] == "group.completed"
    sent = [request.headers["x-request-id"] for request in server.requests]
    assert [answer.request_id for answer in told] == sent[:3]
    assert whole.request_id == result.request_id
    assert {answer.group_id for answer in told} == {result.group_id}
    assert whole.url == f"{url}/v1/branches"


async def test_an_answer_that_is_left_early_is_told_as_far_as_it_was_read() -> None:
    told: list[RawResponse] = []
    first = GOOD.split(b"\n")[:2]
    pieces = [line + b"\n" for line in GOOD.split(b"\n")[:-1]]
    server = Server(httpx.Response(200, content=Chunks(*pieces)))
    async with client(server) as radixflow:
        view = radixflow.with_options(on_response=told.append)
        stream = view.stream_candidates("d", ["Oslo", "Rome"], group_id="g")
        async with aclosing(stream) as candidates:
            async for _ in candidates:
                break
    [answer] = told
    assert answer.body == b"\n".join(first) + b"\n"


async def test_completions_and_generation_are_told_too() -> None:
    told: list[RawResponse] = []
    async with client(StockServer(), route="trie") as radixflow:
        view = radixflow.with_options(on_response=told.append)
        await view.score_candidates("Anna lives", ["in Oslo"])
    assert {httpx.URL(answer.url).path for answer in told} == {
        "/tokenize",
        "/v1/completions",
    }
    told.clear()
    async with FakeServer().listen() as url, RadixFlowClient(url) as radixflow:
        view = radixflow.with_options(on_response=told.append)
        await view.generate_branches("d", ["a"], max_tokens=9)
    [answer] = told
    assert [event["choices"][0]["index"] for event in answer.events] == [0, 0]


async def test_a_hook_that_raises_costs_no_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hook(answer: RawResponse) -> None:
        raise ZeroDivisionError

    async with FakeServer().listen() as url, RadixFlowClient(url) as radixflow:
        await radixflow.with_options(on_response=hook).score_candidates("d", ["a"])
    assert "on_response failed" in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_refusals_are_told_before_they_are_raised(anyio_backend: str) -> None:
    told: list[RawResponse] = []
    server = FakeServer(faults=[Fault(status=500)] * 2)
    with server.listen_in_thread() as url, RadixFlow(url, retry=NOW) as radixflow:
        view = radixflow.with_options(on_response=told.append)
        with pytest.raises(ServerError):
            view.score_candidates("d", ["a"])
    assert [answer.status for answer in told] == [500, 500]
    assert "as told" not in repr(told)
