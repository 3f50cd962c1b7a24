"""Which policy a server starts with, and how a wrong name is told."""

import pytest

from server_ext.config import (
    DEFAULT_POLICY,
    POLICIES,
    ConfigurationError,
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
