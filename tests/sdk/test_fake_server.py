"""`FakeServer` speaks the wire: as an ASGI app, on a socket, well and badly."""

import json
import math
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from radixflow_sdk import (
    APIConnectionError,
    AuthenticationError,
    BranchError,
    ModelNotFoundError,
    PartialGroupError,
    RadixFlow,
    RadixFlowClient,
    RetryPolicy,
    ServerError,
    StreamBrokenError,
)
from radixflow_sdk.testing import FakeServer, FakeTransport, Fault, _server

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=3, initial=0.0)
ONCE = RetryPolicy(attempts=1)


@asynccontextmanager
async def connect(
    server: FakeServer, retry: RetryPolicy = NOW, **options: Any
) -> AsyncIterator[RadixFlowClient]:
    async with (
        server.listen() as url,
        RadixFlowClient(url, retry=retry, **options) as client,
    ):
        with anyio.fail_after(10):
            yield client


async def test_the_same_answer_as_an_app_and_on_a_socket() -> None:
    server = FakeServer({"Oslo": -0.1})
    asgi = httpx.AsyncClient(transport=httpx.ASGITransport(server))
    async with RadixFlowClient("http://x", http_client=asgi) as client:
        inside = await client.score_candidates("d", ["Rome", "Oslo"], question="Where?")
    async with connect(server) as client:
        outside = await client.score_candidates(
            "d", ["Rome", "Oslo"], question="Where?"
        )
    assert [(c.text, c.score) for c in inside.candidates] == [
        (c.text, c.score) for c in outside.candidates
    ]
    assert inside.best.score == -0.1
    assert inside.model == "fake"
    await asgi.aclose()


async def test_made_up_scores_are_always_alike_and_differ() -> None:
    runs = []
    for _ in range(2):
        async with connect(FakeServer()) as client:
            result = await client.score_candidates("d", ["a", "b", [1, 2]])
            runs.append({c.index: c.score for c in result.candidates})
    assert runs[0] == runs[1]
    assert len(set(runs[0].values())) == 3
    assert all(-10 <= score < 0 for score in runs[0].values())


async def test_a_likely_option_is_greedy_and_an_unlikely_one_is_not() -> None:
    scores = {"Oslo": -0.1, "Rome": -4.0}
    for transport in (None, FakeTransport(scores)):
        async with connect(FakeServer(scores), transport=transport) as client:
            result = await client.score_candidates("d", ["Oslo", "Rome"])
            label = await client.score_candidates("d", ["Rome"], scoring="label")
        assert [c.is_greedy for c in result.candidates] == [True, False]
        assert label.best.labels is not None
        # The token that would be generated is " no", and it is the likeliest.
        assert label.best.token_ids == (label.best.labels[1].token_id,)
        assert label.best.tokens[0].is_top


@pytest.mark.parametrize("parts", [["Anna lives ", "in Oslo."], [[1], [2, 3]]])
async def test_a_document_of_parts(parts: list[Any]) -> None:
    server = FakeServer()
    async with connect(server) as client:
        result = await client.score_candidates(parts, ["a", "b"])
        stream = client.stream_candidates(parts, ["a", "b"])
        assert len([candidate async for candidate in stream]) == 2
    assert result.shared_tokens > 0
    ends = [request.body["document"]["boundaries"] for request in server.requests]
    assert ends == [[len(parts[0])]] * 2


@pytest.mark.parametrize(
    "document",
    [
        {"text": "abc", "boundaries": [0]},
        {"text": "abc", "boundaries": [4]},
        {"text": "abc", "boundaries": [2, 2]},
        {"text": "abc", "boundaries": [2, 1]},
        {"text": "abc", "boundaries": [True]},
        {"text": "abc", "boundaries": 1},
        {"token_ids": [1], "boundaries": [2]},
        {"text": "x" * 99, "boundaries": list(range(1, 64))},
        {"messages": [{"role": "user", "content": "x"}], "boundaries": [1]},
    ],
)
async def test_boundaries_that_the_wire_does_not_allow(document: Any) -> None:
    app = httpx.ASGITransport(FakeServer())
    async with httpx.AsyncClient(transport=app, base_url="http://x") as http:
        body = {"document": document, "branches": [{"text": "a"}]}
        answer = await http.post("/v1/branches", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == "document.boundaries"
        body = {"document": {"text": "abc", "boundaries": [1, 3]}, "branches": []}
        assert (await http.post("/v1/branches", json=body)).status_code == 200


async def test_labels_and_messages() -> None:
    server = FakeServer({"Oslo": math.log(0.9)})
    chat = [{"role": "user", "content": "Anna lives in Oslo."}]
    async with connect(server) as client:
        result = await client.score_candidates(
            chat, ["Oslo"], question="Where?", scoring="label", normalize="label"
        )
    assert math.exp(result.best.score) == pytest.approx(0.9)
    assert result.best.labels is not None
    assert [label.label for label in result.best.labels] == [" yes", " no"]


async def test_a_repeated_document_is_cached_up_to_the_match_unit() -> None:
    document = "word " * 100
    async with connect(FakeServer()) as client:
        salts = [None, None, "other"]
        cached = [
            (
                await client.score_candidates(document, ["a"], cache_salt=salt)
            ).best.cached_tokens
            for salt in salts
        ]
    assert cached == [0, 96, 0]
    async with connect(FakeServer(settings={"prefix_caching": False})) as client:
        for _ in range(2):
            result = await client.score_candidates(document, ["a"])
    assert result.usage.cached_tokens == 0


async def test_what_was_cached_long_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_server, "_KEPT", 3)
    async with connect(FakeServer()) as client:
        for number in (*range(4), 0):
            document = f"{number} {'word ' * 32}"
            result = await client.score_candidates(document, ["a"])
    assert result.best.cached_tokens == 0


