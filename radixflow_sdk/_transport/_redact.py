"""Redact secret request headers from errors and events.

A server, or a proxy in front of it, may quote what it received: in an error page, in a
branch's failure, in a line that is not HTTP. Errors with their whole chain, and events,
are redacted. Generated texts and raw answers are results and stay unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeVar, cast

from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    GroupStarted,
)

T = TypeVar("T")
E = TypeVar("E", bound=BranchEvent)

# Headers that every request has, or that are public. Any other may be a secret.
_PUBLIC = {
    *(b"accept", b"accept-encoding", b"accept-language", b"user-agent", b"host"),
    *(b"content-type", b"content-length", b"transfer-encoding", b"connection"),
    *(b"traceparent", b"tracestate", b"baggage"),
    *(b"x-request-id", b"x-session-id", b"x-data-parallel-rank"),
}
_CREDENTIALS = (b"authorization", b"proxy-authorization")
_REPLACEMENT = "***"
# Shorter values are flags; redacting them would destroy whole messages.
_MIN_LENGTH = 4
# A message may be truncated: so many leading characters count as the secret.
_PREFIX = 8
_SERVER_FIELDS: Mapping[type[object], tuple[str, ...]] = {
    GroupStarted: ("request_id", "model"),
    BranchResult: ("request_id",),
    BranchFailed: ("request_id", "code", "message"),
}


class Secrets:
    """The secrets of one request.

    Args:
        headers: Names and values as they are sent; read on first use.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._headers = headers

    @cached_property
    def _spellings(self) -> tuple[str, ...]:
        """Longest first, since one may contain another."""
        found = {s for value in _values(self._headers) for s in _spell(value)}
        return tuple(sorted(found, key=len, reverse=True))

    def redact(self, text: str) -> str:
        """The text with every secret replaced."""
        for secret in self._spellings:
            text = _replace(text, secret)
        return text

    def redact_event(self, event: E) -> E:
        """The event with every secret replaced in the server's ids and messages."""
        if not self._spellings:
            return event
        said = {n: getattr(event, n) for n in _SERVER_FIELDS.get(type(event), ())}
        shown: dict[str, Any] = {name: self.redact(text) for name, text in said.items()}
        return event if shown == said else replace(event, **shown)

    def redact_error(self, error: BaseException) -> None:
        """Replace every secret in an error and in every error of its chain."""
        seen: set[int] = set()
        left = [error]
        while left:
            one = left.pop()
            seen.add(id(one))
            self._redact_one(one)
            for link in ("__cause__", "__context__"):
                linked = getattr(one, link)
                if linked is None or id(linked) in seen:
                    continue
                self._redact_one(linked)
                if self._shows(linked):  # its text is not built from its `args`
                    setattr(one, link, None)
                else:
                    left.append(linked)

    def _redact_one(self, error: BaseException) -> None:
        args = tuple(self._plain(value) for value in error.args)
        if args != error.args:
            error.args = args
        for name, value in vars(error).items():
            setattr(error, name, self._plain(value))

    def _plain(self, value: T) -> T:
        if isinstance(value, str):
            return cast(T, self.redact(value))
        if isinstance(value, bytes | bytearray):
            text = value.decode("latin-1")
            return cast(T, self.redact(text).encode("latin-1"))
        return value

    def _shows(self, error: BaseException) -> bool:
        return any(self.redact(text) != text for text in (str(error), repr(error)))


def _values(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    for header, sent in headers:
        name = header.lower()
        if name in _PUBLIC:
            continue
        value = sent.decode("latin-1")
        scheme, _, rest = value.partition(" ")
        if name in _CREDENTIALS and rest:
            yield rest  # an API key of any length
        parts = [value, rest if scheme.isalpha() else ""]
        if name == b"cookie":
            parts += [part.partition("=")[2] for part in value.split("; ")]
        yield from (part for part in parts if len(part) >= _MIN_LENGTH)


def _spell(secret: str) -> set[str]:
    """The secret as it is, and as JSON and ``repr`` escape it, nested once."""
    found = {secret}
    for _ in range(2):
        found |= {json.dumps(one)[1:-1] for one in found}
        found |= {one.replace("\\", "\\\\").replace("'", "\\'") for one in found}
    return found


def _replace(text: str, secret: str) -> str:
    prefix = secret[:_PREFIX]
    at, last, kept = text.find(prefix), 0, list[str]()
    while at >= 0:
        kept += text[last:at], _REPLACEMENT
        # Compare no more than the secret's length: the text may repeat it often.
        pairs = zip(text[at : at + len(secret)], secret, strict=False)
        last = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        at = text.find(prefix, last)
    return "".join([*kept, text[last:]])
