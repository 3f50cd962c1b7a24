"""What a look at the prefix cache found, for as long as nobody can have added to it.

A branch that is put off is visited in every round, and looking it up costs several
times as much as the rest of the visit.  Its hit can only grow when a request that
agrees with it beyond the hit has computed something; by the hash of the first match
unit behind the hit, such requests are known.  (It can also shrink, when the cache needs
the room: a hit that is remembered says when to look again, never what to read.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["Looks"]


class Looks:
    """Lengths of hits by request."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}
        self._behind: dict[Hashable, set[str]] = {}
        self._keys: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def keep(self, request_id: str, length: int, behind: Hashable | None) -> None:
        """Remember a hit.

        Args:
            request_id: whose.
            length: of the hit, in tokens.
            behind: hash of the prefix that ends one match unit behind the hit; None
                where the request has no more whole units.
        """
        self.forget(request_id)
        self._lengths[request_id] = length
        if behind is not None:
            self._keys[request_id] = behind
            self._behind.setdefault(behind, set()).add(request_id)

    def length(self, request_id: str) -> int | None:
        """The hit's length, if it is remembered."""
        return self._lengths.get(request_id)

    def computed(self, prefixes: Iterable[Hashable]) -> None:
        """Forget the hits that a request with these prefix hashes may lengthen."""
        for key in self._behind.keys() & prefixes:
            for request_id in tuple(self._behind[key]):
                self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Remember nothing of a request."""
        self._lengths.pop(request_id, None)
        key = self._keys.pop(request_id, None)
        if key is not None:
            self._behind[key].discard(request_id)
            if not self._behind[key]:
                del self._behind[key]
