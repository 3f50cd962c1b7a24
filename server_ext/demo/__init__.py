"""The bundled demo: a tiny hybrid checkpoint, and questions that it never saw.

`CHECKPOINT` is a folder that vLLM loads as it stands. `HELD_OUT` is a fixed set of
documents and questions; ``examples/reading.py`` generated it and the training text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["CHECKPOINT", "HELD_OUT"]

CHECKPOINT: Final = Path(__file__).resolve().parent / "checkpoint"
HELD_OUT: Final = Path(__file__).resolve().parent / "held_out.json"
