"""Sends again what is missing of a group: tenacity, configured by a `RetryPolicy`.

One policy's attempts are one group's budget, whatever went wrong in between; finished
branches are kept and never sent twice. To its caller a group shows a start for each
request, each branch once, and one end.
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
from radixflow_sdk._results import GroupUsage, Usage
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
    """Retries what its inner transport failed to bring back.

    Args:
        inner: Carries each single request.
        policy: How often, and how patiently.
        emit: Called when a request is sent and when it is over.
        sleep: Waits that many seconds; tests put a clock of their own here.
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

    async def ask(self, question: Callable[[Transport], Awaitable[T]]) -> T:
        """Ask for something other than a group, such as the served models.

        Raises:
            APIError: The server could not be asked within the policy's attempts.
        """
        async for attempt in self._attempts("-"):
            with attempt:
                return await question(self._inner)
        raise AssertionError("tenacity raises when the attempts are used up")

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send a group, and again what is missing of it.

        Raises:
            APIError: The last attempt failed, or one failed in a way that is not worth
                repeating.
        """
        progress = _Progress(request)
        attempts = self._attempts(request.group_id)
        try:
            async for attempt in attempts:
                sent = progress.next_request()
                number = attempt.retry_state.attempt_number
                with attempt, self._reported(sent, number, progress):
                    try:
                        async with aclosing(self._inner.stream(sent)) as events:
                            async for event in events:
                                for new in progress.add(event):
                                    yield new
                    except APIError as error:
                        # Cut behind its last branch, an answer has lost nothing.
                        if progress.missing or not error.retryable:
                            raise
                    progress.check()
        except BranchError:
            # The budget is used up: what failed last is how those branches end.
            logger.info("group %s: retries are used up", request.group_id)
        finally:
            # It and its state hold one another, and all of the group, until the garbage
            # collector comes: a pause of the event loop that grows with the groups.
            vars(attempts).clear()
        for event in progress.end():
            yield event

    @contextmanager
    def _reported(
        self, request: GroupRequest, attempt: int, progress: _Progress
    ) -> Iterator[None]:
        """Tell of a request, and of how it ended."""
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
                    backlog=progress.backlog,
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


class _Progress:
    """What is still missing of one group, and what the group has cost so far.

    Attributes:
        missing: Branches without a final answer, by index.
        backlog: What the server said with the last answer.
    """

    def __init__(self, request: GroupRequest) -> None:
        self._request = request
        self.missing = {branch.index: branch for branch in request.branches}
        self.backlog: float | None = None
        self._held: dict[int, BranchFailed] = {}
        self._spent: list[GroupUsage] = []
        self._open: list[Usage] = []
        self._sent = 0

    def next_request(self) -> GroupRequest:
        """The missing branches, in a request with an id of its own."""
        if self._open:  # the last request broke: its own sums never came
            self._spent.append(_sum_of_branches(self._open))
            self._open = []
        self._held = {}
        self.backlog = None
        self._sent += 1
        return replace(
            self._request,
            branches=tuple(self.missing.values()),
            request_id=self._request.request_id
            if self._sent == 1
            else new_request_id(),
        )

    def add(self, event: BranchEvent) -> Iterator[BranchEvent]:
        """Note one event; yield what can be passed on at once."""
        if isinstance(event, GroupCompleted):
            self._spent.append(event.usage)
            self.backlog = event.backlog
            self._open = []
        elif isinstance(event, BranchFailed) and event.retryable:
            self._held[event.index] = event
        else:
            if isinstance(event, BranchResult):
                self._open.append(event.usage)
            elif isinstance(event, BranchText):
                spent = event.prompt_tokens
                self._open.append(
                    Usage(prompt_tokens=spent, cached_tokens=0, computed_tokens=spent)
                )
            if not isinstance(event, GroupStarted):
                self.missing.pop(event.index, None)
            yield event

    def check(self) -> None:
        """Ask for another attempt where a branch failed retryably.

        Raises:
            BranchError: One did.
        """
        for failed in self._held.values():
            raise BranchError(failed.message, code=failed.code, retryable=True)

    def end(self) -> Iterator[BranchEvent]:
        """The failures that no attempt is left for, and the end of the group."""
        yield from self._held.values()
        if self._open:
            self._spent.append(_sum_of_branches(self._open))
        yield GroupCompleted(usage=_sum_of_groups(self._spent))


def _sum_of_branches(usages: list[Usage]) -> GroupUsage:
    return GroupUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        computed_tokens=sum(usage.computed_tokens for usage in usages),
        rounds=None,
    )


def _sum_of_groups(usages: list[GroupUsage]) -> GroupUsage:
    rounds = [usage.rounds for usage in usages if usage.rounds is not None]
    return GroupUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        computed_tokens=sum(usage.computed_tokens for usage in usages),
        rounds=sum(rounds) if len(rounds) == len(usages) else None,
    )
