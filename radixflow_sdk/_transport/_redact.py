"""Redact secret request headers from errors and events.

A server, or a proxy before it, may quote what it was sent: in an error page, in a
branch's failure, in a line that is no HTTP at all. Errors, with everything in their
chain, and events pass through here. Texts that a model wrote and raw answers are
results, and stay as they are.
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

# What every request has, or is meant for all to see. Any other header may be a secret.
_PUBLIC = {
    *(b"accept", b"accept-encoding", b"accept-language", b"user-agent", b"host"),
    *(b"content-type", b"content-length", b"transfer-encoding", b"connection"),
    *(b"traceparent", b"tracestate", b"baggage"),
    *(b"x-request-id", b"x-session-id", b"x-data-parallel-rank"),
}
_CREDENTIALS = (b"authorization", b"proxy-authorization")
_CUT = "***"
# Shorter values of other headers are flags; cutting them out would eat whole messages.
_LEAST = 4
# A message may be cut off: that much of a secret's beginning counts as the secret.
_BEGINNING = 8
_SERVERS_WORDS: Mapping[type[object], tuple[str, ...]] = {
    GroupStarted: ("request_id", "model"),
    BranchResult: ("request_id",),
    BranchFailed: ("request_id", "code", "message"),
}


class Secrets:
    """The secrets of one request.

    Args:
        headers: Names and values as they are sent; read when first needed.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._headers = headers

    @cached_property
    def _spelled(self) -> tuple[str, ...]:
        """Longest first: one may hold another."""
        found = {s for value in _values(self._headers) for s in _spellings(value)}
        return tuple(sorted(found, key=len, reverse=True))

    def redact(self, text: str) -> str:
        """A text without them."""
        for secret in self._spelled:
            text = _cut(text, secret)
        return text

    def redact_event(self, event: E) -> E:
        """An event without them in what the server says of itself."""
        if not self._spelled:
            return event
        said = {n: getattr(event, n) for n in _SERVERS_WORDS.get(type(event), ())}
        shown: dict[str, Any] = {name: self.redact(text) for name, text in said.items()}
        return event if shown == said else replace(event, **shown)

    def redact_error(self, error: BaseException) -> None:
        """Take them out of an error, and of every error behind it."""
        seen: set[int] = set()
        left = [error]
        while left:
            one = left.pop()
            seen.add(id(one))
            self._redact_one(one)
            for link in ("__cause__", "__context__"):
                behind = getattr(one, link)
                if behind is None or id(behind) in seen:
                    continue
                self._redact_one(behind)
                if self._shows(behind):  # its text is not in its `args`
                    setattr(one, link, None)
                else:
                    left.append(behind)

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
            yield rest  # an API key may be as short as it likes
        parts = [value, rest if scheme.isalpha() else ""]
        if name == b"cookie":
            parts += [part.partition("=")[2] for part in value.split("; ")]
        yield from (part for part in parts if len(part) >= _LEAST)


def _spellings(secret: str) -> set[str]:
    """As it is, and as JSON and ``repr`` spell it, one inside the other too."""
    found = {secret}
    for _ in range(2):
        found |= {json.dumps(one)[1:-1] for one in found}
        found |= {one.replace("\\", "\\\\").replace("'", "\\'") for one in found}
    return found


def _cut(text: str, secret: str) -> str:
    beginning = secret[:_BEGINNING]
    at, last, kept = text.find(beginning), 0, list[str]()
    while at >= 0:
        kept += text[last:at], _CUT
        # No more of the text than the secret's length: a server may say it often.
        pairs = zip(text[at : at + len(secret)], secret, strict=False)
        last = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        at = text.find(beginning, last)
    return "".join([*kept, text[last:]])
