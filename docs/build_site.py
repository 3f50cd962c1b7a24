"""Hooks of mkdocs: the README as the home page, and files that pages link to.

Pages are written to be read in the repository, where links lead out of docs/ and into
it. The site has docs/ at its root; it takes the README, the changelog and every file
that a page links to along, and links follow. `make docs` runs this.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the README, the changelog, and what pages link to outside of docs/."""
    names = {"README.md", "CHANGELOG.md"}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for _, target in LINK.findall(page.read_text(encoding="utf-8")):
            name = posixpath.normpath(
                posixpath.join(page.parent.relative_to(ROOT).as_posix(), target)
            )
            if not name.startswith("docs/") and (ROOT / name).is_file():
                names.add(name)
    for name in sorted(names):
        source = str(ROOT / name)
        files.append(File.generated(config, _on_site(name), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Let links lead where the site has what they name."""
    there = posixpath.dirname(page.file.src_uri)
    name = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    here = posixpath.dirname(name)

    def mend(link: re.Match[str]) -> str:
        target = _on_site(posixpath.normpath(posixpath.join(here, link[2])))
        end = "/" if link[2].endswith("/") else ""
        return link[1] + posixpath.relpath(target, there or ".") + end

    return LINK.sub(mend, markdown)


def _on_site(name: str) -> str:
    """A file of the repository as the site names it."""
    return "index.md" if name == "README.md" else name.removeprefix("docs/")
