"""The bundled demo: a tiny hybrid checkpoint that reads, and the texts it reads.

The room holds data and the generator of that data. `CHECKPOINT` is a folder that vLLM
loads as it stands; `HELD_OUT` is a small fixed set of documents and questions that the
checkpoint never saw. Importing the room must not import torch, transformers or vllm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["CHECKPOINT", "HELD_OUT"]

CHECKPOINT: Final = Path(__file__).resolve().parent / "checkpoint"
HELD_OUT: Final = Path(__file__).resolve().parent / "held_out.json"
