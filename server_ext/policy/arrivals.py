"""What arrived, and after which round: enough to replay a run without a model.

Lengths, hints and shortened block keys, never tokens.  Pure and bounded: a server that
runs for weeks keeps the last arrivals only, and says how many it has let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from server_ext.policy.hints import Hints

__all__ = ["Arrival", "Arrivals", "packed"]

KEPT = 4096
"""Most arrivals that are kept."""
KEPT_BYTES = 1 << 24
"""Most bytes of block keys that are kept."""
PAGE_BYTES = 1 << 17
"""Bytes after which a page ends; the engine makes one between two rounds."""
ARRIVAL_BYTES = 1000
"""What an arrival counts beside its keys."""
KEY = 8
"""Bytes that are kept of a block key: enough to tell a billion apart."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, as the scheduler took it.

    Attributes:
        name: its id.
        after: rounds that had been planned before it came.
        at: when, in seconds of the scheduler's clock.
        tokens: length of its prompt.
        generates: most tokens that it generates.
        reads_cache: whether it may resume from the prefix cache.
        keys: its block keys, `KEY` bytes each: equal exactly where prefixes are.
        hints: its hints, None where it has none that can be used.
    """

    name: str
    after: int
    at: float
    tokens: int
    generates: int
    reads_cache: bool
    keys: bytes
    hints: Hints | None

    def as_dict(self) -> dict[str, Any]:
        """The arrival as JSON-ready data, its keys in hexadecimal."""
        hints = None if self.hints is None else asdict(self.hints)
        return {
            "name": self.name,
            "after": self.after,
            "at": self.at,
            "tokens": self.tokens,
            "generates": self.generates,
            "reads_cache": self.reads_cache,
            "keys": self.keys.hex(),
            "hints": hints,
        }


def packed(keys: Sequence[bytes]) -> bytes:
    """Block keys, each shortened to its first `KEY` bytes, in one string.

    Args:
        keys: digests of equal length, a multiple of `KEY` bytes, as vLLM's hashes are.
    """
    if not keys:
        return b""
    words = memoryview(b"".join(keys)).cast("Q")
    return words[:: len(keys[0]) // KEY].tobytes()


@dataclass(slots=True)
class Arrivals:
    """The last arrivals, oldest first.

    Attributes:
        dropped: how many older ones were let go since the start.
    """

    dropped: int = 0
    _kept: deque[Arrival] = field(default_factory=deque)
    _bytes: int = 0

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._kept)

    @property
    def end(self) -> int:
        """Arrivals since the start, those let go included."""
        return self.dropped + len(self._kept)

    def page(self, after: int, start: int) -> tuple[list[Arrival], int]:
        """Arrivals from number `start` on, and where the next page begins.

        Args:
            after: arrivals before that round was planned are left out.
            start: numbers count from the start of the server.
        """
        page: list[Arrival] = []
        size = 0
        for number, arrival in enumerate(self._kept, self.dropped):
            if size >= PAGE_BYTES:
                return page, number
            if number >= start and arrival.after >= after:
                page.append(arrival)
                size += len(arrival.keys) + ARRIVAL_BYTES
        return page, self.end

    def add(self, arrival: Arrival) -> None:
        """Keep one more, and let go what is too much."""
        self._kept.append(arrival)
        self._bytes += len(arrival.keys)
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().keys)
            self.dropped += 1
