"""Branches that a round would cut short, and which of them wait a round (+Frag)."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.request import Request

from server_ext.engine.scan import Scan
from server_ext.policy.config import Policy
from server_ext.policy.counters import Counters

__all__ = ["FragmentDeferral"]


class FragmentDeferral:
    """Leaves a branch whose chunk would be cut short for the next round.

    The first branch of a round is never deferred: the next round, with the same
    requests running, would have no more for it.

    Args:
        policy: whether to defer, and how often a round.
        round_tokens: the budget of a round.
        native_split: vLLM's rule where a chunk ends, None where it has none.
        counters: where deferred branches are counted.
    """

    def __init__(
        self,
        policy: Policy,
        round_tokens: int,
        native_split: Callable[[Request, int, int], int] | None,
        counters: Counters,
    ) -> None:
        self._defers = policy.frag
        self._most = policy.max_deferred
        self._round_tokens = round_tokens
        self._native_split = native_split
        self._counters = counters

    def defers(self, scan: Scan, *, is_cut: bool) -> bool:
        """Whether the round leaves a branch out, which is then counted."""
        if not (self._defers and is_cut and scan.deferred < self._most):
            return False
        scan.deferred += 1
        self._counters.deferred += 1
        return True

    def cuts(self, scan: Scan, needs: int) -> bool:
        """Whether the budget left is too small for a chunk of `needs` tokens."""
        whole = min(needs, self._round_tokens)
        return scan.admitted and 0 < scan.tokens_left < whole

    def cuts_natively(self, scan: Scan, request: Request, hit: int) -> bool:
        """The same where vLLM cuts a chunk down to whole blocks."""
        wanted, split = request.num_tokens - hit, self._native_split
        if split is None or not self.cuts(scan, wanted):
            return False
        return split(request, wanted, hit) > split(request, scan.tokens_left, hit)
