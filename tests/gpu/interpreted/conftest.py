"""Tests that need Triton's interpreter; `test_interpreted.py` runs them with it."""

import os
from typing import Any

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

if not collect_ignore_glob:
    # First of all: vLLM replaces functions here that its kernels' modules take by name.
    import vllm.v1.worker.cpu.shm  # noqa: F401
    from triton.runtime.interpreter import InterpreterBuilder

    def with_masks_of_bools(name: str) -> None:
        """Let a load or store take a mask that was one scalar (Triton 3.9 does not)."""
        native = getattr(InterpreterBuilder, name)

        def call(self: Any, *args: Any) -> Any:
            mask = args[1 if name == "create_masked_load" else 2]
            mask.data = mask.data.astype(bool)
            return native(self, *args)

        setattr(InterpreterBuilder, name, call)

    with_masks_of_bools("create_masked_load")
    with_masks_of_bools("create_masked_store")
