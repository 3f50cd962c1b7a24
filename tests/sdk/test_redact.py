"""A server that repeats what it was sent: nothing of ours passes a secret on."""

import io
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from radixflow_sdk import (
    GeneratedBranch,
    RadixFlowClient,
    RadixFlowError,
    RawResponse,
    RetryPolicy,
)
from radixflow_sdk._transport._redact import Secrets
from tests.sdk import wire

# With a beginning that none of our own words has, and without the mark for a secret.
KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"),
    min_size=1,
    max_size=200,
).map("s^k~{}".format)


def problem(message: str) -> bytes:
    error = {"code": message, "message": f"no {message} here", "field": message}
    return json.dumps({"error": error}).encode()


def lines(*events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, content=wire.body(*events))


def failing(said: str) -> dict[str, Any]:
    error = {"code": said, "message": said, "retryable": False}
    return {**wire.failed(1, retryable=False), "request_id": said, "error": error}


STARTED = wire.started(request_id="r")
SAYINGS: dict[str, Callable[[str], httpx.Response | Exception]] = {
    "a problem": lambda said: httpx.Response(400, content=problem(said)),
    "a problem that may pass": lambda said: httpx.Response(503, content=problem(said)),
    "a page": lambda said: httpx.Response(502, text=f"<p>{'x' * 280}{said}</p>"),
    "a page that is cut": lambda said: httpx.Response(502, text="x" * 270 + said),
    "a refusal": lambda said: httpx.Response(401, text=said),
    "an id": lambda said: httpx.Response(500, headers={"X-Request-ID": said}),
    "no JSON": lambda said: httpx.Response(200, content=said.encode() + b"\n"),
    "no event": lambda said: httpx.Response(200, json=[said], headers={}),
    "a line that is no event": lambda said: lines({"said": said}),
    "a wrong event": lambda said: lines({**STARTED, "branches": said}),
    "another group": lambda said: lines({**STARTED, "group_id": said}),
    "a failed branch": lambda said: lines(
        STARTED, wire.completed(0), failing(said), wire.ended(1, 1)
    ),
    "ids and names": lambda said: lines(
        {**STARTED, "request_id": said, "model": said},
        wire.completed(0, request_id=said),
        wire.completed(1, request_id=f"{said}-1"),
        wire.ended(),
    ),
    "no HTTP": lambda said: caused(httpx.RemoteProtocolError, said),
    "no HTTP, in bytes": lambda said: httpx.ReadError(f"illegal {said.encode()!r}"),
}


def caused(kind: type[httpx.TransportError], said: str) -> Exception:
    error = kind(f"illegal status line: {bytearray(said.encode())!r}")
    error.__cause__ = ValueError(f"h11 read {said}", said.encode())
    return error


async def everything_shown(
    answer: httpx.Response | Exception, **options: Any
) -> list[str]:
    """What a call leaves behind: its result or error, its events and spans."""
    headers = options.pop("extra_headers", {})
    told: list[Any] = []
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    client = wire.client(
        wire.Server(answer), retry=RetryPolicy(attempts=1), **options
    ).with_options(
        extra_headers=headers,
        on_event=told.append,
        on_response=told.append,
        tracing=provider,
    )
    shown = [repr(client)]
    try:
        call = client.score_candidates("d", ["a", "b"], group_id="g")
        shown.append(repr(await call))
    except RadixFlowError as error:
        shown += texts_of(error)
        for failure in getattr(error, "failures", ()):
            shown += texts_of(failure)
    for event in told:
        shown.append(repr(event))
        if (behind := getattr(event, "error", None)) is not None:
            shown += texts_of(behind)
        if isinstance(event, RawResponse):
            shown.append(str(event.request_id))
    shown += [span.to_json() for span in spans.get_finished_spans()]
    return shown


