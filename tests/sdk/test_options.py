"""Ways out: options of a view, headers, bodies, events, ids, logs."""

import json
import logging
from typing import Any

import httpx
import pytest

from radixflow_sdk import (
    GroupEnded,
    InvalidInputError,
    PartialGroupError,
    RadixFlow,
    RadixFlowClient,
    RequestEnded,
    RequestSent,
    RetryPolicy,
    ServerError,
)
from radixflow_sdk._events import ClientEvent
from radixflow_sdk._hints import session_id
from radixflow_sdk.testing import FakeServer, FakeTransport, Fault
from tests.sdk.wire import GOOD, Server, client

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=3, initial=0.0)
OPTIONS = ["Oslo", "Rome"]


async def ask(radixflow: RadixFlowClient) -> Any:
    return await radixflow.score_candidates("d", OPTIONS, group_id="g")


async def test_headers_and_body_of_a_view_go_out_with_it_alone() -> None:
    server = Server(*(httpx.Response(200, content=GOOD) for _ in range(2)))
    async with client(server) as radixflow:
        await ask(
            radixflow.with_options(
                extra_headers={"X-Tenant": "7", "X-Session-ID": "mine"},
                extra_body={"priority": 5},
            )
        )
        await ask(radixflow)
    first, second = server.requests
    assert first.headers["x-tenant"] == "7"
    assert first.headers["x-session-id"] == "mine"
    assert json.loads(first.content)["priority"] == 5
    assert "x-tenant" not in second.headers
    assert "priority" not in json.loads(second.content)


async def test_a_view_shares_turns_connections_and_closing() -> None:
    fake = FakeTransport()
    radixflow = RadixFlowClient(transport=fake, model="m", cache_salt="all")
    view = radixflow.with_options(model="n", cache_salt="one", timeout=1.0, retry=NOW)
    await ask(view)
    await ask(radixflow)
    await ask(view.with_options(model="o"))
    assert [(r.model, r.cache_salt) for r in fake.requests] == [
        ("n", "one"),
        ("m", "all"),
        ("o", "one"),
    ]
    assert view._dispatcher is radixflow._dispatcher
    await view.aclose()
    assert fake.closed


@pytest.mark.parametrize(
    "change",
    [
        {"extra_headers": {"a b": "c"}},
        {"extra_headers": {"a": "secret\r\nb: c"}},
        {"extra_headers": {"a": 1}},
        {"extra_body": {"a": object()}},
        {"extra_body": {"a": float("nan")}},
        {"extra_body": {"a": "\ud800"}},
        {"timeout": -1.0},
    ],
)
async def test_bad_options(change: dict[str, Any]) -> None:
    async with RadixFlowClient(transport=FakeTransport()) as radixflow:
        with pytest.raises(InvalidInputError, match=next(iter(change))) as caught:
            radixflow.with_options(**change)
    assert "secret" not in str(vars(caught.value)) + str(caught.value)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_a_view_of_the_blocking_client(anyio_backend: str) -> None:
    fake = FakeTransport()
    with RadixFlow(transport=fake, model="m") as blocking:
        view = blocking.with_options(model="n")
        view.score_candidates("d", OPTIONS)
        blocking.score_candidates("d", OPTIONS)
    assert [request.model for request in fake.requests] == ["n", "m"]
    with pytest.raises(Exception, match="closed"):
        view.score_candidates("d", OPTIONS)


# --- events -------------------------------------------------------------------------


async def test_events_tell_of_every_request_and_group() -> None:
    told: list[ClientEvent] = []
    fault = Fault(status=503)
    async with (
        FakeServer(faults=[fault]).listen() as url,
        RadixFlowClient(url, retry=NOW) as radixflow,
    ):
        result = await ask(radixflow.with_options(on_event=told.append))
    kinds = [RequestSent, RequestEnded, RequestSent, RequestEnded, GroupEnded]
    assert [type(event) for event in told] == kinds
    assert all(event.group_id == "g" for event in told)
    first, failed, second, whole, group = told
    assert isinstance(first, RequestSent)
    assert isinstance(second, RequestSent)
    assert (first.attempt, second.attempt, second.branches) == (1, 2, 2)
    assert first.session_id == second.session_id != ""
    assert isinstance(failed, RequestEnded)
    assert isinstance(failed.error, ServerError)
    assert isinstance(whole, RequestEnded)
    assert (whole.error, whole.request_id) == (None, result.request_id)
    assert isinstance(group, GroupEnded)
    assert (group.branches, group.failed, group.error) == (2, 0, None)


