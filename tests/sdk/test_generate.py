"""`generate_branches`: many branches of one document that go on."""

import json
import math
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import (
    APITimeoutError,
    GenerationResult,
    InvalidInputError,
    InvalidRequestError,
    InvalidResponseError,
    PartialGroupError,
    RadixFlow,
    RadixFlowClient,
    RetryPolicy,
    StreamBrokenError,
)
from radixflow_sdk._transport import _generate
from radixflow_sdk.testing import FakeServer, FakeTransport, Fault
from tests.sdk.wire import Chunks, Server, client

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=3, initial=0.0)
TEXTS: dict[str | tuple[int, ...], str] = {" Who?": " Anna", " Where?": " In Oslo now"}
BRANCHES = [" Who?", " Where?", " Why?"]


async def run(
    server: FakeServer, branches: Any = BRANCHES, **rest: Any
) -> GenerationResult:
    options = {"document": "Anna lives in Oslo.", "max_tokens": 8, **rest}
    async with (
        server.listen() as url,
        RadixFlowClient(url, retry=NOW, cache_salt="s") as radixflow,
    ):
        with anyio.fail_after(10):
            return await radixflow.generate_branches(
                options.pop("document"), branches, **options
            )


async def test_every_branch_has_its_text_in_the_order_given() -> None:
    server = FakeServer(texts=TEXTS)
    result = await run(server, max_tokens=3, stop=["\n"], seed=7, temperature=0.5)
    first, second, third = result.branches
    assert (first.index, first.branch, first.text) == (0, " Who?", " Anna")
    assert (first.finish_reason, first.generated_tokens) == ("stop", 3)
    assert (second.text, second.finish_reason) == (" In Oslo", "length")
    assert third.text.startswith(" words")
    assert result.prompt_tokens == sum(b.prompt_tokens for b in result.branches) == 15
    assert result.generated_tokens == 9
    assert result.model == "fake"
    [request] = server.requests
    body = request.body
    assert body["prompt"] == [f"Anna lives in Oslo.{branch}" for branch in BRANCHES]
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (3, 0.5, 1.0)
    assert (body["stop"], body["seed"], body["cache_salt"]) == (["\n"], 7, "s")
    assert request.headers["x-session-id"].startswith("s-")
    name = request.headers["x-request-id"]
    assert name.startswith(result.request_id)
    assert [b.request_id for b in result.branches] == [
        f"cmpl-{name}-{place}" for place in range(3)
    ]
    assert body["vllm_xargs"] == {
        "radixflow_v": 1,
        "radixflow_group": result.group_id,
        "radixflow_role": "consumer",
        "radixflow_branches": 3,
        "radixflow_boundaries": [4],
    }
    assert result.shared_tokens == 4


async def test_hints_name_the_end_of_each_part() -> None:
    parts = ["Answer in one word.\n\n", "Anna lives in Oslo. ", "Tom lives in Rome."]
    server = FakeServer()
    result = await run(server, document=parts)
    [request] = server.requests
    assert request.body["prompt"] == ["".join(parts) + branch for branch in BRANCHES]
    assert request.body["vllm_xargs"]["radixflow_boundaries"] == [4, 8, 12]
    assert result.shared_tokens == 12
    # One branch has no sibling, but its parts are what other groups begin with.
    await run(server, [" Who?"], document=parts)
    assert server.requests[1].body["vllm_xargs"]["radixflow_boundaries"] == [4, 8, 12]
    await run(server, [" Who?", [9]], document=parts)
    assert server.requests[2].body["vllm_xargs"]["radixflow_boundaries"] == [4, 8, 12]


async def test_hints_name_the_end_of_each_part_of_token_ids() -> None:
    server = FakeServer()
    result = await run(server, [[7], [8]], document=[[1, 2], [3], [4, 5]])
    [request] = server.requests
    assert request.body["prompt"] == [[1, 2, 3, 4, 5, 7], [1, 2, 3, 4, 5, 8]]
    assert request.body["vllm_xargs"]["radixflow_boundaries"] == [2, 3, 5]
    assert result.shared_tokens == 5


async def test_a_part_that_ends_inside_a_token_ends_before_it() -> None:
    server = FakeServer()
    await run(server, document=["Anna lives in Os", "lo. Tom."])
    [request] = server.requests
    assert request.body["vllm_xargs"]["radixflow_boundaries"] == [3, 5]


