"""The replay lab: policies over the real scheduler in virtual time, without a model.

A trace (what is sent) is run by vLLM's own scheduler and cache manager (who runs in
which round) and a cost model (how long a round takes) into a ledger.  Figures from here
are simulated, and say so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run ``radixflow replay``; imports vLLM only when there is something to run.

    Args:
        argv: what follows ``radixflow replay``.

    Returns:
        Exit status.
    """
    # vLLM's log goes to the standard output, where the results are.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from server_ext.replay.command import run

    return run(list(argv))