async def test_a_group_that_fails_is_told_with_its_error() -> None:
    told: list[ClientEvent] = []
    server = FakeServer(faults=[Fault(cut_after=1)])
    async with (
        server.listen() as url,
        RadixFlowClient(url, retry=RetryPolicy(attempts=1)) as radixflow,
    ):
        with pytest.raises(PartialGroupError) as caught:
            await ask(radixflow.with_options(on_event=told.append))
    group = told[-1]
    assert isinstance(group, GroupEnded)
    assert (group.failed, group.error) == (1, caught.value)


async def test_a_hook_that_raises_costs_no_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hook(event: ClientEvent) -> None:
        raise ZeroDivisionError

    async with RadixFlowClient(transport=FakeTransport()) as radixflow:
        await ask(radixflow.with_options(on_event=hook))
    assert "on_event failed" in caplog.text


# --- ids ----------------------------------------------------------------------------


async def test_every_object_and_error_has_its_request() -> None:
    server = FakeServer(faults=[None, Fault(cut_after=1)])
    async with (
        server.listen() as url,
        RadixFlowClient(url, retry=RetryPolicy(attempts=1)) as radixflow,
    ):
        result = await ask(radixflow)
        with pytest.raises(PartialGroupError) as caught:
            await ask(radixflow)
    sent = [request.headers["x-request-id"] for request in server.requests]
    assert [result.request_id, caught.value.request_id] == sent
    assert {c.request_id for c in result.candidates} == {f"{sent[0]}-0", f"{sent[0]}-1"}


def test_the_session_is_that_of_salt_model_and_document() -> None:
    chat = [{"role": "user", "content": "d"}]
    turned = [{"content": "d", "role": "user"}]
    assert session_id(None, "m", "d") == "s-43c24b720fd5f745505feb167f751381"
    assert session_id(None, "m", [1, 2]) == session_id(None, "m", (1, 2))
    assert session_id(None, "m", chat) == session_id(None, "m", turned)
    others = [("s", "m", "d"), (None, "n", "d"), (None, "m", "e"), (None, "m", chat)]
    assert len({session_id(*other) for other in others}) == 4


async def test_the_session_does_not_depend_on_question_and_options() -> None:
    server = FakeServer()
    async with server.listen() as url, RadixFlowClient(url) as radixflow:
        chat = [{"role": "user", "content": "d"}]
        await radixflow.score_candidates(chat, ["a"], question="Where?")
        await radixflow.score_candidates(chat, ["b", "c"], question="Who?")
    sessions = {request.headers["x-session-id"] for request in server.requests}
    assert len(sessions) == 1


async def test_logs_tell_neither_key_nor_document(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = FakeServer(api_key="sk-very-secret", faults=[Fault(status=503)])
    async with (
        server.listen() as url,
        RadixFlowClient(url, api_key="sk-very-secret", retry=NOW) as radixflow,
    ):
        view = radixflow.with_options(extra_headers={"X-Token": "tk-secret"})
        await view.score_candidates("a private document", ["an option"])
        await view.generate_branches("a private document", ["an option"], max_tokens=2)
        assert "tk-secret" not in repr(view) + repr(view._call_settings)
        fake = FakeTransport()
        async with RadixFlowClient(transport=fake) as other:
            view = other.with_options(extra_headers={"X-Token": "tk-secret"})
            await view.score_candidates("d", ["a"])
        assert "tk-secret" not in repr(fake.requests)
    for secret in ("sk-very-secret", "tk-secret", "private", "an option"):
        assert secret not in caplog.text
