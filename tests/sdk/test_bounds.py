"""Answers that would take gigabytes, and what a stream keeps."""

import gzip
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest

from radixflow_sdk import (
    InvalidInputError,
    InvalidResponseError,
    PartialGroupError,
    RadixFlowClient,
    RetryPolicy,
    ServerError,
)
from tests.sdk.wire import (
    GOOD,
    Server,
    answer,
    body,
    client,
    completed,
    ended,
    failed,
    started,
)

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
ONCE = RetryPolicy(attempts=1)
BOMB = gzip.compress(gzip.compress(b"\n" * 2**27))
"""120 MiB in less than a kilobyte."""


async def score(server: Server) -> None:
    async with client(server, retry=ONCE) as radixflow:
        await radixflow.score_candidates("d", ["Oslo", "Rome"], group_id="g")


class Raw(httpx.AsyncByteStream):
    """A body that httpx has not decoded yet."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


def packed(status: int, encoding: str) -> httpx.Response:
    headers = {"content-encoding": encoding}
    return httpx.Response(status, headers=headers, stream=Raw(BOMB))


async def test_no_compression_is_requested() -> None:
    server = Server(httpx.Response(200, content=GOOD))
    await score(server)
    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["gzip, gzip", "GZIP", "deflate", "br", "zstd"])
@pytest.mark.parametrize(
    ("status", "kind"), [(200, InvalidResponseError), (500, ServerError)]
)
async def test_a_compressed_answer_is_never_decompressed(
    status: int, kind: type[Exception], encoding: str
) -> None:
    assert len(BOMB) < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            await score(Server(packed(status, encoding)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**23
    if status == 200:
        assert repr(encoding.lower()) in str(caught.value)


async def test_a_long_error_body_is_not_read_to_its_end() -> None:
    read = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal read
            while True:
                read += 2**14
                yield b"x" * 2**14

    with pytest.raises(ServerError) as caught:
        await score(Server(httpx.Response(500, stream=Endless())))
    assert read <= 2**17
    assert len(str(caught.value)) < 1000


# --- streams ----------------------------------------------------------------------

BRANCHES, TOKENS = 100, 800


class Group(httpx.AsyncByteStream):
    """A group's lines, made as they are read."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        usage = {"prompt_tokens": TOKENS + 8, "cached_tokens": 8}
        usage["computed_tokens"] = TOKENS
        yield body(started(BRANCHES))
        for index in range(BRANCHES):
            yield body(completed(index, *[-1.25] * TOKENS, usage=usage))
        total = {name: value * BRANCHES for name, value in usage.items()}
        yield body(ended(BRANCHES, usage={**total, "rounds": None}))


async def test_a_stream_keeps_no_result_that_it_has_yielded() -> None:
    server = Server(httpx.Response(200, stream=Group()))
    options = [f"option {number}" for number in range(BRANCHES)]
    indexes: list[int] = []
    async with client(server, retry=ONCE) as radixflow:
        stream = radixflow.stream_candidates("d", options, group_id="g")
        tracemalloc.start()
        try:
            async for candidate in stream:
                assert len(candidate.tokens) == TOKENS
                indexes.append(candidate.index)
                if len(indexes) == 10:
                    early = tracemalloc.get_traced_memory()[0]
            late = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert sorted(indexes) == list(range(BRANCHES))
    # A kept result takes more than 64 bytes a token.
    assert late - early < 5 * TOKENS * 64


async def test_the_error_of_a_stream_says_that_the_others_were_yielded() -> None:
    lines = (
        started(),
        completed(0),
        failed(1, retryable=False),
        ended(1, 1),
    )
    async with client(Server(answer(*lines)), retry=ONCE) as radixflow:
        stream = radixflow.stream_candidates("d", ["Oslo", "Rome"], group_id="g")
        assert (await anext(stream)).index == 0
        with pytest.raises(PartialGroupError, match="have been yielded") as caught:
            await anext(stream)
    assert caught.value.candidates == ()
    assert [failure.index for failure in caught.value.failures] == [1]


# --- errors -----------------------------------------------------------------------


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_partial_error_is_retryable_if_all_its_failures_are(
    retryable: bool,
) -> None:
    lines = (started(), completed(0), failed(1, retryable=retryable), ended(1, 1))
    with pytest.raises(PartialGroupError) as caught:
        await score(Server(answer(*lines)))
    assert caught.value.retryable is retryable


async def test_a_cut_group_is_retryable() -> None:
    with pytest.raises(PartialGroupError) as caught:
        await score(Server(answer(started(), completed(0))))
    assert caught.value.retryable


async def test_a_group_with_a_wrong_line_is_not_retryable() -> None:
    lines = (started(), completed(0), completed(1, 7.0))
    with pytest.raises(PartialGroupError) as caught:
        await score(Server(answer(*lines)))
    assert not caught.value.retryable


@pytest.mark.parametrize("urls", ["http://a,", ",http://a", "http://a,,http://b"])
def test_an_empty_url_is_named(monkeypatch: pytest.MonkeyPatch, urls: str) -> None:
    for given in (urls, urls.split(",")):
        with pytest.raises(InvalidInputError, match="empty entry") as caught:
            RadixFlowClient(given)
        assert caught.value.field == "base_url"
    monkeypatch.setenv("RADIXFLOW_BASE_URL", urls)
    with pytest.raises(InvalidInputError, match="empty entry"):
        RadixFlowClient()


@pytest.mark.parametrize("odd", ["\n", "\t", "\r", "\x00", "\x7f", "\u200b", "\u2028"])
def test_a_control_character_in_a_url_is_named(odd: str) -> None:
    with pytest.raises(InvalidInputError, match="control character"):
        RadixFlowClient(f"http://exa{odd}mple.org:8000")