def texts_of(error: BaseException) -> Iterator[str]:
    yield from traceback.format_exception(error)
    seen: BaseException | None = error
    while seen is not None:
        yield from (str(seen), repr(seen), str(vars(seen)), str(seen.args))
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("saying", SAYINGS)
@settings(max_examples=25)
@given(key=KEYS)
def test_an_api_key_is_not_repeated(saying: str, key: str) -> None:
    shown = anyio.run(_run, SAYINGS[saying](key), {"api_key": key})
    assert not [text for text in shown if key in text]


@pytest.mark.parametrize("saying", SAYINGS)
@pytest.mark.parametrize(
    "header", [{"X-Api-Token": "Token {}"}, {"Cookie": "a=1; s={}"}, {"X-Own": "{}"}]
)
def test_a_header_of_ones_own_is_not_repeated(
    saying: str, header: dict[str, str]
) -> None:
    secret = "s3cr3t-Value/0"
    headers = {name: value.format(secret) for name, value in header.items()}
    shown = anyio.run(_run, SAYINGS[saying](secret), {"extra_headers": headers})
    assert not [text for text in shown if secret in text]


async def _run(answer: Any, options: dict[str, Any]) -> list[str]:
    records = io.StringIO()
    logger, handler = logging.getLogger("radixflow"), logging.StreamHandler(records)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        return [*await everything_shown(answer, **options), records.getvalue()]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_a_list_of_models_is_read_inside_the_wall() -> None:
    async def ask() -> None:
        answer = httpx.Response(200, json={"data": [{"id": 1, "echo": KEY}]})
        http = httpx.AsyncClient(
            transport=httpx.MockTransport(wire.Server(answer)),
            headers={"X-Api-Key": KEY},
        )
        async with RadixFlowClient("http://t", http_client=http) as client:
            await client.score_candidates("d", ["a"])

    with pytest.raises(RadixFlowError) as caught:
        anyio.run(ask)
    assert "list of models" in str(caught.value)
    assert not [text for text in texts_of(caught.value) if KEY in text]


KEY = "sk-very-secret-key"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"no {KEY}.", "no ***."),
        (f"{KEY}{KEY}", "******"),
        (f"no {KEY[:10]}", "no ***"),  # cut off
        (f"no {KEY[:5]}", f"no {KEY[:5]}"),
        (f"{KEY[:9]}{KEY}", "******"),
        ("nothing", "nothing"),
    ],
)
def test_what_is_cut_out(said: str, shown: str) -> None:
    assert Secrets([(b"Authorization", f"Bearer {KEY}".encode())]).redact(said) == shown


def test_what_is_no_secret() -> None:
    headers = [(b"Accept", b"text/plain"), (b"X-Request-ID", b"req-1"), (b"X", b"yes")]
    text = "text/plain req-1 yes"
    assert Secrets(headers).redact(text) == text


@given(secret=KEYS, before=st.text(), after=st.text())
def test_no_surroundings_hide_it(secret: str, before: str, after: str) -> None:
    secrets = Secrets([(b"Authorization", f"Bearer {secret}".encode())])
    said = f"{before}{secret}{after}"
    for text in (said, json.dumps(said), repr(said), repr(json.dumps(said).encode())):
        found = secrets.redact(text)
        assert secret not in found
        assert json.dumps(secret)[1:-1] not in found


def test_a_model_may_write_it() -> None:
    """Results are data: what a model wrote is never changed; what is around it is."""

    async def ask() -> GeneratedBranch:
        choice = {"index": 0, "text": KEY, "finish_reason": f"stop {KEY}"}
        chunk = {"id": KEY, "choices": [choice]}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        server = wire.Server(httpx.Response(200, content=body.encode()))
        client = wire.client(server, api_key=KEY)
        result = await client.generate_branches("d", ["a"], max_tokens=1)
        return result.branches[0]

    branch = anyio.run(ask)
    assert branch.text == KEY
    assert (branch.finish_reason, branch.request_id) == ("stop ***", "***-0")
