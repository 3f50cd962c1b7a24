"""What goes over HTTP, with httpx's own transport replaced by a script."""

import json
import logging
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    ClientClosedError,
    InvalidResponseError,
    PartialGroupError,
    PluginMissingError,
    RadixFlowClient,
    RadixFlowError,
    RetryPolicy,
    ScoreResult,
    StreamBrokenError,
)
from radixflow_sdk._config import read_settings
from radixflow_sdk._messages import BranchEvent
from radixflow_sdk._transport import HTTPSession, ServerTransport
from tests.sdk.wire import (
    GOOD,
    Chunks,
    Server,
    answer,
    body,
    client,
    completed,
    ended,
    failed,
    plan,
    started,
)

pytestmark = [
    pytest.mark.anyio,
    # httpx iterates its own generators without closing them when a reader leaves early;
    # only trio says so. The response itself is closed, which test_live.py sees.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
ONCE = RetryPolicy(attempts=1)
KEY = "sk-very-secret"


async def ask(radixflow: RadixFlowClient, **rest: Any) -> ScoreResult:
    options = rest.pop("options", ["Oslo", "Rome"])
    return await radixflow.score_candidates(
        "Anna lives in Oslo.", options, question="Where?", group_id="g", **rest
    )


async def score(server: Server, **options: Any) -> ScoreResult:
    async with client(server, **options) as radixflow:
        return await ask(radixflow)


async def test_one_group_is_one_request() -> None:
    server = Server(httpx.Response(200, content=GOOD))
    result = await score(server, api_key=KEY)
    assert [(c.text, c.score) for c in result.candidates] == [
        ("Oslo", -0.5),
        ("Rome", -2.0),
    ]
    [request] = server.requests
    assert str(request.url) == "http://test/v1/branches"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-request-id"].startswith("req-")


async def test_without_a_key_no_header_is_sent() -> None:
    server = Server(httpx.Response(200, content=GOOD))
    await score(server)
    assert "authorization" not in server.requests[0].headers


async def test_the_model_is_asked_for_once() -> None:
    models = httpx.Response(200, json={"data": [{"id": "m"}, {"id": "adapter"}]})
    server = Server(models, *(httpx.Response(200, content=GOOD) for _ in range(2)))
    async with client(server, model=None) as radixflow:
        await ask(radixflow)
        await ask(radixflow)
    assert [request.url.path for request in server.requests] == [
        "/v1/models",
        "/v1/branches",
        "/v1/branches",
    ]
    assert json.loads(server.requests[1].content)["model"] == "m"


async def events(content: Any) -> list[BranchEvent]:
    """The events of one answer, straight from the transport."""
    server = Server(httpx.Response(200, content=content))
    settings = read_settings(
        base_url="http://test",
        api_key=None,
        timeout=None,
        retry=None,
        max_connections=1,
    )
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as http:
        transport = ServerTransport(HTTPSession(settings, http_client=http))
        return [event async for event in transport.stream(plan().request)]


async def test_an_answer_cut_at_any_byte_is_right_or_broken() -> None:
    whole = await events(GOOD)
    assert len(whole) == 4
    for cut in range(len(GOOD)):
        with pytest.raises(StreamBrokenError) as caught:
            await events(GOOD[:cut])
        assert caught.value.group_id == "g"
        assert caught.value.request_id is not None


async def test_an_answer_in_pieces_of_any_size_is_the_same() -> None:
    whole = await events(GOOD)
    for size in (1, 2, 3, 7, 64, 1000):
        pieces = [GOOD[at : at + size] for at in range(0, len(GOOD), size)]
        assert await events(Chunks(*pieces)) == whole


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 8), st.binary(max_size=8))
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_with_any_bytes_changed_is_whole_or_a_typed_error(
    at: int, gone: int, new: bytes
) -> None:
    server = Server(httpx.Response(200, content=GOOD[:at] + new + GOOD[at + gone :]))
    try:
        result = await score(server, retry=ONCE)
    except RadixFlowError:
        return
    assert sorted(candidate.index for candidate in result.candidates) == [0, 1]
    assert all(-20000 < candidate.score < 0.01 for candidate in result.candidates)


