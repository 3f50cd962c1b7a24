"""From events to a result: a pure fold, and the result of its last state.

``fold(state, event)`` returns a new state; branch events may arrive in any order. It
refuses contradictions (a branch twice, a branch that was never sent, a group that ends
with a branch missing), so that a faulty server causes an error, not a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, TypeAlias, TypeVar

from radixflow_sdk import _scoring
from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    BranchText,
    GroupCompleted,
    GroupStarted,
    Plan,
)
from radixflow_sdk._results import (
    Candidate,
    GeneratedBranch,
    GenerationResult,
    GroupUsage,
    ScoredCandidate,
    ScoreResult,
    sum_usage,
)
from radixflow_sdk.exceptions import (
    APIError,
    BranchError,
    InvalidResponseError,
    PartialGroupError,
)


class Yielded:
    """Stands for a result that was yielded to the caller and is no longer kept."""


Answer: TypeAlias = BranchResult | BranchText | BranchFailed | Yielded | None

Result = TypeVar("Result", covariant=True)

_FINISHED = (BranchResult, BranchText, Yielded)
_YIELDED = Yielded()
# Answers are kept in chunks: a new state copies one chunk, not all 4,096 answers.
_CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The answers to one group so far.

    Attributes:
        plan: The call.
        unconditional: For each branch its log-likelihood after the plan's unconditional
            context; empty where the plan has none.
        chunks: `answers` in chunks of equal length.
        started: The group's first event, once it has arrived.
        completed: The group's last event, once it has arrived.
    """

    plan: Plan
    chunks: tuple[tuple[Answer, ...], ...]
    unconditional: tuple[float, ...] = ()
    started: GroupStarted | None = None
    completed: GroupCompleted | None = None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """For each branch of the plan its result, its failure, or None."""
        return tuple(chain.from_iterable(self.chunks))

    @property
    def finished(self) -> int:
        """Number of branches with a result."""
        return sum(isinstance(a, _FINISHED) for a in self.answers)


def begin(plan: Plan, *, unconditional: Sequence[float] = ()) -> GroupState:
    """The state before the first event."""
    blank: tuple[Answer, ...] = (None,) * len(plan.request.branches)
    chunks = tuple(blank[at : at + _CHUNK] for at in range(0, len(blank), _CHUNK))
    return GroupState(plan=plan, chunks=chunks, unconditional=tuple(unconditional))


def fold(state: GroupState, event: BranchEvent) -> GroupState:
    """The state after one more event.

    Raises:
        InvalidResponseError: The event contradicts the plan or an earlier event.
    """
    if isinstance(event, GroupStarted):
        return replace(state, started=event)
    if isinstance(event, GroupCompleted):
        missing = [i for i, answer in enumerate(state.answers) if answer is None]
        if missing:
            raise _wrong(state, f"ended the group without branch {missing[0]}")
        return replace(state, completed=event)
    other = BranchText if state.plan.request.sampling is None else BranchResult
    if isinstance(event, other):
        raise _wrong(state, "answered with text for scores, or with scores for text")
    if not 0 <= event.index < len(state.plan.request.branches):
        raise _wrong(state, f"answered branch {event.index}, which was never sent")
    number, place = divmod(event.index, _CHUNK)
    if state.chunks[number][place] is not None:
        raise _wrong(state, f"answered branch {event.index} twice")
    return _with_answer(state, event.index, event)


def forget(state: GroupState, index: int) -> GroupState:
    """The state without a branch's result, once its candidates have been yielded."""
    return _with_answer(state, index, _YIELDED)


def _with_answer(state: GroupState, index: int, answer: Answer) -> GroupState:
    number, place = divmod(index, _CHUNK)
    chunks, answers = list(state.chunks), list(state.chunks[number])
    answers[place] = answer
    chunks[number] = tuple(answers)
    return replace(state, chunks=tuple(chunks))


def _wrong(state: GroupState, what: str) -> InvalidResponseError:
    return InvalidResponseError(
        f"The server {what}; report this to its operator.",
        request_id=state.started.request_id if state.started else None,
        group_id=state.plan.request.group_id,
    )


def candidates_of(
    state: GroupState, result: BranchResult
) -> tuple[ScoredCandidate, ...]:
    """The candidates that one branch scores: several where options are equal."""
    first, *_ = members = state.plan.members[result.index]
    return tuple(
        _candidate(state, index, result, duplicate_of=None if index == first else first)
        for index in members
    )


class Finish(Protocol[Result]):
    """`finish`, `finish_stream` or `finish_texts`."""

    def __call__(
        self,
        state: GroupState,
        *,
        elapsed: float,
        cause: APIError | None = None,
        keep_partial: bool = False,
    ) -> Result:
        """The result."""
        ...


def finish(
    state: GroupState,
    *,
    elapsed: float,
    cause: APIError | None = None,
    keep_partial: bool = False,
) -> ScoreResult:
    """The ranked result.

    Args:
        state: The group's last state.
        elapsed: Seconds since the call.
        cause: The error that ended the group early, if any.
        keep_partial: Whether to return the finished branches without the others.

    Raises:
        PartialGroupError: A branch failed.
        APIError: ``cause``, where no branch has finished.
        InvalidResponseError: The group has not ended, and there is no ``cause``.
    """
    started, failures = _close(state, cause, keep_partial=keep_partial)
    return ScoreResult(
        candidates=_ranked(_finished(state)),
        failures=failures,
        usage=_usage(state),
        group_id=started.group_id,
        request_id=started.request_id,
        model=started.model,
        document_tokens=started.document_tokens,
        shared_tokens=started.shared_tokens,
        elapsed=elapsed,
        normalize=state.plan.normalize,
        route=started.route,
    )


