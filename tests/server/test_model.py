"""Hybrid or not, from a model's configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from server_ext.demo import CHECKPOINT
from server_ext.model import is_hybrid
from server_ext.serve import vllm_arguments


def model(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_the_demo_is_a_hybrid() -> None:
    assert is_hybrid(str(CHECKPOINT))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36}, False),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"text_config": {"layer_types": ["linear_attention"]}}, True),
        ({"text_config": {"num_hidden_layers": 2}}, False),
        ({"hybrid_override_pattern": "M-M*"}, True),
        ({"mamba_d_state": 128}, True),
    ],
)
def test_layers_decide(tmp_path: Path, config: dict[str, Any], expected: bool) -> None:
    assert is_hybrid(model(tmp_path, **config)) is expected


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_an_unreadable_configuration_is_for_vllm_to_refuse(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert is_hybrid(str(tmp_path))


def test_only_a_hybrid_gets_flags_for_states() -> None:
    for hybrid in (True, False):
        flags = vllm_arguments(["m"], {}, hybrid=lambda _, kind=hybrid: kind)[0]
        assert ("--prefix-match-unit" in flags) is hybrid
        assert ("--mamba-cache-mode" in flags) is hybrid
        assert "--scheduler-cls" in flags
