"""What the hooks of a client receive: requests, ended groups, raw answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSent:
    """A group, or what is missing of it, is sent.

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
    """A request is over.

    Attributes:
        group_id: The group.
        request_id: ``X-Request-ID``.
        attempt: 1 for the first request of a group.
        elapsed: Seconds since it was sent.
        error: Why it failed, or the cancellation that ended it; None where its answer
            is whole.
        backlog: What the server still had to do for groups, in full rounds; None where
            it did not say.
    """

    group_id: str
    request_id: str
    attempt: int
    elapsed: float
    error: BaseException | None
    backlog: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnded:
    """A call is over.

    Attributes:
        group_id: The group.
        branches: Branches asked for, equal options counted once.
        failed: Of these, without a result.
        elapsed: Seconds since the call, waiting for a free connection included.
        error: What the call raised, a cancellation too; None where it returned.
    """

    group_id: str
    branches: int
    failed: int
    elapsed: float
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    """One HTTP answer as it came, for ``on_response``.

    Attributes:
        request_id: ``X-Request-ID``, as the server answered it, else as it was sent.
        group_id: The group that asked.
        url: What was asked.
        status: The HTTP status.
        headers: Of the answer, names in lower case.
        body: What was read of it, decoded: all of it, unless it was cut, left early, or
            is a long error page.
    """

    request_id: str | None
    group_id: str | None
    url: str
    status: int
    headers: Mapping[str, str] = field(hash=False, repr=False)
    body: bytes = field(repr=False)

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """The objects among the body's whole lines: a group's NDJSON events, unread."""
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
