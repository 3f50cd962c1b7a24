"""The rerank routes, on a fake engine."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from radixflow_sdk import _rerank
from server_ext.api import rerank
from server_ext.api.rerank import TEMPLATES, Template
from tests.server.fake_engine import (
    Client,
    FakeEngine,
    ended,
    finished,
    serve,
    until,
)

pytestmark = pytest.mark.asyncio
PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that fit the fake's limit, and labels of one of its tokens."""
    monkeypatch.setitem(TEMPLATES, "plain", Template("", "?", ("y", "n")))


def relevance(asked: Any) -> Any:
    """The more of the letter a in a passage, the surer the yes."""
    output = finished(asked)
    count = bytes(token for token in asked.tokens if token < 128).count(b"aaa")
    for token, value in zip(map(ord, "yn"), (-1.0, -2.0 - count), strict=True):
        output.outputs[0].logprobs[0][token].logprob = value
    return output


async def ask(body: Any, path: str = "/v1/rerank", engine: Any = None) -> Client:
    app = serve(engine or FakeEngine(relevance))
    return await Client(app, path=path, body=body)()


def request(*documents: Any, **changes: Any) -> dict[str, Any]:
    given = documents or ("b", "aaa", "aaa aaa")
    return {"query": "q", "documents": list(given), "instruction": "i"} | changes


@pytest.mark.parametrize("path", PATHS)
async def test_documents_by_relevance(path: str) -> None:
    client = await ask(request(), path)
    answer = json.loads(client.body)
    assert client.status == 200
    assert [one["index"] for one in answer["results"]] == [2, 1, 0]
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == pytest.approx([0.9526, 0.8808, 0.7311], abs=1e-4)
    assert ("document" in answer["results"][0]) is (path != "/v2/rerank")
    assert answer["meta"]["api_version"] == {
        "version": path[2] if path[2] == "2" else "1"
    }
    assert (
        answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 90
    )
    assert answer["model"] == "fake"


async def test_what_the_engine_is_asked() -> None:
    engine = FakeEngine(relevance)
    await ask(request({"text": "aaa", "title": "t"}, model="other-name"), engine=engine)
    [asked] = engine.asked
    text = "".join(map(chr, asked.tokens))
    assert text == "<Instruct>: i\n<Query>: q\n<Document>: aaa?"


async def test_top_n_and_documents() -> None:
    client = await ask(request(top_n=1, return_documents=False))
    [result] = json.loads(client.body)["results"]
    assert (result["index"], "document" in result) == (2, False)
    client = await ask(request(top_n=9, return_documents=True), "/v2/rerank")
    results = json.loads(client.body)["results"]
    assert [one["document"]["text"] for one in results] == ["aaa aaa", "aaa", "b"]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{", 400, "JSON"),
        ({"query": "q"}, 422, "documents: Field required"),
        (request(top_n=0), 422, "top_n"),
        (request(query=""), 422, "query"),
        ({"query": "q", "documents": []}, 422, "documents"),
        (request("a", 7), 422, "documents.1"),
        (request(model="none"), 404, "is not served here"),
        (request("a" * 300), 422, "branches.0"),
    ],
)
async def test_errors_have_the_keys_that_these_clients_read(
    body: Any, status: int, told: str
) -> None:
    client = await ask(body)
    answer = json.loads(client.body)
    assert client.status == status
    assert told in answer["message"]
    assert answer["detail"] == answer["message"] == answer["error"]["message"]


async def test_a_path_that_no_key_guards_is_refused_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = serve(FakeEngine(relevance))
    app.state.args = SimpleNamespace(api_key=["k"])
    for path, status in zip(PATHS, (404, 200, 200), strict=True):
        assert (await Client(app, path=path, body=request())()).status == status
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert (await ask(request(), "/rerank")).status == 404


async def test_a_passage_without_a_score_is_an_error() -> None:
    client = await ask(request(), engine=FakeEngine(lambda asked: ended("abort")))
    assert client.status == 503
    assert json.loads(client.body)["message"].startswith("documents.")


async def test_a_client_that_goes_away_ends_the_group() -> None:
    engine = FakeEngine(relevance)
    engine.gate.clear()
    client = Client(serve(engine), path="/rerank", body=request())
    await until(lambda: len(engine.running) == 3)
    client.go_away()
    await until(lambda: len(engine.aborted) == 3)
    await client.task


async def test_the_sdk_has_the_same_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert _rerank._TEMPLATES.keys() == TEMPLATES.keys()
    for name, words in TEMPLATES.items():
        own = _rerank._TEMPLATES[name]
        assert (own.before, own.after, own.labels) == (
            words.before,
            words.after,
            words.labels,
        )
        assert own.instruction == rerank.INSTRUCTION
