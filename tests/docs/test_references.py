"""What README and docs name is there: files, links, targets, policies, counters."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import radixflow_sdk
from server_ext.policy.config import POLICIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?)`")
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")


def page_id(path: Path) -> str:
    return path.name


def anchors(page: Path) -> set[str]:
    """GitHub's names of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_quoted_paths_exist(page: Path) -> None:
    for quoted in QUOTED.findall(page.read_text(encoding="utf-8")):
        first = quoted.split("/")[0]
        if first in FOLDERS and "NAME" not in quoted:
            assert (ROOT / quoted).exists(), quoted


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = re.compile(r"```sh\n.*?```|`make [^`]*`", re.DOTALL)
    code = "\n".join(shown.findall(page.read_text(encoding="utf-8")))
    assert set(MAKE.findall(code)) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_has_one_title_and_short_lines_outside_tables(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").split("\n")
    assert lines[0].startswith("# ")
    if page.name not in ("wire.md", "architecture.md"):
        assert not [x for x in lines if len(x) > 120 and not x.startswith(("|", "* "))]


@pytest.mark.parametrize(
    ("page", "most"),
    [
        ("README.md", 70),
        ("docs/quickstart.md", 150),
        ("docs/first-app.md", 150),
        ("docs/serve.md", 150),
        ("docs/scaling.md", 150),
    ],
)
def test_a_page_that_teaches_is_short(page: str, most: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= most


def test_the_readme_has_one_picture_and_one_table_of_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("![") == 1
    assert text.count("<!-- figures: ") == 1


def test_every_python_file_that_is_shown_as_a_module_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {"radixflow_sdk": set(), "server_ext": set()}
    for name, members in rooms.items():
        members.update(_rooms(ROOT / name))
        part = text.split(f"\n`{name}/`\n")[1].split("\n## ")[0].split("\n`")[0]
        shown = set(re.findall(r"^\| `([\w/]+?)/?` \|", part, re.MULTILINE))
        assert members - shown == set(), name
        there = [
            (ROOT / name / room).with_suffix(end) for room in shown for end in ENDS
        ]
        assert shown == {_room(path, ROOT / name) for path in there if path.exists()}


ENDS = ("", ".py")


def _room(path: Path, package: Path) -> str:
    return str(path.relative_to(package).with_suffix(""))


def _rooms(package: Path) -> set[str]:
    """Modules, and packages that are shown whole."""
    found: set[str] = set()
    for path in package.iterdir():
        if path.name in ("api", "engine", "policy"):
            found |= {f"{path.name}/{p.stem}" for p in path.glob("[a-z]*.py")}
        elif path.suffix == ".py" and (path.stem != "__init__" or _is_sdk(package)):
            found.add(path.stem)
        elif (path / "__init__.py").exists():
            found.add(path.name)
    return found


def _is_sdk(package: Path) -> bool:
    return package.name == "radixflow_sdk"


def test_every_policy_and_counter_is_described() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    policies = page.split("## Policies")[1].split("\n## ")[0]
    assert [name for name in POLICIES if f"`{name}`" not in policies] == []
    counters = page.split("## Counters")[1].split("\n## ")[0]
    module = ROOT / "server_ext" / "policy" / "counters.py"
    source = module.read_text(encoding="utf-8")
    assert [
        name for name in _fields(source, "Counters") if f"`{name}`" not in counters
    ] == []


def _fields(source: str, name: str) -> list[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            targets = [x.target for x in node.body if isinstance(x, ast.AnnAssign)]
            return [t.id for t in targets if isinstance(t, ast.Name)]
    raise AssertionError(f"no class {name}")


def test_every_route_is_described() -> None:
    router = (ROOT / "server_ext" / "api" / "router.py").read_text(encoding="utf-8")
    server = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    wire = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    for method, path in re.findall(r'@router\.(get|post)\(\s*"([^"]+)"', router):
        assert f"`{method.upper()} {path}`" in server
        assert f"`{method.upper()} {path}`" in wire


def test_every_error_code_of_the_wire_is_one_that_the_server_gives() -> None:
    page = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    sources = "\n".join(
        p.read_text() for p in (ROOT / "server_ext" / "api").glob("*.py")
    )
    rows = re.findall(r"^\| \d{3} \| `(\w+)` \|", page, re.MULTILINE)
    assert rows
    assert [code for code in rows if f'"{code}"' not in sources] == []


def test_every_public_error_has_a_word_in_the_docs() -> None:
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [n for n in radixflow_sdk.__all__ if f"### {n}\n" not in api] == []


def test_the_changelog_has_the_packaged_version_or_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(Unreleased|0\.1\.0)\]", text, re.MULTILINE)