async def test_token_ids_and_text_are_joined() -> None:
    server = FakeServer()
    result = await run(server, [[7, 8], " b c"], document=[1, 2, 3])
    first, second = server.requests[0].body["prompt"]
    assert first == [1, 2, 3, 7, 8]
    assert (second[:3], len(second)) == ([1, 2, 3], 5)
    assert [branch.branch for branch in result.branches] == [None, " b c"]
    server = FakeServer()
    await run(server, ["a", [9]], document="two words")
    first, second = server.requests[0].body["prompt"]
    assert (len(first), second[2:]) == (3, [9])


async def test_after_a_chat_a_branch_is_the_next_message() -> None:
    server = FakeServer()
    chat = [{"role": "system", "content": "Anna lives in Oslo."}]
    result = await run(server, ["Who?", "Where?"], document=chat)
    first, second = server.requests[0].body["prompt"]
    assert first[:-1] == second[:-1]
    assert result.shared_tokens == len(first) - 1 == 6


async def test_equal_branches_are_written_one_by_one() -> None:
    result = await run(FakeServer(texts=TEXTS), [" Who?"] * 3)
    assert [branch.text for branch in result.branches] == [" Anna"] * 3


async def test_only_what_is_missing_is_sent_again() -> None:
    faults = [Fault(cut_after=1), Fault(status=503), Fault(fail=(1,))]
    server = FakeServer(texts=TEXTS, faults=faults[:1])
    result = await run(server)
    assert len(result.branches) == 3
    assert [len(request.body["prompt"]) for request in server.requests] == [3, 2]
    names = [request.headers["x-request-id"] for request in server.requests]
    assert len(set(names)) == 2
    server = FakeServer(texts=TEXTS, faults=faults[1:])
    assert len((await run(server)).branches) == 3
    assert [len(r.body["prompt"]) for r in server.requests] == [3, 3, 2]


async def test_what_is_in_is_kept() -> None:
    faults = [Fault(cut_after=2), Fault(cut_after=0), Fault(cut_after=0)]
    with pytest.raises(PartialGroupError, match=r"branches\[2\]") as caught:
        await run(FakeServer(texts=TEXTS, faults=faults))
    assert [b.text for b in caught.value.branches] == [" Anna", " In Oslo now"]
    assert isinstance(caught.value.__cause__, StreamBrokenError)
    assert caught.value.candidates == ()
    result = await run(FakeServer(texts=TEXTS, faults=faults), partial="return")
    assert [branch.index for branch in result.branches] == [0, 1]
    assert [failure.index for failure in result.failures] == [2]


async def test_a_refusal_is_not_sent_again() -> None:
    server = FakeServer(faults=[Fault(status=400)])
    with pytest.raises(InvalidRequestError):
        await run(server)
    assert len(server.requests) == 1


async def test_leaving_ends_the_work_on_the_server() -> None:
    server = FakeServer(delay=math.inf)
    async with server.listen() as url, RadixFlowClient(url) as radixflow:
        with anyio.fail_after(10):
            with pytest.raises(APITimeoutError):
                await radixflow.generate_branches("d", ["a"], max_tokens=2, timeout=0.2)
            while server.running:
                await anyio.lowlevel.checkpoint()
    assert server.aborted == 1


async def test_many_branches_go_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    branches = [f" {number}" for number in range(150)]
    result = await run(server, branches)
    assert [len(r.body["prompt"]) for r in server.requests] == [64, 64, 22]
    assert [branch.branch for branch in result.branches] == branches
    monkeypatch.setattr(_generate, "_MAX_SIZE", 50)
    server = FakeServer()
    await run(server)
    assert [len(r.body["prompt"]) for r in server.requests] == [2, 1]


async def test_a_server_that_does_not_tokenize_is_told_no_boundary() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(404)
        return httpx.Response(200, content=sse(*GOOD))

    async with client(answer) as radixflow:
        result = await radixflow.generate_branches("d", ["a", "b"], max_tokens=2)
    assert result.shared_tokens == 0
    assert [branch.text for branch in result.branches] == ["xy", "z"]


# --- the stream, read ---------------------------------------------------------------


