"""``POST /v1/branches``: the request and its NDJSON answer (docs/wire.md, version 1).

Everything received is checked for type, range and consistency, so that a faulty server
causes an error and never a wrong number. Unknown events and fields are ignored, as the
wire requires. Leaving the stream closes the answer; the server then aborts the
unfinished branches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from radixflow_sdk._messages import (
    Branch,
    BranchEvent,
    BranchFailed,
    BranchResult,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
    Message,
)
from radixflow_sdk._requests import Label
from radixflow_sdk._results import GroupUsage, LabelScore, TokenScore, Usage
from radixflow_sdk._transport._errors import NOT_VLLM, first_problem
from radixflow_sdk._transport._http import Answer, HTTPSession
from radixflow_sdk.exceptions import InvalidResponseError, StreamBrokenError

WIRE_VERSION = 1

# Some servers spell minus infinity as -9999. Slightly above 0 is rounding.
_ABOVE, _MAX_LOGPROB = -9999.0, 1e-3
_LogProb = Annotated[float, Field(gt=_ABOVE, le=_MAX_LOGPROB, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


def is_log_probability(value: float) -> bool:
    """Whether a number can be one: finite, and at most 0 but for rounding."""
    return _ABOVE < value <= _MAX_LOGPROB


async def stream_branches(
    http: HTTPSession, request: GroupRequest
) -> AsyncGenerator[BranchEvent, None]:
    """Send one request; yield its events as they arrive.

    Raises:
        APIError: The request failed.
    """
    headers = {
        "Accept": "application/x-ndjson",
        "X-Request-ID": request.request_id,
        "X-Session-ID": request.session_id,
        **request.extra_headers,
    }
    async with (
        http.open(
            "POST",
            "/v1/branches",
            headers=headers,
            content=write_request(request),
            group_id=request.group_id,
            on_response=request.on_response,
        ) as answer,
        aclosing(_read_events(answer, request)) as events,
    ):
        async for event in events:
            yield event


async def _read_events(
    answer: Answer, request: GroupRequest
) -> AsyncGenerator[BranchEvent, None]:
    """Events in the wire's order; the last one once the body has ended.

    A body that is read to its end leaves the connection reusable, and the server does
    not mistake the close for a disconnect.
    """
    tally = Tally()
    completed: GroupCompleted | None = None
    async with aclosing(answer.lines()) as lines:
        async for line in lines:
            event = read_event(line, request, tally)
            if isinstance(event, GroupCompleted):
                completed = event
            elif event is not None:
                yield answer.secrets.redact_event(event)
    if completed is None:
        raise StreamBrokenError(
            "The server's answer ended before group.completed; try again."
        )
    yield completed


# --- the request, written -------------------------------------------------------------


def write_request(request: GroupRequest) -> bytes:
    """The body of ``POST /v1/branches``."""
    body = {
        "model": request.model,
        "document": _document(request),
        "question": request.question,
        "branches": [_content(branch.content) for branch in request.branches],
        "scoring": request.scoring,
        "labels": request.labels,
        "group_id": request.group_id,
        "cache_salt": request.cache_salt,
        **request.extra_body,
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _document(request: GroupRequest) -> dict[str, object]:
    document = request.document
    if document and isinstance(document[0], Message):
        return {
            "messages": [
                {"role": message.role, "content": message.content}
                for message in document
                if isinstance(message, Message)
            ]
        }
    key = "text" if isinstance(document, str) else "token_ids"
    parts = {"boundaries": request.boundaries} if request.boundaries else {}
    return {key: document, **parts}


def _content(content: str | tuple[int, ...]) -> dict[str, object]:
    return {"text": content} if isinstance(content, str) else {"token_ids": content}


# --- the answer, parsed ---------------------------------------------------------------


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Started(_Message):
    event: Literal["group.started"]
    v: Literal[1]
    group_id: str
    request_id: str
    model: str
    branches: _Count
    document_tokens: _Count
    shared_tokens: _Count


class _Label(_Message):
    label: str | int
    token_id: _Count
    logprob: _LogProb


class _Usage(_Message):
    prompt_tokens: _Count
    cached_tokens: _Count
    computed_tokens: _Count


class _Completed(_Message):
    event: Literal["branch.completed"]
    index: _Count
    request_id: str
    token_ids: Annotated[list[_Count], Field(min_length=1, fail_fast=True)]
    token_logprobs: Annotated[list[_LogProb], Field(fail_fast=True)]
    token_is_top: Annotated[list[bool], Field(fail_fast=True)] | None = None
    labels: Annotated[list[_Label], Field(fail_fast=True)] | None
    usage: _Usage


class _Error(_Message):
    code: str
    message: str
    retryable: bool


class _Failed(_Message):
    event: Literal["branch.failed"]
    index: _Count
    request_id: str
    error: _Error


class _GroupUsage(_Usage):
    rounds: _Count | None


class _Load(_Message):
    requests: _Count
    rows: Annotated[int, Field(ge=1, lt=2**63)]


class _Ended(_Message):
    event: Literal["group.completed"]
    completed: _Count
    failed: _Count
    usage: _GroupUsage
    load: _Load | None = None


_Event = _Started | _Completed | _Failed | _Ended
_EVENTS: TypeAdapter[_Event] = TypeAdapter(
    Annotated[_Event, Field(discriminator="event")]
)
_KNOWN = ("group.started", "branch.completed", "branch.failed", "group.completed")


class _Model(_Message):
    id: str


class _Models(_Message):
    data: Annotated[list[_Model], Field(min_length=1, fail_fast=True)]


def read_models(body: bytes) -> tuple[str, ...]:
    """Names of the served models.

    Raises:
        InvalidResponseError: The body is not a list of models.
    """
    try:
        return tuple(model.id for model in _Models.model_validate_json(body).data)
    except ValidationError:
        raise InvalidResponseError(
            f"The server answered /v1/models with no list of models; {NOT_VLLM}."
        ) from None


def read_stats(body: bytes) -> Mapping[str, Any]:
    """The server's statistics.

    Raises:
        InvalidResponseError: The body is not an object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _invalid("statistics answer", "not a JSON object")
    return value


