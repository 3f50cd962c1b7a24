"""What kind of model a name stands for, read from its ``config.json``.

The launcher asks before vLLM is imported: a model without recurrent layers has one
group of caches, and vLLM refuses a match unit finer than its blocks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["is_hybrid"]

_RECURRENT_KEYS = frozenset(
    {
        "attn_layer_period",
        "conv_L_cache",
        "hybrid_override_pattern",
        "layers_block_type",
        "linear_num_value_heads",
        "mamba_d_state",
        "mamba_num_heads",
        "ssm_state_size",
    }
)
"""What the configurations of hybrid models have and those of others have not."""
_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def is_hybrid(model: str) -> bool:
    """Whether a model has recurrent layers beside its attention.

    Args:
        model: a folder, or a name on the Hugging Face hub.

    Returns:
        True also where no configuration can be read: vLLM will say why.
    """
    config = _read(model)
    if config is None:
        return True
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, Mapping) else [config]
    return any(_recurrent(part) for part in parts)


def _recurrent(config: Mapping[str, Any]) -> bool:
    layers = config.get("layer_types") or ()
    return bool(_RECURRENT_KEYS & config.keys() or set(layers) - _ATTENTION)


def _read(model: str) -> dict[str, Any] | None:
    try:
        path = Path(model) / "config.json"
        if not path.is_file():
            # A dependency of vLLM, which downloads the same file in a moment.
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(model, "config.json"))
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ImportError, OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
