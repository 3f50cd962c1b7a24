"""A server that answers wrongly: a result is right, or an `InvalidResponseError`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixflow_sdk import (
    InvalidResponseError,
    PartialGroupError,
    RetryPolicy,
    ScoreResult,
    StreamBrokenError,
)
from radixflow_sdk._scoring import every_score
from tests.sdk.wire import USAGE, Server, body, client, completed, ended, started

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
CONTRACT = Path(__file__).parents[1] / "contract"
ONCE = RetryPolicy(attempts=1)
IDS = [(7, 8), (9,)]
GOOD = (
    started(),
    completed(0, -1.0, -0.5, token_ids=[7, 8]),
    completed(1, -2.0, token_ids=[9]),
    ended(),
)
LABELS = [{"label": 5, "token_id": 5, "logprob": -0.1}]


async def score(
    lines: tuple[Any, ...] | bytes, options: list[Any], **rest: Any
) -> ScoreResult:
    content = lines if isinstance(lines, bytes) else body(*lines)
    server = Server(httpx.Response(200, content=content))
    async with client(server, retry=ONCE) as radixflow:
        return await radixflow.score_candidates(
            "d", options, **{"group_id": "g"} | rest
        )


def changed(place: int, **change: Any) -> tuple[Any, ...]:
    return *GOOD[:place], {**GOOD[place], **change}, *GOOD[place + 1 :]


def test_usage_of_the_lines_is_consistent() -> None:
    assert USAGE["cached_tokens"] + USAGE["computed_tokens"] == USAGE["prompt_tokens"]


async def test_what_is_right_passes() -> None:
    result = await score(GOOD, IDS)
    assert [candidate.token_ids for candidate in result.candidates] == [(7, 8), (9,)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (changed(1, token_ids=[7, 9]), "token ids other than those sent"),
        (
            changed(1, token_ids=[7], token_logprobs=[-1.0]),
            "token ids other than those sent",
        ),
        (changed(3, completed=7), "7 completed and 0 failed branches after 2 and 0"),
        (changed(3, completed=1, failed=1), "1 completed and 1 failed branches"),
        (changed(1, usage={**USAGE, "cached_tokens": 13}), "13 cached and 4 computed"),
        (changed(1, usage={**USAGE, "computed_tokens": 5}), "8 cached and 5 computed"),
        (
            changed(3, usage={**GOOD[3]["usage"], "prompt_tokens": 25}),
            "25 prompt_tokens where the branches have 24",
        ),
        (changed(0, shared_tokens=13), "a prompt of 12 tokens with 13 shared"),
        ((*GOOD, GOOD[2]), "out of order"),
    ],
)
async def test_a_contradiction_is_named(lines: tuple[Any, ...], reason: str) -> None:
    with pytest.raises((InvalidResponseError, PartialGroupError)) as caught:
        await score(lines, IDS)
    error: BaseException | None = caught.value
    if isinstance(error, PartialGroupError):
        error = error.__cause__
    assert isinstance(error, InvalidResponseError)
    assert reason in str(error)


async def test_more_scored_tokens_than_the_prompt_has() -> None:
    lines = (started(1, shared_tokens=0), completed(0, *[-1.0] * 13), ended(1))
    with pytest.raises(InvalidResponseError, match="13 scored"):
        await score(lines, ["Oslo"])


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([{**LABELS[0], "token_id": 6}], "token 6 for 5"),
        ([{**LABELS[0], "label": 6}], "labels other than those sent"),
    ],
)
async def test_a_label_is_its_own_token(labels: list[Any], reason: str) -> None:
    lines = (started(1), completed(0, labels=labels), ended(1))
    with pytest.raises(InvalidResponseError, match=reason):
        await score(lines, ["Oslo"], scoring="label", labels=[5])


async def test_a_label_has_one_token_id_in_a_group() -> None:
    one = {"label": " yes", "token_id": 5, "logprob": -0.1}
    lines = (
        started(),
        completed(0, labels=[one]),
        completed(1, labels=[{**one, "token_id": 6}]),
        ended(),
    )
    with pytest.raises(PartialGroupError) as caught:
        await score(lines, ["Oslo", "Rome"], scoring="label", labels=[" yes"])
    assert "labels with other token ids than before" in str(caught.value.__cause__)


async def test_label_scoring_generates_one_token() -> None:
    lines = (started(1), completed(0, -1.0, -1.0, labels=LABELS), ended(1))
    with pytest.raises(InvalidResponseError, match="2 generated tokens"):
        await score(lines, ["Oslo"], scoring="label", labels=[5])


def test_a_bad_list_is_refused_at_its_first_element() -> None:
    """Errors of a million elements would take gigabytes."""
    from pydantic import ValidationError

    from radixflow_sdk._transport._branches import _EVENTS

    event = completed(0, token_ids=[""] * 10_000, token_logprobs=[""] * 10_000)
    with pytest.raises(ValidationError) as caught:
        _EVENTS.validate_json(json.dumps(event))
    assert caught.value.error_count() < 10


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 9}, "9 tokens where 8 were allowed"),
        ({"prompt_tokens": 3, "completion_tokens": 8}, None),
    ],
)
async def test_counts_of_generated_text(
    usage: dict[str, int], reason: str | None
) -> None:
    choice = {"index": 0, "text": "so", "finish_reason": "length"}
    chunk = json.dumps({"id": "c", "choices": [choice], "usage": usage})
    content = f"data: {chunk}\n\ndata: [DONE]\n\n".encode()
    server = Server(httpx.Response(200, content=content))
    async with client(server, retry=ONCE) as radixflow:
        with (
            pytest.raises(InvalidResponseError, match=reason)
            if reason
            else nullcontext()
        ):
            await radixflow.generate_branches([1, 2], [[3]], max_tokens=8)


# --- mutated golden streams -------------------------------------------------------

ODD = st.sampled_from(
    [None, True, False, -1, 0, 1, 2, 7, 209, 2**63, 0.5, -0.5, -9999, "", "x", [], {}]
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a parsed stream."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    found = [path] if path else []
    for key, one in inner:
        found += paths(one, (*path, key))
    return found


def right(result: ScoreResult, sent: list[str]) -> None:
    """A result that contradicts neither itself nor what was asked."""
    assert sorted(c.text or "" for c in result.candidates) == sorted(sent)
    assert sum(c.probability for c in result.candidates) == pytest.approx(1.0)
    for one in result.candidates:
        usage = one.usage
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
        assert one.tokens
        assert one.scores == every_score(one.tokens, one.labels, option=one.text or "")
        assert result.shared_tokens <= usage.prompt_tokens
    for name in ("prompt_tokens", "cached_tokens", "computed_tokens"):
        total = sum(getattr(c.usage, name) for c in result.candidates)
        assert getattr(result.usage, name) == total


@pytest.mark.parametrize("name", ["likelihood", "label"])
@given(data=st.data())
async def test_a_mutated_stream_is_right_or_an_error(name: str, data: Any) -> None:
    text = (CONTRACT / f"stream_{name}.ndjson").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["set", "drop", "move", "repeat", "remove"]))
        place = data.draw(st.integers(0, max(len(lines) - 1, 0)))
        if not lines:
            break
        if kind == "drop":
            lines.pop(place)
        elif kind == "repeat":
            lines.insert(place, lines[place])
        elif kind == "move":
            lines.insert(data.draw(st.integers(0, len(lines) - 1)), lines.pop(place))
        else:
            lines = json.loads(json.dumps(lines))
            *way, last = data.draw(st.sampled_from(paths(lines)))
            target: Any = lines
            for key in way:
                target = target[key]
            if kind == "remove":
                del target[last]
            else:
                target[last] = data.draw(ODD)
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    try:
        result = await score(
            content, ["Oslo", "Rome"], scoring=name, group_id="g-contract"
        )
    except (InvalidResponseError, StreamBrokenError, PartialGroupError):
        return
    right(result, ["Oslo", "Rome"])


@given(st.binary(max_size=200))
@example(b"\xff\n")
async def test_any_bytes_are_an_error(content: bytes) -> None:
    with pytest.raises((InvalidResponseError, StreamBrokenError)):
        await score(content, ["Oslo"])
