"""Log-likelihoods of options without a document: a bounded cache.

An option's log-likelihood after an unconditional context is the same for every group,
so each is requested once. The cache holds digests, not texts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from radixflow_sdk._messages import Plan

MAX_SUMS = 65_536
"""Sums kept, about 10 MB; the least recently used one is dropped first."""


class Unconditional:
    """The sums of one client, over all of its calls.

    Args:
        max_sums: Sums kept.
    """

    def __init__(self, max_sums: int = MAX_SUMS) -> None:
        self._max_sums = max_sums
        self._sums: OrderedDict[bytes, float] = OrderedDict()

    def known(self, plan: Plan, model: str) -> dict[int, float]:
        """The known sums of a plan's branches, by branch index."""
        keys = _keys(plan, model)
        found = {i: key for i, key in enumerate(keys) if key in self._sums}
        for key in found.values():
            self._sums.move_to_end(key)
        return {index: self._sums[key] for index, key in found.items()}

    def remember(self, plan: Plan, model: str, sums: Mapping[int, float]) -> None:
        """Keep the sums of some branches of a plan, by branch index."""
        keys = _keys(plan, model)
        for index, total in sums.items():
            self._sums[keys[index]] = total
        while len(self._sums) > self._max_sums:
            self._sums.popitem(last=False)


def _keys(plan: Plan, model: str) -> list[bytes]:
    """A key for each branch. The document and the salt change no sum."""
    head = repr((model, plan.unconditional))
    return [
        hashlib.blake2b(f"{head}{branch.content!r}".encode(), digest_size=16).digest()
        for branch in plan.request.branches
    ]
