"""Which policy a server starts with, and how a wrong name is told."""

import pytest

from server_ext.policy.config import (
    DEFAULT_POLICY,
    POLICIES,
    ConfigurationError,
    default_costs,
    policy_from_config,
)


def test_nothing_said_is_the_default() -> None:
    for config in ({}, None, "text", {"other": 1}, {"radixflow": {}}):
        assert policy_from_config(config, {}) == POLICIES[DEFAULT_POLICY]
    assert policy_from_config({}, {"RADIXFLOW_POLICY": ""}).name == DEFAULT_POLICY


def test_the_config_goes_before_the_environment() -> None:
    environ = {"RADIXFLOW_POLICY": "radix"}
    assert policy_from_config({}, environ).name == "radix"
    config = {"radixflow": {"policy": DEFAULT_POLICY}}
    assert policy_from_config(config, environ).name == DEFAULT_POLICY


@pytest.mark.parametrize("name", ["fastest", "Radix", " radix"])
def test_an_unknown_policy_names_the_known_ones(name: str) -> None:
    for config, environ in (
        ({"radixflow": {"policy": name}}, {}),
        ({}, {"RADIXFLOW_POLICY": name}),
    ):
        with pytest.raises(ConfigurationError, match="radix, ") as caught:
            policy_from_config(config, environ)
        assert repr(name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_section_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="must be an object"):
        policy_from_config({"radixflow": "radix"}, {})
    with pytest.raises(ConfigurationError, match="'polcy'"):
        policy_from_config({"radixflow": {"polcy": "radix"}}, {})


def test_the_native_policy_adds_nothing() -> None:
    radix = POLICIES["radix"]
    assert (radix.traversal, radix.readiness, radix.hints) == (False, "native", False)
    assert radix.as_dict()["name"] == "radix"
    assert not radix.tree
    assert [name for name, policy in POLICIES.items() if policy.native] == ["radix"]
    assert radix.on("cuda", 9.0).native


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_costs_are_the_devices_where_nobody_set_them(device: str) -> None:
    open_, set_ = POLICIES["radixflow+"], {"row_tokens": 0, "round_tokens": 7}
    on_device = open_.on(device, 9.0)
    assert (open_.row_tokens, open_.round_tokens) == (None, None)
    assert 0 < (on_device.row_tokens or 0) < (on_device.round_tokens or 0)
    altered = policy_from_config({"radixflow": set_}, {}).on(device, 9.0)
    assert (altered.row_tokens, altered.round_tokens) == (0, 7)


@pytest.mark.parametrize(
    ("weights", "row", "round_"), [(0.5, 14, 1250), (7.0, 1, 229), (70.0, 1, 158)]
)
def test_a_round_of_a_small_model_costs_more_of_its_tokens(
    weights: float, row: int, round_: int
) -> None:
    assert default_costs("cuda", weights) == (row, round_)
    assert default_costs("cuda", 0.0) > default_costs("cuda", weights)


@pytest.mark.parametrize(
    "wrong", [{"traversal": False}, {"readiness": "native"}, {"row_tokens": -1}]
)
def test_a_tree_without_what_it_needs(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"tree|row_tokens"):
        policy_from_config({"radixflow": wrong}, {})
