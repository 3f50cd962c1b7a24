"""vLLM's V2 model runner on a CPU: the environment of a process that runs it."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def interpreter() -> dict[str, str]:
    """Variables under which a process runs Triton kernels in the interpreter."""
    path = [str(HERE / "fake_triton"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(part for part in path if part)}


def second_runner() -> dict[str, str]:
    """Variables under which a server runs the V2 model runner."""
    return {**interpreter(), "VLLM_USE_V2_MODEL_RUNNER": "1"}