@dataclass(slots=True)
class Tally:
    """What one answer has claimed so far, to refuse contradictions.

    Attributes:
        started: Whether ``group.started`` has arrived.
        ended: Whether ``group.completed`` has arrived.
        shared_tokens: Tokens of the prefix that every prompt has.
        completed: Branches with a result.
        failed: Branches that failed.
        usage: Sums over the branches with a result.
        label_ids: Token ids of the labels, the same for every branch.
    """

    started: bool = False
    ended: bool = False
    shared_tokens: int = 0
    completed: int = 0
    failed: int = 0
    usage: Counter[str] = field(default_factory=Counter)
    label_ids: list[int] | None = None

    def add(self, event: _Event) -> None:
        """Count one event.

        Raises:
            InvalidResponseError: It contradicts an earlier one.
        """
        # Exactly the first event is a start, and nothing follows the end.
        if self.ended or self.started is isinstance(event, _Started):
            raise _invalid(event.event, "out of order")
        match event:
            case _Started():
                self.started = True
                self.shared_tokens = event.shared_tokens
            case _Completed():
                self.completed += 1
                self.usage.update(event.usage.model_dump())
                self._check_prompt(event)
                self._check_labels(event)
            case _Failed():
                self.failed += 1
            case _Ended():
                self.ended = True
                self._check_end(event)

    def _check_prompt(self, event: _Completed) -> None:
        prompt = event.usage.prompt_tokens
        scored = 0 if event.labels else len(event.token_ids)
        if prompt < max(self.shared_tokens, scored):
            raise _invalid(
                event.event,
                f"a prompt of {prompt} tokens with {self.shared_tokens} shared and "
                f"{scored} scored ones",
            )

    def _check_labels(self, event: _Completed) -> None:
        ids = [label.token_id for label in event.labels or ()]
        if self.label_ids is None:
            self.label_ids = ids
        elif ids != self.label_ids:
            raise _invalid(event.event, "labels with other token ids than before")

    def _check_end(self, event: _Ended) -> None:
        if (event.completed, event.failed) != (self.completed, self.failed):
            raise _invalid(
                event.event,
                f"{event.completed} completed and {event.failed} failed branches after "
                f"{self.completed} and {self.failed}",
            )
        for name in _Usage.model_fields:
            total = getattr(event.usage, name)
            if total != self.usage[name]:
                raise _invalid(
                    event.event,
                    f"{total} {name} where the branches have {self.usage[name]}",
                )