def finish_stream(
    state: GroupState,
    *,
    elapsed: float,
    cause: APIError | None = None,
    keep_partial: bool = False,
) -> None:
    """`finish` for a group whose candidates have been yielded."""
    _close(state, cause, keep_partial=keep_partial)


def finish_texts(
    state: GroupState,
    *,
    elapsed: float,
    cause: APIError | None = None,
    keep_partial: bool = False,
) -> GenerationResult:
    """`finish` for generated text."""
    started, failures = _close(state, cause, keep_partial=keep_partial)
    branches = _texts(state)
    return GenerationResult(
        branches=branches,
        group_id=started.group_id,
        request_id=started.request_id,
        model=started.model,
        shared_tokens=started.shared_tokens,
        prompt_tokens=sum(branch.prompt_tokens for branch in branches),
        generated_tokens=sum(branch.generated_tokens for branch in branches),
        elapsed=elapsed,
        failures=failures,
    )


def _close(
    state: GroupState, cause: APIError | None, *, keep_partial: bool
) -> tuple[GroupStarted, tuple[BranchError, ...]]:
    """The group's first event and its failures, where there is a result."""
    finished = state.finished
    if cause is not None and not finished:
        raise cause
    if state.started is None or (state.completed is None and cause is None):
        raise _wrong(state, "ended the answer before the group")
    if cause is None and finished == len(state.plan.request.branches):
        return state.started, ()
    error = partial(state, cause)
    if not (keep_partial and finished and error.failures):
        raise error from cause
    return state.started, error.failures


def _usage(state: GroupState) -> GroupUsage:
    """The group's usage, summed over its branches where the server reported none."""
    if state.completed is not None:
        return state.completed.usage
    return sum_usage([a.usage for a in state.answers if isinstance(a, BranchResult)])


def partial(state: GroupState, cause: APIError | None = None) -> PartialGroupError:
    """The error that lists the failures and keeps the finished branches."""
    failures = tuple(
        _failure(index, answer, cause)
        for index, answer in _by_option(state)
        if not isinstance(answer, _FINISHED)
    )
    request_id = cause.request_id if cause else None
    if request_id is None and state.started is not None:
        request_id = state.started.request_id
    scored = state.plan.request.sampling is None
    named, kept_in = ("options", "candidates") if scored else ("branches", "branches")
    first = f"{named}[{failures[0].index}]: {failures[0]}" if failures else str(cause)
    kept = any(
        isinstance(answer, BranchResult | BranchText) for answer in state.answers
    )
    where = f"are in `{kept_in}` of this error" if kept else "have been yielded"
    return PartialGroupError(
        f"{len(failures)} of {len(state.plan.options)} {kept_in} have no "
        f"{'score' if scored else 'text'} ({first}); the others {where}.",
        candidates=_finished(state),
        branches=_texts(state),
        failures=failures,
        request_id=request_id,
        group_id=state.plan.request.group_id,
        retryable=all(failure.retryable for failure in failures)
        and (cause is None or cause.retryable),
    )


def _failure(index: int, answer: Answer, cause: APIError | None) -> BranchError:
    if isinstance(answer, BranchFailed):
        return BranchError(
            f"the server answered {answer.code}: {answer.message}",
            index=index,
            code=answer.code,
            retryable=answer.retryable,
            request_id=answer.request_id,
        )
    return BranchError(
        f"not answered: {cause}" if cause else "not answered",
        index=index,
        code="not_answered",
        retryable=cause.retryable if cause else False,
    )


def _by_option(state: GroupState) -> list[tuple[int, Answer]]:
    pairs = zip(state.plan.members, state.answers, strict=True)
    found = [(index, answer) for members, answer in pairs for index in members]
    return sorted(found, key=lambda pair: pair[0])


def _finished(state: GroupState) -> tuple[ScoredCandidate, ...]:
    results = [answer for answer in state.answers if isinstance(answer, BranchResult)]
    found = [c for result in results for c in candidates_of(state, result)]
    return tuple(sorted(found, key=lambda candidate: candidate.index))


def _texts(state: GroupState) -> tuple[GeneratedBranch, ...]:
    given = [each if isinstance(each, str) else None for each in state.plan.options]
    return tuple(
        GeneratedBranch(
            index=index,
            branch=given[index],
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            generated_tokens=answer.generated_tokens,
            request_id=answer.request_id,
        )
        for index, answer in _by_option(state)
        if isinstance(answer, BranchText)
    )


def _candidate(
    state: GroupState, index: int, result: BranchResult, *, duplicate_of: int | None
) -> ScoredCandidate:
    option, known = state.plan.options[index], state.unconditional
    scores = _scoring.every_score(
        result.tokens,
        result.labels,
        option=option,
        unconditional=known[result.index] if known else None,
    )
    return ScoredCandidate(
        index=index,
        text=option if isinstance(option, str) else None,
        score=scores[state.plan.normalize],
        scores=scores,
        tokens=result.tokens,
        labels=result.labels,
        usage=result.usage,
        duplicate_of=duplicate_of,
        request_id=result.request_id,
    )


def _ranked(candidates: Sequence[ScoredCandidate]) -> tuple[Candidate, ...]:
    return tuple(
        _in_ranking(candidates[place], probability=probability, tied=tied)
        for place, probability, tied in _scoring.rank([c.score for c in candidates])
    )


def _in_ranking(one: ScoredCandidate, *, probability: float, tied: bool) -> Candidate:
    return Candidate(
        index=one.index,
        text=one.text,
        score=one.score,
        scores=one.scores,
        tokens=one.tokens,
        labels=one.labels,
        usage=one.usage,
        duplicate_of=one.duplicate_of,
        request_id=one.request_id,
        probability=probability,
        tied=tied,
    )
