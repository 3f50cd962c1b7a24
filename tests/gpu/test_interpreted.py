"""Run the tests of `interpreted/` in a process of their own.

vLLM decides at import whether Triton is there, so the interpreter needs a process in
which nothing of vLLM is loaded yet.
"""

import os
import subprocess
import sys

import pytest

from tests.gpu.v2 import HERE, ROOT, interpreter


@pytest.mark.timeout(900)
def test_kernels_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, str(HERE / "interpreted")],
        env=os.environ | interpreter(),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "passed" in ran.stdout
    assert "skipped" not in ran.stdout
