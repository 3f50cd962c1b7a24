"""What the prefix cache holds for a request: the hit that it may resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.v1.request import Request

from server_ext.engine import compat
from server_ext.policy.counters import Counters
from server_ext.policy.hints import Hints
from server_ext.policy.readiness import CommitFence, Readiness, classify

__all__ = ["Lookups"]


class Lookups:
    """vLLM's prefix lookup, cut where exactness or memory asks for it.

    Args:
        manager: vLLM's cache manager.
        native: vLLM's own lookup.
        fence: states whose round has not been processed yet.
        hints: hints by request id.
        counters: where lookups are counted.
    """

    def __init__(
        self,
        manager: Any,
        native: Callable[..., compat.Hit],
        fence: CommitFence,
        hints: Mapping[str, Hints],
        counters: Counters,
    ) -> None:
        self.recurrent = compat.recurrent_managers(manager)
        """Managers of the recurrent cache groups; empty for full attention."""
        self._manager = manager
        self._native = native
        self._fence = fence
        self._hints = hints
        self._counters = counters
        self._kept: tuple[str, compat.Hit] | None = None
        self._starts_over: set[str] = set()

    def of(self, request: Request, native_cap: int | None = None) -> compat.Hit:
        """A hit that leaves the row of the first scored token to be computed.

        This is a matter of exactness, so it holds under every policy.

        Args:
            request: a waiting request.
            native_cap: vLLM's own limit on the hit, in tokens.
        """
        self._counters.lookups += 1
        hit = self._native_hit(request, native_cap)
        hints = self._hints.get(request.request_id)
        if hints is None or not hints.scored_from:
            return hit
        cap = min(hints.scored_from, request.num_tokens) - 1
        if hit[1] <= cap:
            return hit
        self._counters.capped_hits += 1
        return compat.shorter_lookup(self._manager, request, cap)

    def is_ready(self, hit: compat.Hit) -> bool:
        """Whether every recurrent state at the end of a hit has been computed."""
        states = compat.states_at_end(self.recurrent, hit[0], self._fence)
        return classify(states) is Readiness.READY

    def keep(self, request: Request, hit: compat.Hit) -> None:
        """Keep a hit for the lookup that vLLM makes next."""
        self._kept = (request.request_id, hit)

    def take(self, request: Request, native_cap: int | None = None) -> compat.Hit:
        """The hit that was kept for this request, else a lookup."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != request.request_id or native_cap is not None:
            return self.of(request, native_cap)
        return kept[1]

    def new_round(self) -> None:
        """No hit of one round holds in the next."""
        self._kept = None

    def start_over(self, request: Request) -> None:
        """From now on this request resumes from nothing."""
        self._starts_over.add(request.request_id)

    def finished(self, request_id: str) -> None:
        """The request has left the scheduler."""
        self._starts_over.discard(request_id)

    def _native_hit(self, request: Request, native_cap: int | None) -> compat.Hit:
        if request.request_id in self._starts_over:
            return compat.shorter_lookup(self._manager, request, 0)
        caps = () if native_cap is None else (native_cap,)
        return self._native(request, *caps)
