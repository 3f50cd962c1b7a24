"""A model's size from its configuration, for the costs of a row and a round."""

from types import SimpleNamespace
from typing import Any

import pytest

from server_ext.engine.compat import weights


def config(devices: int = 1, **sizes: Any) -> Any:
    model = SimpleNamespace(
        hf_text_config=SimpleNamespace(**sizes),
        get_hidden_size=lambda: 1000,
        get_num_layers=lambda parallel: 10,
    )
    parallel = SimpleNamespace(tensor_parallel_size=devices)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


def billions(wide: int) -> float:
    return 10 * 1000 * (4 * 1000 + 3 * wide) / 1e9


@pytest.mark.parametrize(
    ("sizes", "wide"),
    [
        ({"intermediate_size": 3000}, 3000),
        ({}, 4000),
        ({"intermediate_size": [3000, 2000]}, 4000),
        ({"num_experts_per_tok": 8, "moe_intermediate_size": 100}, 800),
        (
            {
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 100,
                "shared_expert_intermediate_size": 50,
            },
            250,
        ),
        (
            {
                "intermediate_size": 300,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": [100] * 10,
            },
            2400,
        ),
        ({"intermediate_size": 300, "num_experts_per_tok": [8] * 10}, 300),
    ],
)
def test_weights_that_a_token_passes(sizes: dict[str, Any], wide: int) -> None:
    assert weights(config(**sizes)) == pytest.approx(billions(wide))
    assert weights(config(4, **sizes)) == pytest.approx(billions(wide) / 4)