@pytest.mark.parametrize(
    "lines",
    [
        body(completed(0)),
        body(started(), started()),
        body(ended()),
        GOOD + body(completed(0)),
        GOOD + body(ended()),
    ],
    ids=["no start", "two starts", "only an end", "late branch", "two ends"],
)
async def test_events_out_of_order_are_refused(lines: bytes) -> None:
    with pytest.raises(InvalidResponseError, match="out of order"):
        await events(lines)


@pytest.mark.parametrize(
    "lines",
    [
        body(started(), completed(0), completed(0), completed(1), ended()),
        body(started(), completed(0), ended()),
        body(started(), completed(0), completed(5), ended()),
        body(started(), completed(0)) + b'{"event": "branch.completed"}\n',
        body(started(), completed(0)) + b"not json\n",
    ],
    ids=["twice", "missing", "range", "fields", "json"],
)
async def test_a_wrong_server_is_an_error_that_keeps_what_was_in(lines: bytes) -> None:
    server = Server(httpx.Response(200, content=lines))
    with pytest.raises(PartialGroupError) as caught:
        await score(server)
    assert isinstance(caught.value.__cause__, InvalidResponseError)
    assert [c.index for c in caught.value.candidates][:1] == [0]


# --- retries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.Response(408),
        httpx.Response(429),
        httpx.Response(503, json={"error": {"code": "engine_dead", "message": "x"}}),
        httpx.Response(500),
        httpx.Response(200, content=body(started())),
        httpx.Response(200, content=Chunks(error=httpx.ReadError("cut"))),
    ],
    ids=["refused", "timeout", "408", "429", "503", "500", "cut", "reset"],
)
async def test_a_failed_request_is_sent_again(first: Any) -> None:
    server = Server(first, httpx.Response(200, content=GOOD))
    result = await score(server)
    assert result.best.text == "Oslo"
    one, two = server.requests
    assert json.loads(one.content) == json.loads(two.content)
    assert one.headers["x-request-id"] != two.headers["x-request-id"]


@pytest.mark.parametrize("status", [400, 401, 404, 422, 501])
async def test_what_cannot_get_better_is_not_sent_again(status: int) -> None:
    server = Server(httpx.Response(status))
    with pytest.raises(APIError) as caught:
        await score(server)
    assert len(server.requests) == 1
    assert caught.value.group_id == "g"
    assert caught.value.request_id == server.requests[0].headers["x-request-id"]


