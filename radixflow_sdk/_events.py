"""Values that a client's hooks receive: requests, ended groups, raw answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSent:
    """A request is sent: a group, or its missing branches.

    Attributes:
        group_id: The group.
        request_id: ``X-Request-ID``.
        session_id: ``X-Session-ID``.
        attempt: 1 for the first request of a group.
        branches: Branches in this request.
    """

    group_id: str
    request_id: str
    session_id: str
    attempt: int
    branches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """A request has ended.

    Attributes:
        group_id: The group.
        request_id: ``X-Request-ID``.
        attempt: 1 for the first request of a group.
        elapsed: Seconds since it was sent.
        error: Why it failed, or the cancellation that ended it; None where its answer
            is complete.
        backlog: Work queued on the server, in full rounds; None where it is not
            reported.
    """

    group_id: str
    request_id: str
    attempt: int
    elapsed: float
    error: BaseException | None
    backlog: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnded:
    """A call has ended.

    Attributes:
        group_id: The group.
        branches: Branches of the group; equal options count once.
        failed: Of these, without a result.
        elapsed: Seconds since the call, with the wait for a slot.
        error: The exception of the call, also a cancellation; None where it returned.
    """

    group_id: str
    branches: int
    failed: int
    elapsed: float
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    """One raw HTTP answer, for ``on_response``.

    Attributes:
        request_id: ``X-Request-ID`` of the answer, else of the request.
        group_id: The group.
        url: The requested URL.
        status: The HTTP status.
        headers: Of the answer, names in lower case.
        body: The bytes read: the whole body, unless it was cut, closed early, or is a
            long error page.
    """

    request_id: str | None
    group_id: str | None
    url: str
    status: int
    headers: Mapping[str, str] = field(hash=False, repr=False)
    body: bytes = field(repr=False)

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """The JSON objects among the body's complete lines: a group's NDJSON events."""
        found = []
        for line in self.body.split(b"\n")[:-1]:
            try:
                value = json.loads(line.removeprefix(b"data: "))
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                found.append(value)
        return tuple(found)


ClientEvent: TypeAlias = RequestSent | RequestEnded | GroupEnded
OnResponse: TypeAlias = Callable[[RawResponse], None]
