"""Hybrid or not, from a model's configuration, as vLLM itself has it."""

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server_ext.demo import CHECKPOINT
from server_ext.engine.compat import installed_version
from server_ext.model import HYBRIDS, is_hybrid
from server_ext.policy.config import ConfigurationError
from server_ext.serve import vllm_arguments

LATER = {
    "AliceAIForCausalLM",
    "ClefFlashForJointSchema",
    "MiniCPMOcrForConditionalGeneration",
}
"""Hybrids that 0.33.0 knows and 0.32.0 does not."""


def model(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_the_demo_is_a_hybrid() -> None:
    assert is_hybrid(str(CHECKPOINT))


QWEN = "Qwen3_5ForConditionalGeneration"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36}, False),
        ({"architectures": [QWEN], "text_config": {"num_hidden_layers": 2}}, True),
        ({"architectures": ["KimiLinearForCausalLM"]}, True),
        ({"architectures": ["KimiK3ForConditionalGeneration"]}, True),
        ({"architectures": ["BailingMoeV2_5ForCausalLM"]}, True),
        ({"architectures": ["NemotronH_Nano_VL_V2"]}, True),
        ({"architectures": None}, False),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False),
    ],
)
def test_the_architecture_decides(
    tmp_path: Path, config: dict[str, Any], expected: bool
) -> None:
    assert is_hybrid(model(tmp_path, **config)) is expected


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_an_unreadable_configuration_is_for_vllm_to_refuse(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert is_hybrid(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", None])
def test_a_folder_without_a_configuration_is_refused(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        vllm_arguments([str(tmp_path)], {})


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "../none", "~/none"])
def test_a_path_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="no such file or folder"):
        vllm_arguments([path], {})


def test_other_formats_and_names_are_for_vllm(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}", encoding="utf-8")
    single = tmp_path / "model.gguf"
    single.write_bytes(b"GGUF")
    for name in (str(tmp_path), str(single), "org/model", "model"):
        assert vllm_arguments([name], {})[0][1] == name


def test_only_a_hybrid_gets_flags_for_states() -> None:
    for hybrid in (True, False):
        flags = vllm_arguments(["m"], {}, hybrid=lambda _, kind=hybrid: kind)[0]
        assert ("--prefix-match-unit" in flags) is hybrid
        assert ("--mamba-cache-mode" in flags) is hybrid
        assert "--scheduler-cls" in flags


# --- against vLLM ---------------------------------------------------------------------


@functools.cache
def marked_by_vllm() -> set[str]:
    """Architectures of the installed vLLM whose class is ``IsHybrid``, by its source.

    vLLM's registry imports each model in a process of its own to tell; reading the
    class statements takes seconds for all of them.
    """
    package = Path(pytest.importorskip("vllm").__path__[0])
    bases: dict[str, set[str]] = {}
    for folder in (package / "model_executor" / "models", package / "models"):
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = {
                        ast.unparse(base).rpartition(".")[2] for base in node.bases
                    }
                    bases.setdefault(node.name, set()).update(names)
    marked = {"IsHybrid"}
    while more := {name for name, own in bases.items() if own & marked} - marked:
        marked |= more
    registry = package / "model_executor" / "models" / "registry.py"
    return {name for name, cls in registered(registry) if cls in marked}


def registered(registry: Path) -> Iterator[tuple[str, str]]:
    """Architecture and class of each entry of vLLM's registry."""
    for node in ast.parse(registry.read_text("utf-8")).body:
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(entry, ast.Tuple):
                    yield key.value, ast.literal_eval(entry)[-1]


def test_the_list_is_vllms() -> None:
    later = LATER if installed_version() == "0.32.0" else set()
    assert marked_by_vllm() == HYBRIDS - later


FAMILIES = {
    "BambaConfig": "BambaForCausalLM",
    "FalconH1Config": "FalconH1ForCausalLM",
    "GraniteMoeHybridConfig": "GraniteMoeHybridForCausalLM",
    "JambaConfig": "JambaForCausalLM",
    "KimiLinearConfig": "KimiLinearForCausalLM",
    "Lfm2Config": "Lfm2ForCausalLM",
    "Lfm2MoeConfig": "Lfm2MoeForCausalLM",
    "LlamaConfig": "LlamaForCausalLM",
    "NemotronHConfig": "NemotronHForCausalLM",
    "OlmoHybridConfig": "OlmoHybridForCausalLM",
    "Qwen3Config": "Qwen3ForCausalLM",
    "Qwen3NextConfig": "Qwen3NextForCausalLM",
    "Qwen3_5Config": "Qwen3_5ForConditionalGeneration",
    "Qwen3_5TextConfig": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeConfig": "Qwen3_5MoeForConditionalGeneration",
    "Zamba2Config": "Zamba2ForCausalLM",
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [None, ["attention"] * 4], ids=["", "attention"])
def test_config_files_of_every_family(
    family: str, layers: list[str] | None, tmp_path: Path
) -> None:
    """Transformers writes the file; `ModelConfig.is_hybrid` judges what it reads."""
    transformers = pytest.importorskip("transformers")
    from vllm.config import ModelConfig

    architecture = FAMILIES[family]
    config = getattr(transformers, family)(architectures=[architecture])
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    if layers is not None:
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"layer_types": layers})
        )
    written = SimpleNamespace(**json.loads(file.read_text("utf-8")))
    vllm_knows = SimpleNamespace(is_hybrid=architecture in marked_by_vllm())
    itself = SimpleNamespace(_model_info=vllm_knows, hf_config=written)
    assert is_hybrid(str(tmp_path)) is ModelConfig.is_hybrid.fget(itself)
