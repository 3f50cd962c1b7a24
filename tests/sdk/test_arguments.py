"""Whatever is given as an argument: a typed error or an answer, and no hang."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixflow_sdk import (
    GenerationResult,
    LetterResult,
    Outcome,
    RadixFlowClient,
    RadixFlowError,
    RetryPolicy,
    ScoredCandidate,
    ScoreRequest,
    ScoreResult,
    Template,
    Timeouts,
)
from radixflow_sdk.testing import FakeTransport


class Odd:
    """No value that anybody would give."""

    def __repr__(self) -> str:
        return "Odd()"


# Mostly the kinds that arguments have, and all that can be wrong with them.
TEXTS = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(
    ["", "\ud800", "a\x00b", "é", "yes", " ", "x" * 300, "sum", "pmi", "char", "label"]
)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, -1, True, 2**63, 10**400, math.nan, math.inf, 1e-300, 0.05])
)
ATOMS = st.none() | TEXTS | NUMBERS | st.binary(max_size=3) | st.builds(Odd)
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "content", "name"]) | ATOMS, ATOMS, max_size=3
)
ANY = ATOMS | st.recursive(
    ATOMS | MESSAGES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.builds(lambda value: {value: 0}.keys(), ATOMS)
        | st.builds(lambda: range(3))
    ),
    max_leaves=8,
)
# One argument at a time is wild, or all of them: both find other things.
GOOD: dict[str, Any] = {
    "document": "d",
    "options": ["Oslo", "Rome"],
    "question": "Where?",
    "scoring": "likelihood",
    "normalize": "sum",
    "template": None,
    "labels": None,
    "unconditional": None,
    "timeout": 5.0,
    "group_id": "g",
    "cache_salt": "s",
    "partial": "raise",
}
CHOICES = {
    "scoring": st.sampled_from(["likelihood", "label"]),
    "normalize": st.sampled_from(["sum", "mean", "char", "byte", "pmi", "label"]),
    "partial": st.sampled_from(["raise", "return"]),
    "labels": st.lists(st.sampled_from([" yes", " no", 1, 2]), max_size=3),
    "template": st.builds(Template),
}


@st.composite
def wild(draw: st.DrawFn, good: dict[str, Any]) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(good)), min_size=1))
    changed = {
        name: draw(CHOICES[name] | ANY if name in CHOICES else ANY) for name in names
    }
    return {**good, **changed}


FUZZ = settings(
    max_examples=250, suppress_health_check=[HealthCheck.too_slow], deadline=None
)


def ask(call: Callable[[RadixFlowClient], Any]) -> Any:
    """What comes of a call: an answer, or one of our errors."""

    async def run() -> Any:
        with anyio.fail_after(10):  # a hang ends in a TimeoutError, which is not ours
            async with RadixFlowClient(
                transport=FakeTransport(), model="m", retry=RetryPolicy(initial=0.0)
            ) as client:
                return await call(client)

    try:
        return anyio.run(run)
    except RadixFlowError as error:
        told = error
    assert 0 < len(str(told)) < 1000
    return told


def is_ranking(result: Any, options: Any) -> bool:
    return (
        isinstance(result, ScoreResult)
        and sorted(c.index for c in result.candidates) == list(range(len(options)))
        and math.isclose(sum(c.probability for c in result.candidates), 1.0)
    )


@FUZZ
@given(wild(GOOD))
def test_score_candidates(arguments: dict[str, Any]) -> None:
    given = dict(arguments)
    document, options = given.pop("document"), given.pop("options")
    result = ask(lambda client: client.score_candidates(document, options, **given))
    assert isinstance(result, RadixFlowError) or is_ranking(result, options)


@FUZZ
@given(wild(GOOD))
def test_stream_candidates(arguments: dict[str, Any]) -> None:
    given = dict(arguments)
    document, options = given.pop("document"), given.pop("options")
    given.pop("partial")

    async def collect(client: RadixFlowClient) -> list[ScoredCandidate]:
        stream = client.stream_candidates(document, options, **given)
        return [candidate async for candidate in stream]

    result = ask(collect)
    assert isinstance(result, RadixFlowError) or len(result) == len(options)


@FUZZ
@given(st.lists(wild(GOOD).map(lambda all_: ScoreRequest(**all_)) | ANY, max_size=3))
def test_the_requests_of_score_many(requests: list[Any]) -> None:
    result = ask(lambda client: client.score_all(requests, concurrency=2))
    if isinstance(result, RadixFlowError):
        return
    assert [outcome.index for outcome in result] == list(range(len(requests)))
    for outcome in result:
        assert isinstance(outcome, Outcome)
        assert (outcome.error is None) is is_ranking(
            outcome.result, getattr(outcome.request, "options", ())
        )


@FUZZ
@given(
    wild(
        {
            "requests": [ScoreRequest(document="d", options=["a"])],
            "concurrency": 2,
            "ordered": True,
            "errors": "return",
            "progress": None,
        }
    )
)
def test_score_many(arguments: dict[str, Any]) -> None:
    given = dict(arguments)
    requests = given.pop("requests")
    if isinstance(given["concurrency"], int):
        given["concurrency"] = min(given["concurrency"], 10)

    async def collect(client: RadixFlowClient) -> list[Outcome]:
        async with client.score_many(requests, **given) as outcomes:
            return [outcome async for outcome in outcomes]

    result = ask(collect)
    assert isinstance(result, RadixFlowError | list)


LETTERS = {k: GOOD[k] for k in ("document", "options", "question", "timeout")}


@FUZZ
@given(wild({**LETTERS, "rotate": True, "group_id": "g", "cache_salt": "s"}))
def test_score_letters(arguments: dict[str, Any]) -> None:
    given = dict(arguments)
    document, options = given.pop("document"), given.pop("options")
    result = ask(lambda client: client.score_letters(document, options, **given))
    assert isinstance(result, RadixFlowError | LetterResult)


@FUZZ
@given(
    wild(
        {
            "document": "d",
            "branches": ["a", "b"],
            "max_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["\n"],
            "seed": 1,
            "timeout": 5.0,
            "group_id": "g",
            "cache_salt": "s",
            "partial": "raise",
        }
    )
)
def test_generate_branches(arguments: dict[str, Any]) -> None:
    given = dict(arguments)
    document, branches = given.pop("document"), given.pop("branches")
    result = ask(lambda client: client.generate_branches(document, branches, **given))
    if not isinstance(result, RadixFlowError):
        assert isinstance(result, GenerationResult)
        assert len(result.branches) == len(branches)


@FUZZ
@given(
    wild(
        {
            "model": "m",
            "cache_salt": "s",
            "timeout": 5.0,
            "retry": RetryPolicy(),
            "extra_headers": {"X-A": "b"},
            "extra_body": {"priority": 1},
            "on_event": None,
            "on_response": None,
            "tracing": False,
        }
    )
)
def test_with_options(arguments: dict[str, Any]) -> None:
    async def call(client: RadixFlowClient) -> ScoreResult:
        view = client.with_options(**arguments)
        repr(view)
        return await view.score_candidates("d", ["a"])

    assert isinstance(ask(call), ScoreResult | RadixFlowError)


@FUZZ
@given(
    wild(
        {
            "base_url": "http://x",
            "api_key": "k",
            "model": "m",
            "timeout": 5.0,
            "retry": RetryPolicy(),
            "max_connections": 2,
            "http_client": None,
            "transport": None,
            "cache_salt": "s",
            "route": "auto",
        }
    )
)
def test_the_client(arguments: dict[str, Any]) -> None:
    with contextlib.suppress(RadixFlowError):
        repr(RadixFlowClient(**arguments))


@FUZZ
@given(st.dictionaries(st.sampled_from(["connect", "read", "write", "total"]), ANY))
def test_timeouts_and_retries(arguments: dict[str, Any]) -> None:
    for kind, names in (
        (Timeouts, ("connect", "read", "write", "total")),
        (RetryPolicy, ("attempts", "initial", "maximum", "retry_after_maximum")),
        (Template, ("before_question", "after_question", "before_option", "labels")),
    ):
        values = dict(zip(names, arguments.values(), strict=False))
        with contextlib.suppress(RadixFlowError):
            kind(**values)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("1e400")])
def test_numbers_beyond_a_float(value: float) -> None:
    for name in ("timeout", "max_connections"):
        with pytest.raises(RadixFlowError):
            RadixFlowClient(transport=FakeTransport(), **{name: value})
