"""The door: what is public is named, sorted, documented, and light to import."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import radixflow_sdk
from radixflow_sdk import testing

PUBLIC = [getattr(radixflow_sdk, name) for name in radixflow_sdk.__all__]


def methods() -> Iterator[Any]:
    for owner in (radixflow_sdk.RadixFlowClient, radixflow_sdk.RadixFlow):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") and name not in ("aclose", "close"):
                yield pytest.param(method, id=f"{owner.__name__}.{name}")


def test_the_names_are_sorted_and_complete() -> None:
    assert radixflow_sdk.__all__ == sorted(radixflow_sdk.__all__)
    found = {
        name
        for name, value in vars(radixflow_sdk).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert found == set(radixflow_sdk.__all__)


@pytest.mark.parametrize("value", PUBLIC, ids=lambda value: value.__name__)
def test_every_name_is_documented(value: Any) -> None:
    assert value.__doc__
    assert not value.__doc__.startswith(f"{value.__name__}(")  # what dataclass makes up
    for name, member in inspect.getmembers(value, inspect.isfunction):
        if not name.startswith("_"):
            assert member.__doc__, f"{value.__name__}.{name}"


@pytest.mark.parametrize("method", list(methods()))
def test_every_call_says_what_it_raises(method: Callable[..., Any]) -> None:
    assert "Raises:" in str(method.__doc__)


@pytest.mark.parametrize("method", list(methods()))
def test_at_most_two_arguments_by_position(method: Callable[..., Any]) -> None:
    kinds = [
        parameter.kind for parameter in inspect.signature(method).parameters.values()
    ]
    assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 3  # self included


@pytest.mark.parametrize("kind", [radixflow_sdk.RadixFlowClient, testing.FakeTransport])
def test_constructors_say_their_arguments(kind: type) -> None:
    doc = str(kind.__doc__)
    for name in inspect.signature(kind).parameters:
        assert f"        {name}: " in doc


def test_importing_is_light() -> None:
    heavy = ["vllm", "torch", "fastapi", "typer", "server_ext"]
    code = f"import sys, radixflow_sdk; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
