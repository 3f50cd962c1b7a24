"""Pages and pictures that scripts write are up to date, and so are their figures."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def script(name: str) -> ModuleType:
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_what_the_docstrings_say() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == script("build_api").build(), "run: python docs/build_api.py"


def test_figures_in_the_docs_are_those_of_the_results() -> None:
    for path, text in script("build_figures").build().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name}: run: python docs/build_figures.py"
        )


def test_the_drawn_tree_is_what_the_scheduler_plans() -> None:
    tree = script("build_tree")
    shown = (ROOT / "docs" / "tree.svg").read_text(encoding="utf-8")
    assert shown == tree.build(), "run: python docs/build_tree.py"
    state = tree.run()
    led = {point.leader for point in state.names if point.leader is not None}
    assert state.waits_at
    assert not led & state.waits_at.keys()  # a request that waits leads nothing
    assert "prefers-color-scheme: dark" in shown


@pytest.mark.parametrize("name", ["rounds", "round", "tree"])
def test_the_picture_is_an_image_with_a_title(name: str) -> None:
    root = ET.parse(ROOT / "docs" / f"{name}.svg").getroot()
    assert root.tag.endswith("svg")
    assert root[0].tag.endswith("title")


def _script(command: str) -> Path:
    _, *words = command.split()
    if words[0] == "-m":
        return (ROOT / words[1].replace(".", "/")).with_suffix(".py")
    return ROOT / words[0]


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem
)
def test_a_results_file_says_how_it_came_to_be(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    assert _script(results["command"]).is_file()
    assert {"versions", "commit", "machine", "raw", "claims"} <= results.keys()
    assert results["machine"]["cores"] >= 1
    assert results["claims"]
    for claim in results["claims"]:
        assert claim.keys() == {"name", "value", "unit", "target", "op", "met"}
        value, target = claim["value"], claim["target"]
        met = {
            "<": value < target,
            "<=": value <= target,
            ">": value > target,
            ">=": value >= target,
        }
        assert claim["met"] is met[claim["op"]], claim["name"]
