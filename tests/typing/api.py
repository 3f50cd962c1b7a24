"""The public types as a user's type checker sees them: mypy reads, nothing runs."""

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, assert_type

from radixflow_sdk import (
    Candidate,
    GeneratedBranch,
    GenerationRequest,
    GenerationResult,
    GroupUsage,
    Outcome,
    RadixFlow,
    RadixFlowClient,
    RetryPolicy,
    ScoredCandidate,
    ScoreRequest,
    ScoreResult,
    Template,
    Timeouts,
    TokenScore,
    Transport,
)
from radixflow_sdk.testing import FakeTransport


async def stream_of(request: ScoreRequest) -> AsyncGenerator[ScoreRequest, None]:
    yield request


async def asynchronous() -> None:
    async with RadixFlowClient(
        "http://host", api_key="k", timeout=Timeouts(total=5), retry=RetryPolicy()
    ) as client:
        assert_type(client, RadixFlowClient)
        assert_type(await client.models(), tuple[str, ...])
        assert_type(await client.stats(), Mapping[str, Any])
        result = await client.score_candidates("d", ["a", [1, 2]], question="q")
        assert_type(result, ScoreResult)
        assert_type(result.best, Candidate)
        assert_type(result.best.probability, float)
        assert_type(result.best.text, str | None)
        assert_type(result.best.tokens, tuple[TokenScore, ...])
        assert_type(result.usage, GroupUsage)
        stream = client.stream_candidates([1, 2], ("a",), scoring="label")
        assert_type(stream, AsyncGenerator[ScoredCandidate, None])
        chat = [{"role": "user", "content": "d"}]
        await client.score_candidates(chat, ["a"], template=Template(before_option=""))
        await client.score_candidates(["system", "d"], ["a"])
        await client.generate_branches([[1], [2, 3]], ["a"], max_tokens=1)
        request = ScoreRequest(document="d", options=["a"], partial="return")
        assert_type(await client.run(request), ScoreResult)
        written = await client.generate_branches("d", ["a", [1]], max_tokens=4)
        assert_type(written, GenerationResult)
        assert_type(written.branches, tuple[GeneratedBranch, ...])
        async with client.score_many([request], ordered=True) as outcomes:
            async for outcome in outcomes:
                assert_type(outcome, Outcome[ScoreRequest, ScoreResult])
                assert_type(outcome.unwrap(), ScoreResult)
        gathered = await client.score_all(stream_of(request))
        assert_type(gathered, tuple[Outcome[ScoreRequest, ScoreResult], ...])
        more = GenerationRequest(document="d", branches=["a"], max_tokens=4)
        assert_type(await client.run(more), GenerationResult)
        async with client.generate_many([more]) as texts:
            async for text in texts:
                assert_type(text, Outcome[GenerationRequest, GenerationResult])
                assert_type(text.unwrap(), GenerationResult)
        client.generate_many([request])  # type: ignore[list-item]
        assert_type(client.with_options(model="m"), RadixFlowClient)
        client.with_options(models="m")  # type: ignore[call-arg]
        client.score_many([request], errors="keep")  # type: ignore[arg-type]
        await client.score_candidates("d", ["a"], scoring="rank")  # type: ignore[arg-type]
        await client.score_candidates("d", [1.5])  # type: ignore[list-item]
        await client.score_candidates("d", ["a"], "q")  # type: ignore[call-arg]


def blocking() -> None:
    with RadixFlow("http://host", max_connections=2, timeout=1.0) as client:
        assert_type(client, RadixFlow)
        assert_type(client.score_candidates("d", ["a"], normalize="char"), ScoreResult)
        stream = client.stream_candidates("d", ["a"])
        assert_type(stream, Generator[ScoredCandidate, None, None])
        many = client.score_many([ScoreRequest(document="d", options=["a"])])
        assert_type(many, Generator[Outcome[ScoreRequest, ScoreResult], None, None])
        more = GenerationRequest(document="d", branches=["a"], max_tokens=4)
        assert_type(client.run(more), GenerationResult)
        for text in client.generate_many([more]):
            assert_type(text.unwrap(), GenerationResult)
        assert_type(client.with_options(timeout=1.0), RadixFlow)
        client.score_candidates("d", ["a"], normalise="char")  # type: ignore[call-arg]
    RadixFlow(url="http://host")  # type: ignore[call-arg]


def transports(fake: FakeTransport) -> Transport:
    return fake
