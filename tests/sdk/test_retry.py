"""When a group is sent again: waits, in order, without a clock."""

import math
from collections.abc import Awaitable

import pytest

from radixflow_sdk import APIConnectionError, BranchError, RateLimitError, RetryPolicy
from radixflow_sdk._transport import RetryingTransport, Transport
from radixflow_sdk.exceptions import RadixFlowError
from radixflow_sdk.testing import FakeTransport
from tests.sdk.wire import plan

pytestmark = pytest.mark.anyio


async def waits(
    policy: RetryPolicy, *errors: RadixFlowError, uniform: float = 0.5
) -> list[float]:
    """The waits of one group whose requests fail with ``errors`` first."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    transport = RetryingTransport(
        FakeTransport(errors=errors), policy, sleep=sleep, uniform=lambda: uniform
    )
    assert [event async for event in transport.stream(plan().request)]
    return slept


def refused() -> APIConnectionError:
    return APIConnectionError("refused")


async def test_full_jitter_doubles_up_to_the_maximum() -> None:
    policy = RetryPolicy(attempts=6, initial=0.5, maximum=3.0)
    errors = [refused() for _ in range(5)]
    assert await waits(policy, *errors) == [0.25, 0.5, 1.0, 1.5, 1.5]


async def test_full_jitter_reaches_down_to_nothing() -> None:
    assert await waits(RetryPolicy(), refused(), refused(), uniform=0.0) == [0.0, 0.0]


async def test_retry_after_is_honoured_and_capped() -> None:
    policy = RetryPolicy(attempts=4, retry_after_maximum=30.0)
    asked = [
        RateLimitError("slow", retry_after=seconds) for seconds in (7.0, 0.0, math.inf)
    ]
    assert await waits(policy, *asked) == [7.0, 0.0, 30.0]


async def test_many_attempts_do_not_overflow() -> None:
    policy = RetryPolicy(attempts=1200, initial=1.0, maximum=2.0)
    slept = await waits(policy, *[refused() for _ in range(1199)])
    assert set(slept[1:]) == {1.0}


async def test_no_retry_with_one_attempt() -> None:
    with pytest.raises(APIConnectionError):
        await waits(RetryPolicy(attempts=1), refused())


async def test_the_models_are_asked_for_again_too() -> None:
    class Shy(FakeTransport):
        asked = 0

        async def models(self) -> tuple[str, ...]:
            self.asked += 1
            if self.asked < 3:
                raise refused()
            return ("m",)

    def models(transport: Transport) -> Awaitable[tuple[str, ...]]:
        return transport.models()

    policy = RetryPolicy(attempts=3, initial=0.0)
    assert await RetryingTransport(Shy(), policy).query(models) == ("m",)
    with pytest.raises(APIConnectionError):
        await RetryingTransport(Shy(), RetryPolicy(attempts=1)).query(models)


async def test_only_the_failing_branch_is_sent_again() -> None:
    fake = FakeTransport({"Rome": BranchError("x", code="aborted", retryable=True)})
    transport = RetryingTransport(fake, RetryPolicy(attempts=3, initial=0.0))
    events = [event async for event in transport.stream(plan().request)]
    sent = [[branch.index for branch in request.branches] for request in fake.requests]
    assert sent == [[0, 1], [1], [1]]
    assert len({request.request_id for request in fake.requests}) == 3
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["GroupStarted", "BranchResult"] + ["GroupStarted"] * 2 + [
        "BranchFailed",
        "GroupCompleted",
    ]