async def test_faults_come_in_order_and_then_end() -> None:
    server = FakeServer(
        faults=[Fault(status=503), Fault(cut_after=1), Fault(fail=(1,))]
    )
    retry = RetryPolicy(attempts=4, initial=0.0)
    async with connect(server, retry) as client:
        result = await client.score_candidates("d", ["a", "b", "c"])
        assert len(result.candidates) == 3
        sent = [len(request.body["branches"]) for request in server.requests]
        assert sent == [3, 3, 2, 1]
        server.faults.append(None)
        await client.score_candidates("d", ["a"])
    assert not server.faults


async def test_statuses_and_headers() -> None:
    fault = Fault(status=529, code="busy", headers={"Retry-After": "7"})
    async with connect(FakeServer(faults=[fault]), ONCE) as client:
        with pytest.raises(ServerError) as caught:
            await client.score_candidates("d", ["a"])
    assert (caught.value.status, caught.value.code) == (529, "busy")
    assert caught.value.retry_after == 7.0


async def test_branches_that_fail() -> None:
    server = FakeServer({"b": BranchError("gone", code="non_finite_logprob")})
    async with connect(server) as client:
        with pytest.raises(PartialGroupError) as caught:
            await client.score_candidates("d", ["a", "b"])
    assert [f.code for f in caught.value.failures] == ["non_finite_logprob"]


async def test_a_cut_answer_is_broken() -> None:
    async with connect(FakeServer(faults=[Fault(cut_after=0)]), ONCE) as client:
        with pytest.raises(StreamBrokenError):
            await client.score_candidates("d", ["a"])


async def test_what_the_wire_refuses() -> None:
    async with connect(FakeServer(api_key="k"), api_key="wrong") as client:
        with pytest.raises(AuthenticationError):
            await client.score_candidates("d", ["a"])
    async with connect(
        FakeServer(api_key="key"), api_key="key", model="none"
    ) as client:
        with pytest.raises(ModelNotFoundError, match="served is fake"):
            await client.score_candidates("d", ["a"])
    asgi = httpx.ASGITransport(FakeServer())
    async with httpx.AsyncClient(transport=asgi, base_url="http://x") as http:
        assert (await http.get("/nowhere")).status_code == 404
        answer = await http.post("/v1/branches", json={"model": None, "stop": 1})
        assert answer.json()["error"]["field"] == "stop"
    with pytest.raises(NotImplementedError):
        await FakeServer()({"type": "lifespan"}, None, None)  # type: ignore[arg-type]


async def test_a_client_that_goes_away_ends_its_group() -> None:
    server = FakeServer(faults=[Fault(delay=math.inf)])
    async with connect(server) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.score_candidates, "d", ["a"])
            while not server.running:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        while server.running:
            await anyio.lowlevel.checkpoint()
        assert server.aborted == 1
        await client.score_candidates("d", ["a"])
    assert server.aborted == 1


async def test_a_block_that_ends_kills_what_is_under_way() -> None:
    server = FakeServer(delay=math.inf)
    seen = []

    async def call(url: str) -> None:
        async with RadixFlowClient(url, retry=ONCE) as client:
            with pytest.raises((StreamBrokenError, APIConnectionError)) as caught:
                await client.score_candidates("d", ["a"])
            seen.append(caught.value)

    with anyio.fail_after(10):
        # The other order would cancel the call in place of its server.
        async with anyio.create_task_group() as tasks, server.listen() as url:
            tasks.start_soon(call, url)
            while not server.running:
                await anyio.lowlevel.checkpoint()
    assert len(seen) == 1


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with FakeServer().listen():
            raise ZeroDivisionError


def test_the_example_of_the_docs_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [code] = [block for block in blocks if "FakeServer" in block]
    exec(compile(code, "client.md", "exec"), {"__name__": "__main__"})


def test_without_an_event_loop() -> None:
    with FakeServer({"Oslo": -0.1}).listen_in_thread() as url:
        with RadixFlow(url) as client:
            assert client.score_candidates("d", ["Rome", "Oslo"]).best.text == "Oslo"
        with urllib.request.urlopen(f"{url}/v1/radixflow/stats") as answer:
            stats = json.load(answer)
    assert stats["settings"]["match_unit"] == 16
    assert stats["gauges"] == {"running": 0, "waiting": 0}
