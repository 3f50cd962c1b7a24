"""The wire's hints, written (docs/wire.md, "Hints").

For servers that are spoken to request by request: the dict goes into ``vllm_xargs``. A
hint changes when a request runs, never what is computed. This room must not decide
anything: it only spells.
"""

from __future__ import annotations

from typing import Literal

HINTS_VERSION = 1


def write_hints(
    group: str,
    *,
    role: Literal["producer", "consumer"],
    branches: int,
    shared_tokens: int,
    scored_from: int | None = None,
) -> dict[str, str | int]:
    """Spell one request's hints as the server reads them; what is None is left out."""
    hints: dict[str, str | int] = {
        "radixflow_v": HINTS_VERSION,
        "radixflow_group": group,
        "radixflow_role": role,
        "radixflow_branches": branches,
        "radixflow_shared_tokens": shared_tokens,
    }
    if scored_from is not None:
        hints["radixflow_scored_from"] = scored_from
    return hints
