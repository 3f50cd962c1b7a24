"""Run the engine tests on the Python of vLLM 0.33.0, without a GPU: ``make compat``.

    python tests/engine/compat_033.py [any pytest argument]

vLLM 0.33.0 has no CPU wheel.  Its scheduler is plain Python though, and vLLM takes the
CPU platform where the version of its distribution ends in ``+cpu``.  So the wheel is
downloaded once, unpacked beside the packages of this environment without its compiled
libraries (whose absence vLLM reports and bears), given such a version, and put before
the installed vLLM on the path.  The other packages are those of the 0.32.0 lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.33.0"
ROOT = Path(__file__).resolve().parents[2]
UNPACKED = Path(sys.prefix) / f"vllm-{VERSION}"
LIBRARIES = (".so", ".cubin", ".ptx")


def fetch(folder: Path) -> None:
    """Download the wheel (0.8 GB; ``PIP_FIND_LINKS`` may name a copy) and unpack it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        download += ["--only-binary", ":all:", "--dest", scratch, f"vllm=={VERSION}"]
        subprocess.run(download, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            wanted = [n for n in archive.namelist() if not n.endswith(LIBRARIES)]
            archive.extractall(unpacked, wanted)
        name_as_cpu_build(unpacked)
        unpacked.rename(folder)


def name_as_cpu_build(unpacked: Path) -> None:
    """Let ``importlib.metadata`` answer with a version that ends in ``+cpu``."""
    native = unpacked / f"vllm-{VERSION}.dist-info"
    metadata = (native / "METADATA").read_text(encoding="utf-8")
    renamed = unpacked / f"vllm-{VERSION}+cpu.dist-info"
    renamed.mkdir()
    (renamed / "METADATA").write_text(
        metadata.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {VERSION}+cpu\n", 1),
        encoding="utf-8",
    )
    shutil.rmtree(native)


def main(arguments: list[str]) -> int:
    """Fetch if need be, then run pytest; its exit status."""
    if not UNPACKED.exists():
        sys.stderr.write(f"Fetching vLLM {VERSION} into {UNPACKED} (once) ...\n")
        fetch(UNPACKED)
    path = [str(UNPACKED), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "RADIXFLOW_TEST_VLLM": VERSION,
    }
    command = [sys.executable, "-m", "pytest", "tests/engine", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
