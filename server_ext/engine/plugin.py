"""The ``vllm.general_plugins`` entry: patches, and methods that vLLM calls by name.

vLLM calls `register` in every process.  Workers get the patches (`patches`) and a
method that tells which of them they hold; the engine core asks all workers once their
models are loaded, and refuses to serve if one lacks a patch.  The engine core also gets
the methods that the API-server process calls by name (``call_utility_async``), because
``SchedulerStats`` has no free slot for a snapshot of the scheduler.
"""

from __future__ import annotations

import functools
from typing import Any

from server_ext.engine import patches
from server_ext.engine.scheduler_name import tell_launcher
from server_ext.policy.config import ConfigurationError

__all__ = ["register"]

_MARK = "radixflow_asks_workers"


def radixflow_patches(self: Any) -> list[str]:
    """A worker's answer: the patches that it holds, now that its model is loaded."""
    patches.install()
    return patches.installed()


def radixflow_snapshot(self: Any) -> dict[str, Any]:
    """The scheduler's snapshot, or just its name where it is not ours; the engine."""
    snapshot = getattr(self.scheduler, "snapshot", None)
    known = (
        {"scheduler": type(self.scheduler).__name__} if snapshot is None else snapshot()
    )
    return {**known, "engine": _engine(self)}


def _engine(core: Any) -> dict[str, Any]:
    """What runs under the scheduler, as JSON-ready data."""
    config = core.vllm_config
    return {
        "model_runner": "V2" if config.use_v2_model_runner else "V1",
        "kv_cache_layout": config.cache_config.kv_cache_layout,
        "workers": core.radixflow_workers,
    }


def radixflow_rounds(self: Any, after: int) -> dict[str, Any]:
    """A page of the kept rounds; empty where the scheduler is not ours."""
    rounds_after = getattr(self.scheduler, "rounds_after", None)
    if rounds_after is None:
        return {"rounds": [], "newest": 0}
    return dict(rounds_after(after))


def radixflow_arrivals(self: Any, after: int, start: int) -> dict[str, Any] | None:
    """A page of the kept arrivals; None where the scheduler is not ours."""
    arrivals_after = getattr(self.scheduler, "arrivals_after", None)
    return None if arrivals_after is None else dict(arrivals_after(after, start))


def radixflow_set_policy(self: Any, name: str) -> bool | str:
    """Switch the policy of an idle scheduler.

    Returns:
        False where it is busy or not ours, the reason where it cannot run by that one.
    """
    set_policy = getattr(self.scheduler, "set_policy", None)
    try:
        return bool(set_policy is not None and set_policy(name))
    except ConfigurationError as refusal:
        return str(refusal)


def ask_workers(core: Any) -> list[list[str]]:
    """The patches that each worker holds, by rank.

    vLLM logs a plug-in that fails to load and goes on, so a node without this package
    would serve, and its scores would be wrong without an error.

    Raises:
        ConfigurationError: a worker lacks a patch, or does not know the question.
    """
    try:
        workers: list[list[str]] = core.collective_rpc("radixflow_patches")
    except RuntimeError as error:  # NotImplementedError too: a worker without it
        raise ConfigurationError(
            "a worker does not have RadixFlow's general plug-in: install radixflow-sdk "
            "on every node, and start with `radixflow serve` or VLLM_PLUGINS=radixflow"
        ) from error
    for rank, names in patches.missing(workers).items():
        raise ConfigurationError(
            f"worker {rank} lacks the patches {', '.join(names)}: install the same "
            "version of radixflow-sdk on every node"
        )
    return workers


def _asking_workers(native: Any) -> Any:
    @functools.wraps(native)
    def initialize_kv_caches(self: Any, *args: Any, **named: Any) -> Any:
        try:
            self.radixflow_workers = ask_workers(self)
        except ConfigurationError as refusal:
            tell_launcher(refusal)
            raise
        return native(self, *args, **named)

    setattr(initialize_kv_caches, _MARK, True)
    return initialize_kv_caches


def register() -> None:
    """Called by vLLM in every process when the plug-in is loaded."""
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    patches.install()
    WorkerBase.radixflow_patches = radixflow_patches
    # vLLM calls it once all workers have loaded their models, in 0.32.0 and 0.33.0.
    native = EngineCore._initialize_kv_caches
    if not hasattr(native, _MARK):
        EngineCore._initialize_kv_caches = _asking_workers(native)
    EngineCore.radixflow_snapshot = radixflow_snapshot
    EngineCore.radixflow_rounds = radixflow_rounds
    EngineCore.radixflow_arrivals = radixflow_arrivals
    EngineCore.radixflow_set_policy = radixflow_set_policy
