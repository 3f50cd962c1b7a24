"""What an installed RadixFlow brings: typing markers, entry points, a whole lock."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(
    re.findall(
        r"^([A-Za-z0-9._-]+)==(\S+)$",
        (ROOT / "requirements" / "server-cpu.lock").read_text(),
        re.MULTILINE,
    )
)


@pytest.mark.parametrize("package", ["radixflow_sdk", "server_ext"])
def test_package_is_marked_as_typed(package: str) -> None:
    assert resources.files(package).joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("console_scripts", "radixflow_sdk.cli:main"),
        ("vllm.endpoint_plugins", "server_ext.api.plugin:RadixFlowEndpoints"),
        ("vllm.general_plugins", "server_ext.engine.plugin:register"),
    ],
)
def test_entry_point_is_declared_and_loads(group: str, target: str) -> None:
    (entry,) = metadata.entry_points(group=group, name="radixflow")
    assert entry.value == target
    assert callable(entry.load())


@pytest.mark.parametrize(
    "requirement",
    [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["cli"],
        *PROJECT["optional-dependencies"]["server-cpu"],
        *PROJECT["optional-dependencies"]["dev"],
    ],
)
def test_lock_satisfies_what_the_project_asks_for(requirement: str) -> None:
    wanted = Requirement(requirement)
    assert wanted.name in LOCKED
    assert wanted.specifier.contains(LOCKED[wanted.name])


def test_lock_leaves_out_what_does_not_import_beside_the_cpu_torch() -> None:
    assert LOCKED["torch"].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec"} & LOCKED.keys()


def test_base_install_is_small() -> None:
    names = [Requirement(line).name for line in PROJECT["dependencies"]]
    assert names == ["anyio", "httpx", "pydantic", "tenacity"]


def test_the_wheel_leaves_out_what_only_the_examples_need() -> None:
    modules = {path.stem for path in (ROOT / "server_ext").rglob("*.py")}
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {"reading", "smollm2"} <= examples - modules
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert include["packages"]["find"]["include"] == ["radixflow_sdk*", "server_ext*"]
