"""LoRA adapters that a request may name, each load of one told from the others.

vLLM's block keys contain an adapter's name and path, so an adapter that is reloaded
from the same path keeps the blocks of its earlier weights.  Here the number of the load
enters the cache salt: what earlier weights computed is never read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.datastructures import State

__all__ = ["Adapter", "Adapters"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter as it is loaded now.

    Attributes:
        request: vLLM's ``LoRARequest``.
        load: which of the loads under its name this is, from 1.
    """

    request: Any
    load: int = 1

    def salted(self, salt: str | None) -> str:
        """The cache salt of its requests."""
        return f"{salt or ''}\0{self.request.lora_name}\0{self.load}"


class Adapters:
    """The adapters that requests named so far."""

    def __init__(self) -> None:
        self._known: dict[str, Adapter] = {}

    def find(self, state: State, name: str | None) -> Adapter | None:
        """The adapter called `name`, or None where there is none.

        vLLM keeps one ``LoRARequest`` a load, so another object is another load.
        """
        loaded = adapters_of(state).get(name or "")
        if loaded is None:
            return None
        known = self._known.get(loaded.lora_name)
        if known is None:
            known = Adapter(loaded)
        elif known.request is not loaded:
            known = Adapter(loaded, known.load + 1)
        self._known[loaded.lora_name] = known
        return known


def adapters_of(state: State) -> Mapping[str, Any]:
    """Those that vLLM's API server has loaded, by name."""
    models = getattr(state, "openai_serving_models", None)
    loaded: Mapping[str, Any] = getattr(models, "lora_requests", {})
    return loaded
