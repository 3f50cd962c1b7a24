"""Run the client's tests at the lowest and the newest versions: ``make bounds``.

    python tests/sdk/at_bounds.py [any pytest argument]

Each Python from 3.11 on that is found here gets two environments in ``.venv-bounds``:
one with the lowest versions that ``pyproject.toml`` allows, one with the newest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-bounds"
PYTHONS = ("3.11", "3.12", "3.13")
TOOLS = ("hypothesis", "packaging", "pytest", "pytest-asyncio", "pytest-timeout")
TESTED = ("trio", "opentelemetry-sdk")  # of the extra "dev", at its lowest as well


def requirements(*, lowest: bool) -> list[str]:
    """What the client, its command and its tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["otel"]]
    wanted += [one for one in extras["dev"] if one.startswith(TESTED)]
    if lowest:
        wanted = [re.sub(r">=([0-9.]+).*", r"==\1", one) for one in wanted]
    return [*wanted, *TOOLS]


def pythons() -> Iterator[str]:
    """The interpreters that are found, one of each version."""
    for version in PYTHONS:
        path = shutil.which(f"python{version}")
        told = [path, "-c", "import ensurepip, sys; print(*sys.version_info[:2])"]
        if path is not None:
            done = subprocess.run(told, capture_output=True, text=True, check=False)
            if done.stdout.split() == version.split("."):
                yield path


def environment(python: str, *, lowest: bool) -> Path:
    """The interpreter of an environment, made unless it is there already."""
    wanted = requirements(lowest=lowest)
    name = f"{Path(python).name}-{'lowest' if lowest else 'newest'}"
    folder = FOLDER / name
    held = folder / "held.txt"
    made = folder / "bin" / "python"
    if not held.exists() or held.read_text() != "\n".join(wanted):
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(made), "-m", "pip", "install", "--disable-pip-version-check", "-qq"]
        subprocess.run([*pip, *wanted], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
        held.write_text("\n".join(wanted))
    return made


def main(arguments: Sequence[str]) -> int:
    """Run all of them; 1 where one fails."""
    failed = []
    found = list(pythons())
    for python in found:
        for lowest in (True, False):
            made = environment(python, lowest=lowest)
            sys.stderr.write(f"{made.parent.parent.name}\n")
            command = [str(made), "-m", "pytest", "tests/sdk", "-q", *arguments]
            if subprocess.run(command, cwd=ROOT, check=False).returncode:
                failed.append(made.parent.parent.name)
    if not found:
        failed.append(f"no Python of {', '.join(PYTHONS)}")
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
