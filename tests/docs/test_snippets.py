"""The Python that the docs show runs as it stands, on a client without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import radixflow_sdk
from radixflow_sdk.testing import FakeTransport

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CLI = "".join(p.read_text() for p in (ROOT / "radixflow_sdk" / "cli").glob("*.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> Iterator[Any]:
    for page in PAGES:
        if page.name == "api.md":  # signatures, and fragments of docstrings
            continue
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        for number, code in enumerate(blocks):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    """Every client of the snippet answers from a table."""
    fake = FakeTransport({"Oslo": -0.1, "Port Alma": -0.1}, default=-4.0)
    for name in ("RadixFlowClient", "RadixFlow"):
        kind = getattr(radixflow_sdk, name)
        monkeypatch.setattr(radixflow_sdk, name, _with(kind, fake))
    return fake


def _with(kind: Any, fake: FakeTransport) -> Any:
    def make(*args: Any, transport: Any = None, **options: Any) -> Any:
        return partial(kind, *args, **options)(transport=transport or fake)

    return make


@pytest.mark.parametrize("code", list(snippets()))
def test_a_snippet_runs(
    code: str, transport: FakeTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert "Oslo" in shown or "Port Alma" in shown or not transport.requests


def test_the_readme_has_an_example_of_about_ten_lines() -> None:
    (example,) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len([line for line in example.split("\n") if line.strip()]) <= 11


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_name_commands_that_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.split("\n"):
            words = line.split("#")[0].split()
            if words[:2] == ["python", "-m"]:
                module = words[2].replace(".", "/")
                assert (ROOT / module).with_suffix(".py").is_file(), line
            elif words[:1] == ["python"]:
                assert (ROOT / words[1]).is_file(), line
            elif words[:1] == ["radixflow"]:
                assert f'"{words[1]}"' in CLI, line
