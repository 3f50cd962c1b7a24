"""``POST /v1/branches``: the request and its NDJSON answer (docs/wire.md, version 1).

Everything received is checked for type, range and consistency, so that a faulty server
causes an error and never a wrong number. Unknown events and fields are ignored, as the
wire requires. Leaving the stream closes the answer; the server then aborts the
unfinished branches.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from radixflow_sdk._messages import (
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
    started = False
    completed: GroupCompleted | None = None
    async with aclosing(answer.lines()) as lines:
        async for line in lines:
            event = read_event(line, request)
            if event is None:
                continue
            # Exactly the first event is a start, and nothing follows the end.
            if completed is not None or started is isinstance(event, GroupStarted):
                raise InvalidResponseError(
                    f"The server sent {type(event).__name__} out of order; report this "
                    "to its operator."
                )
            started = True
            if isinstance(event, GroupCompleted):
                completed = event
            else:
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
    token_ids: Annotated[list[_Count], Field(min_length=1)]
    token_logprobs: list[_LogProb]
    token_is_top: list[bool] | None = None
    labels: list[_Label] | None
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
    data: Annotated[list[_Model], Field(min_length=1)]


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


def read_event(line: bytes, request: GroupRequest) -> BranchEvent | None:
    """One line of the answer to ``request``; None for an event that is not known.

    Raises:
        InvalidResponseError: The line breaks the wire's rules.
    """
    try:
        event = _EVENTS.validate_json(line)
    except ValidationError as error:
        if (name := _event_name(line)) in _KNOWN:
            raise _invalid(name, first_problem(error, show_input=True)) from None
        return None
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
    rows = zip(event.token_ids, event.token_logprobs, tops, strict=True)
    return BranchResult(
        index=_branch_index(event.event, event.index, request),
        request_id=event.request_id,
        tokens=tuple(
            TokenScore(token_id=token, logprob=value, is_top=top)
            for token, value, top in rows
        ),
        labels=_labels(event, request.labels),
        usage=Usage(
            prompt_tokens=event.usage.prompt_tokens,
            cached_tokens=event.usage.cached_tokens,
            computed_tokens=event.usage.computed_tokens,
        ),
    )


def _labels(
    event: _Completed, sent: Sequence[Label] | None
) -> tuple[LabelScore, ...] | None:
    if sent is None:
        return None
    labels = event.labels or []
    if [label.label for label in labels] != list(sent):
        raise _invalid(event.event, "labels other than those sent")
    return tuple(
        LabelScore(label=label.label, token_id=label.token_id, logprob=label.logprob)
        for label in labels
    )


def _failed(event: _Failed, request: GroupRequest) -> BranchFailed:
    return BranchFailed(
        index=_branch_index(event.event, event.index, request),
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


def _branch_index(event: str, index: int, request: GroupRequest) -> int:
    """The wire counts the branches of one request, the plan those of the group."""
    if index >= len(request.branches):
        raise _invalid(event, f"branch {index} where {len(request.branches)} were sent")
    return request.branches[index].index


def _invalid(message: str, what: str) -> InvalidResponseError:
    return InvalidResponseError(
        f"The server sent a {message} that the wire (version {WIRE_VERSION}) does not "
        f"allow ({what}); use matching versions of server and SDK."
    )
