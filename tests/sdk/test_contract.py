"""The wire's golden files, from the SDK's side: what it writes, what it reads."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixflow_sdk import PartialGroupError, ScoreRequest, ScoreResult
from radixflow_sdk._hints import write_hints
from radixflow_sdk._plan import make_plan
from radixflow_sdk._transport._branches import write_request
from tests.sdk.wire import Server, client

CONTRACT = Path(__file__).parents[1] / "contract"
DOCUMENT = "Anna lives in Oslo. Tom lives in Rome."
QUESTION = "Where does Anna live?"
CITIES = ["Oslo", "Rome"]


@pytest.mark.parametrize(
    "case", json.loads((CONTRACT / "hints.json").read_text()), ids=lambda c: c["name"]
)
def test_hints(case: dict[str, Any]) -> None:
    assert write_hints(**case["arguments"]) == case["hints"]


@pytest.mark.parametrize(
    "case",
    json.loads((CONTRACT / "hints_ignored.json").read_text()),
    ids=lambda c: c["name"],
)
def test_hints_that_a_server_ignores_are_never_written(case: dict[str, Any]) -> None:
    given = case["hints"].get("radixflow_boundaries")
    whole = isinstance(given, list) and all(type(value) is int for value in given)
    lengths = given if whole else [210]
    written = write_hints("g-1", role="consumer", branches=4, boundaries=lengths)
    assert written.get("radixflow_boundaries") != given
    assert all(value is not None for value in written.values())


def test_hints_are_sorted_and_bounded() -> None:
    lengths = [*range(100, 0, -1), 2**31, 5, 0]
    written = write_hints("g", role="consumer", branches=1, boundaries=lengths)
    assert written["radixflow_boundaries"] == list(range(37, 101))
    none = write_hints("g", role="consumer", branches=1, boundaries=[0])
    assert "radixflow_boundaries" not in none


CALLS: dict[str, tuple[Any, list[Any], dict[str, Any]]] = {
    "likelihood": (DOCUMENT, CITIES, {"question": QUESTION}),
    "label": (
        DOCUMENT,
        CITIES,
        {"question": "Where does {Anna} live?", "scoring": "label"},
    ),
    "label_ids": (DOCUMENT, ["Oslo"], {"scoring": "label", "labels": [812, 44]}),
    "messages": (
        [
            {"role": "system", "content": "Read the text."},
            {"role": "user", "content": DOCUMENT},
        ],
        CITIES,
        {"question": QUESTION, "cache_salt": "tenant-7"},
    ),
    "parts": (
        ["Read the text. ", "∀ ", DOCUMENT],
        CITIES,
        {"question": QUESTION},
    ),
    "token_id_parts": ([[5], (6, 7), [8]], [[9]], {}),
    "token_ids": ([5, 6, 7], [[8], "Zürich 🏔", (9, 10), [8]], {}),
}


@pytest.mark.parametrize("path", sorted(CONTRACT.glob("request_*.json")), ids=str)
def test_request(path: Path) -> None:
    document, options, rest = CALLS[path.stem.removeprefix("request_")]
    request = ScoreRequest(document, options, group_id="g-contract", **rest)
    plan = make_plan(request, model="radixflow-demo")
    assert json.loads(write_request(plan.request)) == json.loads(path.read_text())


async def read(name: str, **rest: Any) -> ScoreResult:
    server = Server(httpx.Response(200, content=(CONTRACT / name).read_bytes()))
    async with client(server) as radixflow:
        return await radixflow.score_candidates(
            DOCUMENT, CITIES, question=QUESTION, group_id="g-contract", **rest
        )


@pytest.mark.anyio
async def test_likelihood_stream() -> None:
    result = await read("stream_likelihood.ndjson")
    assert [(c.text, c.score) for c in result.candidates] == [
        ("Oslo", -0.02),
        ("Rome", -5.75),
    ]
    assert result.candidates[1].token_ids == (907, 13)
    assert [c.cached_tokens for c in result.candidates] == [208, 0]
    assert result.usage.computed_tokens == 239
    assert result.usage.rounds == 2
    assert (result.group_id, result.request_id) == ("g-contract", "req-contract")
    assert (result.document_tokens, result.shared_tokens) == (210, 210)


@pytest.mark.anyio
async def test_label_stream() -> None:
    result = await read("stream_label.ndjson", scoring="label")
    assert [(c.text, c.score) for c in result.candidates] == [
        ("Oslo", -0.05),
        ("Rome", -5.2),
    ]
    assert result.best.labels is not None
    assert [label.label for label in result.best.labels] == [" yes", " no"]
    assert result.usage.rounds is None


@pytest.mark.anyio
async def test_stream_with_a_failure() -> None:
    with pytest.raises(PartialGroupError) as caught:
        await read("stream_failed.ndjson")
    assert [c.text for c in caught.value.candidates] == ["Oslo"]
    assert [f.code for f in caught.value.failures] == ["non_finite_logprob"]
    assert caught.value.request_id == "req-contract"


@pytest.mark.anyio
async def test_stream_from_a_later_version() -> None:
    result = await read("stream_unknown.ndjson")
    assert result.best.text == "Oslo"
