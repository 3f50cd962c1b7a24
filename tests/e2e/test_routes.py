"""Every way to a score gives the same score: one row, the rows of a branch, a trie, an
echo, and a server without the plug-in."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixflow_sdk import RadixFlow, ScoreResult
from server_ext.demo import CHECKPOINT
from tests.e2e.loads import Load, loads
from tests.e2e.served import KEY, Served, fresh_salt, rounded, stop, wait_for_health
from tests.e2e.test_exactness import reference, same

pytestmark = pytest.mark.server

Encode = Callable[[str], list[int]]


def of_one_token(load: Load, encode: Encode, count: int) -> Load:
    """The same question with options of exactly one token each."""
    context = load.document + load.text_question
    before = len(encode(context))
    words = " ".join(one.document for one in loads()).replace(".", "").split()
    short = [
        word
        for word in dict.fromkeys(words)
        if len(encode(f"{context} {word}")) == before + 1
    ]
    assert len(short) >= count
    return Load(load.document, load.question, tuple(short[:count]))


@pytest.mark.parametrize("count", [4, 60])
def test_options_of_one_token_are_read_from_one_row(
    server: Served,
    salt: str,
    encode: Encode,
    count: int,
    record_property: Callable[[str, object], None],
) -> None:
    load = of_one_token(loads()[5], encode, count)
    ask = {"question": load.text_question, "cache_salt": salt}
    server.wait_until_idle()
    before = server.counters()
    answer = server.group(load.document, load.branches, **ask)
    server.wait_until_idle()
    after = server.counters()
    record_property("off", same(answer.rows, reference(server, load, encode)))
    spent = {name: after[name] - before[name] for name in ("rows", "tokens", "rounds")}
    record_property("spent", spent)
    assert spent["rows"] <= 4  # the producer's, which may take two rounds, and one
    assert (
        answer.usage["computed_tokens"]
        == answer.branches[0]["usage"]["computed_tokens"]
    )
    # One branch alone has a request of its own, which reads the row of its prompt.
    for index in range(0, count, max(count // 4, 1)):
        alone = server.group(load.document, [load.branches[index]], **ask)
        assert alone.rows[0] == [rounded(answer.rows[index][0])]


def score(url: str, load: Load, **settings: Any) -> ScoreResult:
    scoring = settings.pop("scoring", "likelihood")
    with RadixFlow(url, api_key=KEY, timeout=120, **settings) as client:
        return client.score_candidates(
            load.document, load.options, question=load.question, scoring=scoring
        )


def scores(result: ScoreResult) -> list[float]:
    return [c.score for c in sorted(result.candidates, key=lambda c: c.index)]


@pytest.mark.parametrize("scoring", ["likelihood", "label"])
@pytest.mark.parametrize("route", ["trie", "echo"])
def test_the_safe_routes_score_as_the_plugin(
    server: Served, salt: str, scoring: str, route: str
) -> None:
    for load in (loads()[1], loads()[6]):
        settings: dict[str, Any] = {"scoring": scoring, "cache_salt": salt}
        ours = score(server.url, load, route="branches", **settings)
        safe = score(server.url, load, route=route, **settings)
        assert scores(safe) == [rounded(value) for value in scores(ours)]
        assert safe.document_tokens == ours.document_tokens
        assert (ours.route, safe.route) == (
            "branches",
            "trie" if scoring == "label" else route,
        )
        for one, other in zip(ours.candidates, safe.candidates, strict=True):
            assert one.token_ids == other.token_ids or scoring == "label"


def test_what_the_model_would_say_is_greedy(server: Served, encode: Encode) -> None:
    load = loads()[4]
    context = load.document + load.text_question
    answer = server.post(
        {
            "model": "radixflow-demo",
            "prompt": encode(context),
            "max_tokens": 4,
            "temperature": 0,
            "return_token_ids": True,
        },
        "/v1/completions",
    ).json()
    said = answer["choices"][0]["token_ids"]
    other = [*said[:-1], (said[-1] + 1) % 100]
    for route in ("branches", "trie", "echo"):
        with RadixFlow(server.url, api_key=KEY, route=route) as client:
            result = client.score_candidates(encode(context), [said, other, said[:1]])
        greedy = {c.index: c.is_greedy for c in result.candidates}
        assert greedy == {0: True, 1: False, 2: True}, route


# --- without the plug-in --------------------------------------------------------------


@contextmanager
def stock_server(folder: Path) -> Iterator[str]:
    """vLLM's own server of the demo model: its scheduler, none of our plug-ins."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(CHECKPOINT), "--served-model-name", "radixflow-demo"),
        *("--host", "127.0.0.1", "--port", str(port), "--api-key", KEY),
        *("--max-model-len", "4096", "--dtype", "bfloat16", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(1 << 29), "--max-num-seqs", "16"),
        *("--enable-prefix-caching", "--mamba-cache-mode", "align"),
    ]
    log = folder / "stock.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "VLLM_PLUGINS": ""},
        )
    try:
        served = Served(process, f"http://127.0.0.1:{port}", log)
        with closing(served.http):
            wait_for_health(served)
        yield served.url
    finally:
        stop(process)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stock_server_scores_the_same(server: Served, tmp_path: Path) -> None:
    with stock_server(tmp_path) as url:
        assert httpx.post(f"{url}/v1/branches").status_code in (401, 404)
        for load in (loads()[2], loads()[6]):
            for scoring in ("likelihood", "label"):
                ours = score(server.url, load, scoring=scoring, cache_salt=fresh_salt())
                stock = score(url, load, scoring=scoring)
                assert stock.route == "trie"
                assert scores(stock) == [rounded(value) for value in scores(ours)]
            ours = score(server.url, load, cache_salt=fresh_salt())
            echo = score(url, load, route="echo")
            assert scores(echo) == [rounded(value) for value in scores(ours)]
