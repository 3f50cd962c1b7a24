"""Retries: tenacity, configured by a `RetryPolicy`, resends the missing branches.

The policy's attempts are the group's budget, whatever fails; finished branches are
kept and never sent twice. The caller receives a start for each request, each branch
once, and one end.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TypeVar

import anyio
import tenacity

from radixflow_sdk._config import RetryPolicy
from radixflow_sdk._events import RequestEnded, RequestSent
from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    BranchText,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
)
from radixflow_sdk._plan import new_request_id
from radixflow_sdk._results import GroupUsage, Usage, sum_usage
from radixflow_sdk._transport._base import Emit, Transport
from radixflow_sdk.exceptions import (
    APIError,
    APIStatusError,
    BranchError,
    RadixFlowError,
)

T = TypeVar("T")

logger = logging.getLogger("radixflow")


class RetryingTransport:
    """Retries the requests of its inner transport.

    Args:
        inner: Sends each request.
        policy: Number of attempts, and the waits between them.
        emit: Called when a request is sent and when it ends.
        sleep: Waits that many seconds; replaced in tests.
        uniform: Draws from [0, 1).
    """

    def __init__(
        self,
        inner: Transport,
        policy: RetryPolicy,
        *,
        emit: Emit = lambda event: None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._policy = policy
        self._emit = emit
        self._sleep = sleep
        self._uniform = uniform

    async def query(self, query: Callable[[Transport], Awaitable[T]]) -> T:
        """Request something other than a group, such as the served models.

        Raises:
            APIError: The last attempt failed, or one failed without being retryable.
        """
        async for attempt in self._attempts("-"):
            with attempt:
                return await query(self._inner)
        raise AssertionError("tenacity raises when the attempts are used up")

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send a group, and resend its missing branches.

        Raises:
            APIError: The last attempt failed, or one failed without being retryable.
        """
        ledger = _Ledger(request)
        requests = ledger.requests()
        attempts = self._attempts(request.group_id)
        try:
            async for attempt in attempts:
                sent = next(requests)
                number = attempt.retry_state.attempt_number
                with attempt, self._reported(sent, number, ledger):
                    try:
                        async with aclosing(self._inner.stream(sent)) as events:
                            async for event in events:
                                if ledger.add(event):
                                    yield event
                    except APIError as error:
                        # An answer that is cut after its last branch is complete.
                        if ledger.missing or not error.retryable:
                            raise
                    ledger.check()
        except BranchError:
            # No attempt is left: the last failures are final.
            logger.info("group %s: retries are used up", request.group_id)
        finally:
            # tenacity's object and its call state reference each other, which keeps the
            # whole group alive until the garbage collector runs and stalls the event
            # loop. Empty the object to break the cycle.
            vars(attempts).clear()
        for event in ledger.end():
            yield event

    @contextmanager
    def _reported(
        self, request: GroupRequest, attempt: int, ledger: _Ledger
    ) -> Iterator[None]:
        """Emit the events of a request: sent, and ended."""
        began = anyio.current_time()
        failed: BaseException | None = None
        self._emit(
            RequestSent(
                group_id=request.group_id,
                request_id=request.request_id,
                session_id=request.session_id,
                attempt=attempt,
                branches=len(request.branches),
            )
        )
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            self._emit(
                RequestEnded(
                    group_id=request.group_id,
                    request_id=request.request_id,
                    attempt=attempt,
                    elapsed=anyio.current_time() - began,
                    error=failed,
                    backlog=ledger.backlog,
                )
            )

    def _attempts(self, name: str) -> tenacity.AsyncRetrying:
        def log(state: tenacity.RetryCallState) -> None:
            logger.info(
                "group %s: attempt %d failed with %s, next in %.2f s",
                name,
                state.attempt_number,
                type(_error_of(state)).__name__,
                state.upcoming_sleep,
            )

        return tenacity.AsyncRetrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(self._policy.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(_is_retryable),
            before_sleep=log,
            reraise=True,
        )

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error, policy = _error_of(state), self._policy
        if isinstance(error, APIStatusError) and error.retry_after is not None:
            return min(error.retry_after, policy.retry_after_maximum)
        # Doubling past 2**60 adds nothing and would overflow a float.
        doubled = policy.initial * 2.0 ** min(state.attempt_number - 1, 60)
        return self._uniform() * min(policy.maximum, doubled)


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, RadixFlowError) and error.retryable


class _Ledger:
    """The missing branches of one group, and the usage of its requests so far.

    Attributes:
        missing: Branches without a final answer, by index.
        backlog: What the last answer reported.
    """

    def __init__(self, request: GroupRequest) -> None:
        self._request = request
        self.missing = {branch.index: branch for branch in request.branches}
        self.backlog: float | None = None
        self._retryable: dict[int, BranchFailed] = {}
        self._requests: list[GroupUsage] = []
        self._branches: list[Usage] = []  # of a request that has not completed

    def requests(self) -> Iterator[GroupRequest]:
        """The group, then its missing branches, each time under a new request id."""
        request = self._request
        while True:
            self._retryable = {}
            self.backlog = None
            yield replace(request, branches=tuple(self.missing.values()))
            self._close_request()
            request = replace(request, request_id=new_request_id())

    def add(self, event: BranchEvent) -> bool:
        """Record one event; return whether it is final and goes to the caller."""
        match event:
            case GroupCompleted():
                self._requests.append(event.usage)
                self._branches = []
                self.backlog = event.backlog
                return False
            case BranchFailed(retryable=True):
                self._retryable[event.index] = event
                return False
            case BranchResult():
                self._branches.append(event.usage)
            case BranchText(prompt_tokens=tokens):
                usage = Usage(
                    prompt_tokens=tokens, cached_tokens=0, computed_tokens=tokens
                )
                self._branches.append(usage)
        if not isinstance(event, GroupStarted):
            self.missing.pop(event.index, None)
        return True

    def check(self) -> None:
        """Request another attempt where a branch failed retryably.

        Raises:
            BranchError: One did.
        """
        for failed in self._retryable.values():
            raise BranchError(failed.message, code=failed.code, retryable=True)

    def end(self) -> Iterator[BranchEvent]:
        """The failures that no attempt is left for, and the end of the group."""
        yield from self._retryable.values()
        self._close_request()
        rounds = [usage.rounds for usage in self._requests]
        known = [number for number in rounds if number is not None]
        total = sum(known) if len(known) == len(rounds) else None
        yield GroupCompleted(usage=sum_usage(self._requests, rounds=total))

    def _close_request(self) -> None:
        """Count the branches of a request that broke before it reported its usage."""
        if self._branches:
            self._requests.append(sum_usage(self._branches))
            self._branches = []