def piece(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
    return {"id": "cmpl-1", "choices": [choice], "usage": usage}


def sse(*chunks: Any) -> bytes:
    lines = [b"data: " + json.dumps(chunk).encode() for chunk in chunks]
    return b"\n\n".join([b": ping", *lines, b"data: [DONE]", b""]) + b"\n"


GOOD = (
    piece(0, "x"),
    piece(1, "z", "stop"),
    piece(0, "y", "length"),
    {"choices": [], "usage": {"prompt_tokens": 10}},
)


async def read(content: Any, *, attempts: int = 1) -> GenerationResult:
    server = Server(httpx.Response(200, content=content))
    async with client(server, retry=RetryPolicy(attempts=attempts)) as radixflow:
        return await radixflow.generate_branches([1, 2], [[3], [4]], max_tokens=2)


async def test_a_stream_cut_at_any_byte_is_right_or_broken() -> None:
    whole = sse(*GOOD)
    first, second = (await read(whole)).branches
    assert (first.text, second.text) == ("xy", "z")
    ends = whole.index(b'"length"')
    for cut in range(len(whole)):
        if cut <= ends:
            with pytest.raises((StreamBrokenError, PartialGroupError)):
                await read(whole[:cut])
        else:  # the last branch may be in, and then nothing is lost
            try:
                result = await read(whole[:cut])
            except (StreamBrokenError, PartialGroupError):
                continue
            assert [branch.text for branch in result.branches] == ["xy", "z"]


@given(st.sets(st.integers(0, 400)))
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_pieces_of_a_stream_do_not_matter(cuts: set[int]) -> None:
    whole = sse(*GOOD)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    chunks = [whole[a:b] for a, b in pairwise(edges)]
    result = await read(Chunks(*chunks))
    assert [branch.text for branch in result.branches] == ["xy", "z"]


@pytest.mark.parametrize(
    "chunks",
    [
        [piece(2, "x")],
        [piece(-1, "x")],
        [piece(0, "x", "stop"), piece(0, "y")],
        [{"choices": [{"index": 0}]}],
        [{"choices": None}],
        [["not an object"]],
        [{"choices": [], "usage": {"prompt_tokens": "many"}}],
    ],
    ids=json.dumps,
)
async def test_nonsense_is_a_typed_error(chunks: list[Any]) -> None:
    with pytest.raises((InvalidResponseError, PartialGroupError)) as caught:
        await read(sse(*chunks))
    cause = caught.value.__cause__ or caught.value
    assert isinstance(cause, InvalidResponseError)


async def test_an_error_inside_the_stream_is_told() -> None:
    lines = sse(piece(0, "x"), {"error": {"message": "engine fell over", "code": 500}})
    with pytest.raises(StreamBrokenError, match="engine fell over"):
        await read(lines)


# --- arguments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": "8"}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": math.nan}),
        ("top_p", {"top_p": 0}),
        ("top_p", {"top_p": 1.5}),
        ("stop", {"stop": "\n"}),
        ("stop[1]", {"stop": ["\n", ""]}),
        ("stop", {"stop": ["x"] * 17}),
        ("seed", {"seed": 1.5}),
        ("seed", {"seed": 2**63}),
        ("branches", {"branches": []}),
        ("branches", {"branches": "text"}),
        ("branches", {"branches": ["a"] * 4097}),
        ("branches[0]", {"branches": [""]}),
        (
            "branches[0]",
            {"branches": [[1]], "document": [{"role": "u", "content": "x"}]},
        ),
        ("document", {"document": ""}),
        ("timeout", {"timeout": 0}),
        ("partial", {"partial": "keep"}),
        ("cache_salt", {"cache_salt": ""}),
    ],
    ids=str,
)
async def test_bad_arguments_are_refused(field: str, change: dict[str, Any]) -> None:
    given = {"document": "d", "branches": ["a"], "max_tokens": 2, **change}
    fake = FakeTransport()
    async with RadixFlowClient(transport=fake) as radixflow:
        with pytest.raises(InvalidInputError) as caught:
            await radixflow.generate_branches(
                given.pop("document"), given.pop("branches"), **given
            )
    assert caught.value.field == field
    assert not fake.requests


# --- doubles ------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_without_a_server_and_without_a_loop(anyio_backend: str) -> None:
    with RadixFlow(transport=FakeTransport(texts=TEXTS)) as blocking:
        result = blocking.generate_branches("d", BRANCHES, max_tokens=3)
    assert [branch.text for branch in result.branches][:2] == [" Anna", " In Oslo"]


async def test_a_transport_that_scores_in_place_of_writing_is_caught() -> None:
    class Old(FakeTransport):
        def _text(self, branch: Any, request: Any, sampling: Any) -> Any:
            return self._answer(branch, request)

    async with RadixFlowClient(transport=Old()) as radixflow:
        with pytest.raises(InvalidResponseError, match="scores for text"):
            await radixflow.generate_branches("d", ["a"], max_tokens=2)
