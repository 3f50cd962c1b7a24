"""Rerankers of other projects, as they come from the registry, on our routes."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

cohere = pytest.importorskip("cohere", reason="cohere is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("RADIXFLOW_SERVER_PYTHON", str(ROOT / ".venv/bin/python"))
DOCUMENTS = ["b", "aaa", "aaa aaa"]
RANKED = [("aaa aaa", 0.9526), ("aaa", 0.8808)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = f"http://127.0.0.1:{port}"
    command = [PYTHON, "-m", "tests.integrations.fake_rerank", str(port)]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{found}/openapi.json", timeout=5).close()
                break
            except urllib.error.URLError:
                assert server.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.2)
        yield found
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.parametrize("name", ["Client", "ClientV2"])
def test_cohere(url: str, name: str) -> None:
    client = getattr(cohere, name)(api_key="none", base_url=url)
    answer = client.rerank(model="fake", query="q", documents=DOCUMENTS, top_n=2)
    found = [(DOCUMENTS[one.index], one.relevance_score) for one in answer.results]
    assert [text for text, _ in found] == [text for text, _ in RANKED]
    assert [score for _, score in found] == pytest.approx(
        [score for _, score in RANKED], abs=1e-4
    )
    with pytest.raises(cohere.NotFoundError) as caught:
        client.rerank(model="none", query="q", documents=DOCUMENTS)
    assert "is not served here" in caught.value.body["message"]


def test_langchain(url: str) -> None:
    langchain: Any = pytest.importorskip("langchain_cohere")
    documents: Any = pytest.importorskip("langchain_core.documents")
    reranker = langchain.CohereRerank(
        client=cohere.ClientV2(api_key="none", base_url=url),
        cohere_api_key="none",
        model="fake",
        top_n=2,
    )
    given = [documents.Document(page_content=text) for text in DOCUMENTS]
    found = reranker.compress_documents(given, "q")
    assert [one.page_content for one in found] == [text for text, _ in RANKED]
    assert found[0].metadata["relevance_score"] == pytest.approx(0.9526, abs=1e-4)


def test_llama_index(url: str) -> None:
    llama: Any = pytest.importorskip("llama_index.postprocessor.cohere_rerank")
    schema: Any = pytest.importorskip("llama_index.core.schema")
    reranker = llama.CohereRerank(api_key="none", model="fake", top_n=2, base_url=url)
    given = [
        schema.NodeWithScore(node=schema.TextNode(text=text)) for text in DOCUMENTS
    ]
    found = reranker.postprocess_nodes(given, query_str="q")
    assert [one.text for one in found] == [text for text, _ in RANKED]