async def test_the_budget_is_kept() -> None:
    server = Server(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(APIConnectionError, match="ConnectError: refused"):
        await score(server)
    assert len(server.requests) == 3


async def test_after_a_break_only_the_missing_branches_are_sent() -> None:
    broken = body(started(3), completed(1, -1.0))
    rest = body(started(2), completed(1, -3.0), completed(0, -2.0), ended(2))
    server = Server(*(httpx.Response(200, content=lines) for lines in (broken, rest)))
    async with client(server) as radixflow:
        result = await ask(radixflow, options=["a", "b", "c"])
    assert [(c.text, c.score) for c in result.candidates] == [
        ("b", -1.0),
        ("a", -2.0),
        ("c", -3.0),
    ]
    assert [branch["text"] for branch in server.bodies[1]["branches"]] == [" a", " c"]
    assert server.bodies[1]["group_id"] == server.bodies[0]["group_id"] == "g"
    # The broken request never said its sums: its one branch is counted all the same.
    assert result.usage.prompt_tokens == 36
    assert result.usage.rounds is None


async def test_a_branch_that_failed_retryably_is_sent_again() -> None:
    first = answer(
        started(), failed(0, retryable=True), completed(1, -2.0), ended(1, 1)
    )
    server = Server(first, answer(started(1), completed(0, -1.0), ended(1)))
    result = await score(server)
    assert [(c.text, c.score) for c in result.candidates] == [
        ("Oslo", -1),
        ("Rome", -2),
    ]
    assert server.bodies[1]["branches"] == [{"text": " Oslo"}]
    assert (result.usage.prompt_tokens, result.usage.rounds) == (24, 6)


async def test_a_branch_that_keeps_failing_uses_up_the_one_budget() -> None:
    server = Server(
        httpx.Response(503),
        answer(started(), failed(0, retryable=True), completed(1, -2.0), ended(1, 1)),
        answer(started(1), failed(0, retryable=True, code="aborted"), ended(0, 1)),
    )
    with pytest.raises(PartialGroupError) as caught:
        await score(server)
    assert [c.text for c in caught.value.candidates] == ["Rome"]
    assert [f.code for f in caught.value.failures] == ["aborted"]
    assert len(server.requests) == 3


async def test_a_branch_that_failed_for_good_is_not_sent_again() -> None:
    server = Server(
        answer(started(), failed(0, retryable=False), completed(1), ended(1, 1))
    )
    with pytest.raises(PartialGroupError):
        await score(server)


async def test_a_break_with_branches_in_keeps_them() -> None:
    broken = httpx.Response(200, content=body(started(), completed(0)))
    server = Server(broken, httpx.ConnectError("gone"), httpx.ConnectError("gone"))
    with pytest.raises(PartialGroupError) as caught:
        await score(server)
    assert isinstance(caught.value.__cause__, APIConnectionError)
    assert [c.text for c in caught.value.candidates] == ["Oslo"]
    assert [(f.index, f.code) for f in caught.value.failures] == [(1, "not_answered")]
    assert caught.value.request_id == server.requests[-1].headers["x-request-id"]


async def test_a_cut_behind_the_last_branch_loses_nothing() -> None:
    lines = body(started(), completed(0, -1.0), completed(1, -2.0))
    result = await score(Server(httpx.Response(200, content=lines)))
    assert result.best.text == "Oslo"
    assert result.usage.prompt_tokens == 24


async def test_nonsense_behind_the_last_branch_is_not_passed_over() -> None:
    lines = body(started(), completed(0), completed(1)) + b"nonsense\n"
    with pytest.raises(PartialGroupError, match="0 of 2 candidates") as caught:
        await score(Server(httpx.Response(200, content=lines)))
    assert isinstance(caught.value.__cause__, InvalidResponseError)
    assert len(caught.value.candidates) == 2


# --- secrets, ends ------------------------------------------------------------------


async def test_the_key_shows_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server(
        httpx.Response(500, text=f"key {KEY}"), httpx.Response(401, text=KEY)
    )
    radixflow = client(server, api_key=KEY)
    assert KEY not in repr(radixflow)
    assert KEY not in repr(radixflow._settings)
    async with radixflow:
        with pytest.raises(APIError) as caught:
            await ask(radixflow)
    assert KEY not in repr(caught.value)
    assert KEY not in caplog.text
    assert "attempt 1 failed with ServerError" in caplog.text


async def test_a_stock_server_is_told_apart() -> None:
    with pytest.raises(PluginMissingError):
        await score(Server(httpx.Response(404, json={"detail": "Not Found"})))


async def test_a_closed_client_says_so() -> None:
    radixflow = client(Server())
    await radixflow.aclose()
    with pytest.raises(ClientClosedError):
        await ask(radixflow)
    with pytest.raises(ClientClosedError):
        async with radixflow:
            pass


async def test_a_callers_http_client_stays_open_and_may_be_closed() -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(Server()))
    async with RadixFlowClient("http://test", model="m", http_client=http):
        pass
    assert not http.is_closed
    await http.aclose()
    async with RadixFlowClient("http://test", model="m", http_client=http) as radixflow:
        with pytest.raises(ClientClosedError, match="http_client"):
            await ask(radixflow)


async def test_a_huge_error_page_is_not_read_to_its_end() -> None:
    page = Chunks(*[b"x" * 2**16] * 1000)
    with pytest.raises(APIError) as caught:
        await score(Server(httpx.Response(400, content=page)))
    assert len(str(caught.value)) < 500


async def test_a_silent_server_is_a_timeout() -> None:
    with pytest.raises(APITimeoutError):
        await score(Server(httpx.ReadTimeout("silent")), retry=ONCE)
