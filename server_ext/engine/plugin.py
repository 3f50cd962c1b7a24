"""The ``vllm.general_plugins`` entry: two mends and three methods.

vLLM calls `register` in every process.  Workers get whole-block copies (`block_copy`)
and rows of given tokens that leave others' rows alone (`token_rows`);
the engine core gets three methods that the API-server process calls by name
(``call_utility_async``), which is how a snapshot of the scheduler gets across:
``SchedulerStats`` has no free slot for it.
"""

from __future__ import annotations

from typing import Any

from server_ext.engine import block_copy, token_rows

__all__ = ["register"]


def radixflow_snapshot(self: Any) -> dict[str, Any]:
    """The scheduler's snapshot, or just its name where it is not ours."""
    snapshot = getattr(self.scheduler, "snapshot", None)
    if snapshot is None:
        return {"scheduler": type(self.scheduler).__name__}
    result: dict[str, Any] = snapshot()
    return result


def radixflow_rounds(self: Any, after: int) -> list[dict[str, Any]]:
    """The kept rounds after number `after`; empty where the scheduler is not ours."""
    rounds_after = getattr(self.scheduler, "rounds_after", None)
    return [] if rounds_after is None else list(rounds_after(after))


def radixflow_arrivals(self: Any, after: int) -> dict[str, Any] | None:
    """The kept arrivals after round `after`; None where the scheduler is not ours."""
    arrivals_after = getattr(self.scheduler, "arrivals_after", None)
    return None if arrivals_after is None else dict(arrivals_after(after))


def radixflow_set_policy(self: Any, name: str) -> bool:
    """Switch the policy of an idle scheduler; False where it is busy or not ours."""
    set_policy = getattr(self.scheduler, "set_policy", None)
    return bool(set_policy is not None and set_policy(name))


def register() -> None:
    """Called by vLLM in every process when the plug-in is loaded."""
    from vllm.v1.engine.core import EngineCore

    block_copy.install()
    token_rows.install()
    EngineCore.radixflow_snapshot = radixflow_snapshot
    EngineCore.radixflow_rounds = radixflow_rounds
    EngineCore.radixflow_arrivals = radixflow_arrivals
    EngineCore.radixflow_set_policy = radixflow_set_policy