def read_event(
    line: bytes, request: GroupRequest, tally: Tally | None = None
) -> BranchEvent | None:
    """One line of the answer to ``request``; None for an unknown event.

    Args:
        line: The line.
        request: The request.
        tally: The earlier events of the same answer.

    Raises:
        InvalidResponseError: The line breaks the wire's rules.
    """
    try:
        event = _EVENTS.validate_json(line)
    except ValidationError as error:
        if (name := _event_name(line)) in _KNOWN:
            raise _invalid(name, first_problem(error, show_input=True)) from None
        return None
    if tally is not None:
        tally.add(event)
    match event:
        case _Started():
            return _started(event, request)
        case _Completed():
            return _result(event, request)
        case _Failed():
            return _failed(event, request)
        case _Ended():
            return _ended(event)


def _event_name(line: bytes) -> str:
    """What a line that is none of our events calls itself."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise _invalid("line", f"not JSON: {line[:80]!r}") from None
    name = value.get("event") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise _invalid("line", f"not an object with an event: {line[:80]!r}")
    return name


def _started(event: _Started, request: GroupRequest) -> GroupStarted:
    if event.branches != len(request.branches):
        raise _invalid(
            event.event,
            f"{event.branches} branches where {len(request.branches)} were sent",
        )
    if event.group_id != request.group_id:
        raise _invalid(event.event, f"the answer to another group, {event.group_id!r}")
    return GroupStarted(
        group_id=event.group_id,
        request_id=event.request_id,
        model=event.model,
        document_tokens=event.document_tokens,
        shared_tokens=event.shared_tokens,
    )


def _result(event: _Completed, request: GroupRequest) -> BranchResult:
    count = len(event.token_ids)
    tops: Sequence[bool | None] = event.token_is_top or [None] * count
    if not count == len(event.token_logprobs) == len(tops):
        raise _invalid(event.event, f"other than one number for each of {count} tokens")
    branch = _branch(event.event, event.index, request)
    if request.labels is None:
        sent = branch.content
        if not isinstance(sent, str) and event.token_ids != list(sent):
            raise _invalid(event.event, "token ids other than those sent")
    elif count != 1:
        raise _invalid(event.event, f"{count} generated tokens in place of one")
    usage = event.usage
    if usage.cached_tokens + usage.computed_tokens != usage.prompt_tokens:
        raise _invalid(
            event.event,
            f"{usage.cached_tokens} cached and {usage.computed_tokens} computed tokens "
            f"of {usage.prompt_tokens}",
        )
    scores = zip(event.token_ids, event.token_logprobs, tops, strict=True)
    return BranchResult(
        index=branch.index,
        request_id=event.request_id,
        tokens=tuple(
            TokenScore(token_id=token, logprob=value, is_top=top)
            for token, value, top in scores
        ),
        labels=_labels(event, request.labels),
        usage=Usage(**usage.model_dump()),
    )


def _labels(
    event: _Completed, sent: Sequence[Label] | None
) -> tuple[LabelScore, ...] | None:
    if sent is None:
        return None
    labels = event.labels or []
    if [label.label for label in labels] != list(sent):
        raise _invalid(event.event, "labels other than those sent")
    for label in labels:
        if isinstance(label.label, int) and label.token_id != label.label:
            raise _invalid(event.event, f"token {label.token_id} for {label.label}")
    return tuple(
        LabelScore(label=label.label, token_id=label.token_id, logprob=label.logprob)
        for label in labels
    )


def _failed(event: _Failed, request: GroupRequest) -> BranchFailed:
    return BranchFailed(
        index=_branch(event.event, event.index, request).index,
        request_id=event.request_id,
        code=event.error.code,
        message=event.error.message,
        retryable=event.error.retryable,
    )


def _ended(event: _Ended) -> GroupCompleted:
    load = event.load
    return GroupCompleted(
        usage=GroupUsage(**event.usage.model_dump()),
        backlog=None if load is None else load.requests / load.rows,
    )


def _branch(event: str, index: int, request: GroupRequest) -> Branch:
    """The branch at a position of one request; its own index is that in the group."""
    if index >= len(request.branches):
        raise _invalid(event, f"branch {index} where {len(request.branches)} were sent")
    return request.branches[index]


def _invalid(message: str, what: str) -> InvalidResponseError:
    return InvalidResponseError(
        f"The server sent a {message} that the wire (version {WIRE_VERSION}) does not "
        f"allow ({what}); use matching versions of server and SDK."
    )
