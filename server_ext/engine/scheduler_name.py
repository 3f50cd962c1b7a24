"""What the launcher and the engine share, without importing vLLM."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["REFUSAL_FILE", "SCHEDULER", "tell_launcher"]

SCHEDULER = "server_ext.engine.scheduler.RadixFlowScheduler"
"""What ``vllm serve --scheduler-cls`` takes."""

REFUSAL_FILE = "RADIXFLOW_REFUSAL_FILE"
"""Environment variable: a file where the engine says why it refused to start."""


def tell_launcher(refusal: Exception) -> None:
    """Leave the reason where `radixflow serve` reads it; without one, do nothing."""
    if path := os.environ.get(REFUSAL_FILE):
        Path(path).write_text(str(refusal), encoding="utf-8")
