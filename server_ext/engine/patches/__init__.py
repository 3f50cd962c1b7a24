"""The changes to vLLM that every worker must hold, by name.

`install` runs when the plug-in is loaded and again in each worker once its model is
loaded, so that the order of imports does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from server_ext.engine import block_copy, token_rows
from server_ext.engine.patches import prompt_logprobs

__all__ = ["NAMES", "install", "installed", "missing"]

_PATCHES = {
    "block_copy": block_copy,
    "token_rows": token_rows,
    "prompt_logprobs": prompt_logprobs,
}
NAMES = tuple(_PATCHES)


def install() -> None:
    """Apply every patch to this process; a second call changes nothing."""
    for patch in _PATCHES.values():
        patch.install()


def installed() -> list[str]:
    """Names of the patches that are in force in this process."""
    return [name for name, patch in _PATCHES.items() if patch.installed()]


def missing(workers: Iterable[Iterable[str]]) -> dict[int, list[str]]:
    """For each worker that lacks a patch, by rank: the patches that it lacks."""
    lacking = {
        rank: sorted(set(NAMES) - set(held)) for rank, held in enumerate(workers)
    }
    return {rank: names for rank, names in lacking.items() if names}
