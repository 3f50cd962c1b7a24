"""Whether a model is a hybrid, from its ``config.json``.

The launcher asks before vLLM is imported.  A hybrid has recurrent layers beside its
attention and takes flags that vLLM refuses for other models.  The answer is vLLM's
own (``ModelConfig.is_hybrid``): a test compares the list below with the registries of
the tested versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server_ext.policy.config import ConfigurationError

__all__ = ["HYBRIDS", "check_model", "is_hybrid"]

HYBRIDS = frozenset(
    {
        "AliceAIForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "ClefFlashForJointSchema",
        "ColBERTLfm2Model",
        "ColQwen3_5",
        "FalconH1ForCausalLM",
        "Glm5NextForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GraniteMoeHybridForCausalLM",
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "JambaForCausalLM",
        "JambaForSequenceClassification",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "MiniCPMOcrForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "OlmoHybridForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForCausalLM",
        "Qwen4ExpForConditionalGeneration",
        "Zamba2ForCausalLM",
    }
)
"""Architectures that vLLM 0.32.0 or 0.33.0 marks ``IsHybrid``."""
_ATTENTION = frozenset({"attention", "full_attention"})


def check_model(model: str) -> None:
    """Refuse a path that holds no model.

    Args:
        model: a folder, or a name on the Hugging Face hub (which is not looked up).

    Raises:
        ConfigurationError: there is no such path, or its ``config.json`` is missing or
            no JSON object.
    """
    path = Path(model)
    if not path.exists():
        if model.startswith((".", "/", "~")):
            raise ConfigurationError(f"model {model}: there is no such file or folder")
        return
    config = path / "config.json"
    # Mistral's own format has the other file, and a GGUF model is a file itself.
    if path.is_file() or (path / "params.json").exists():
        return
    if not config.is_file():
        raise ConfigurationError(f"model {model}: the folder has no config.json")
    try:
        is_object = isinstance(json.loads(config.read_bytes()), dict)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{config} cannot be read: {error}") from error
    if not is_object:
        raise ConfigurationError(f"{config} is no JSON object")


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
    if HYBRIDS.isdisjoint(config.get("architectures") or ()):
        return False
    # Granite 4.0 Micro has the architecture of a hybrid, and attention layers only.
    layers = config.get("layer_types")
    return layers is None or not _ATTENTION.issuperset(layers)


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
