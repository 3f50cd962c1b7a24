"""Block keys of named segments: equal exactly where two prompts are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from server_ext.replay.trace import Group, Segment, spans

__all__ = ["Keys", "key", "limit"]


class Keys:
    """Block keys by content: equal exactly where two prompts are equal.

    Args:
        unit: tokens between two keys.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._known: dict[tuple[str, str, int, int], list[bytes]] = {}

    def of(self, salt: str, segments: Sequence[Segment]) -> tuple[bytes, ...]:
        """Keys of a prompt; the last segment is its own, the others may be shared."""
        keys: list[bytes] = []
        for index, (path, start, end) in enumerate(spans(segments), start=1):
            slot = (salt, path, start, end)
            own = self._known.get(slot)
            if own is None:
                units = range(start // self.unit, end // self.unit)
                own = [key(salt, path, unit) for unit in units]
                if index < len(segments):
                    self._known[slot] = own
            keys += own
        return tuple(keys)


def key(salt: str, path: str, index: int) -> bytes:
    """Key of the unit `index` of a prompt, which ends within the segment `path`."""
    text = f"{salt}|{path}|{index}".encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def limit(groups: Iterable[Group], unit: int = 16) -> int:
    """Tokens that full attention with blocks of `unit` tokens computes for the prompts.

    The cache is unbounded and the prompts come one after another: with recurrent states
    no cache of such blocks can leave less to compute.
    """
    keys, seen, computed = Keys(unit), set[bytes](), 0
    for group in groups:
        for branch, tail in enumerate(group.branches):
            prompt = keys.of(group.salt, group.prompt(branch))
            tokens = group.context_tokens + tail
            usable = prompt[: (tokens - 1) // unit]
            hit = next((i for i, one in enumerate(usable) if one not in seen), None)
            computed += tokens - unit * (len(usable) if hit is None else hit)
            seen.update(prompt)
    return computed
