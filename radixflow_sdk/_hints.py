"""The wire's hints, written (docs/wire.md, "Hints"), and the id that steers routers.

Hints are for servers that are spoken to request by request: the dict goes into
``vllm_xargs``. A hint changes when a request runs, never what is computed. This room
must not decide anything: it only spells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from radixflow_sdk.types import Document

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


def session_id(salt: str | None, model: str | None, document: Document) -> str:
    """``X-Session-ID``: the same for every request about one document, on any machine.

    Args:
        salt: Isolates the prefix cache, and so belongs to the document.
        model: The served model.
        document: As the app gave it: without question and options.
    """
    content = document if isinstance(document, str) else list(document)
    spelled = json.dumps([salt, model, content], sort_keys=True, default=_plain)
    return f"s-{hashlib.blake2b(spelled.encode(), digest_size=16).hexdigest()}"


def _plain(part: object) -> object:
    return dict(part) if isinstance(part, Mapping) else str(part)
