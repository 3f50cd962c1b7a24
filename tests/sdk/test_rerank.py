"""Passages in the order of their relevance."""

import math
from typing import Any

import pytest

from radixflow_sdk import InvalidInputError, RadixFlow, RadixFlowClient
from radixflow_sdk.testing import FakeServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
PASSAGES = ["Rome is in Italy.", "Oslo is in Norway.", "Fish swim."]


def published(query: str, passage: str, instruction: str) -> str:
    """The prompt of the Qwen3-Reranker models, as their card composes it."""
    system = (
        "Judge whether the Document meets the requirements based on the Query and the "
        'Instruct provided. Note that the answer can only be "yes" or "no".'
    )
    user = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {passage}"
    prefix = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return prefix + user + suffix


def prompts(server: FakeServer) -> list[str]:
    [request] = server.requests
    document = request.body["document"]["text"]
    return [document + branch["text"] for branch in request.body["branches"]]


@pytest.mark.parametrize("instruction", [None, "Find capitals."])
async def test_qwen3_rerankers_are_asked_as_published(instruction: str | None) -> None:
    server = FakeServer(model="org/Qwen3-Reranker-0.6B")
    async with server.listen() as url, RadixFlowClient(url) as client:
        await client.rerank("Where is Oslo?", PASSAGES, instruction=instruction)
    own = instruction or (
        "Given a web search query, retrieve relevant passages that answer the query"
    )
    assert prompts(server) == [published("Where is Oslo?", p, own) for p in PASSAGES]
    assert server.requests[0].body["labels"] == ["yes", "no"]


async def test_a_passage_scores_its_share_of_yes() -> None:
    server = FakeServer()
    async with server.listen() as url, RadixFlowClient(url) as client:
        result = await client.rerank("Where?", PASSAGES, top_n=2)
    assert len(result.passages) == 2
    [group] = result.groups
    for passage, candidate in zip(result.passages, group.candidates, strict=False):
        yes, no = (math.exp(label.logprob) for label in candidate.labels or ())
        assert passage.index == candidate.index
        assert passage.text == PASSAGES[passage.index]
        assert passage.score == pytest.approx(yes / (yes + no))
    scores = [passage.score for passage in result.passages]
    assert scores == sorted(scores, reverse=True)


async def test_query_likelihood_is_a_group_a_passage() -> None:
    server = FakeServer()
    async with server.listen() as url, RadixFlowClient(url) as client:
        result = await client.rerank("Where?", PASSAGES, mode="query_likelihood")
    texts = sorted(request.body["document"]["text"] for request in server.requests)
    asked = "Please write a question based on this passage."
    assert texts == sorted(f"Passage: {p}\n{asked}\nQuestion:" for p in PASSAGES)
    branches = [request.body["branches"] for request in server.requests]
    assert branches == [[{"text": " Where?"}]] * 3
    for passage in result.passages:
        group = result.groups[passage.index]
        assert passage.score == group.best.scores["mean"]


def test_the_client_that_blocks() -> None:
    with FakeServer().listen_in_thread() as url, RadixFlow(url) as client:
        assert len(client.rerank("Where?", PASSAGES).passages) == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"query": ""}, "query is ''"),
        ({"query": 7}, "query is 7"),
        ({"passages": "text"}, "give a list of texts"),
        ({"passages": []}, "give at least one"),
        ({"passages": ["a", ""]}, r"passages\[1\] is ''"),
        ({"top_n": 0}, "top_n is 0"),
        ({"mode": "both"}, "mode is 'both'"),
        ({"template": "none"}, "template is 'none'"),
    ],
)
async def test_what_is_not_usable_is_refused(
    arguments: dict[str, Any], told: str
) -> None:
    async with RadixFlowClient("http://127.0.0.1:9") as client:
        with pytest.raises(InvalidInputError, match=told):
            await client.rerank(**{"query": "q", "passages": ["p"]} | arguments)
