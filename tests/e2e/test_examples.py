"""The examples, run as their readers run them, on the real server."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.served import KEY, Served

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:8000"


def run(server: Served, *words: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "RADIXFLOW_BASE_URL": server.url,
            "RADIXFLOW_API_KEY": KEY,
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_multiple_choice(server: Served) -> None:
    shown = run(server, sys.executable, "examples/multiple_choice.py")
    rights = dict(re.findall(r"(\w+): (\d+) of 18 right", shown))
    assert list(rights) == ["sum", "mean", "char", "byte", "pmi"]
    assert int(rights["sum"]) >= 15
    assert "tokens computed" in shown


def test_rag_fanout(server: Served) -> None:
    shown = run(server, sys.executable, "examples/rag_fanout.py")
    assert "42 questions, 6 passages, 5 retrieved" in shown
    counts = dict(re.findall(r"^([a-z 0-9]+): (\d+)$", shown, re.MULTILINE))
    assert "retrieved" in counts
    assert all(0 <= int(count) <= 42 for count in counts.values())
    assert len(counts) == 5


@pytest.mark.slow  # imports lm-eval and all of its tasks, twice
def test_lm_eval(server: Served, tmp_path: Path) -> None:
    page = (ROOT / "examples" / "lm_eval.md").read_text(encoding="utf-8")
    for name in ("tests", "server_ext"):
        (tmp_path / name).symlink_to(ROOT / name)
    (command,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    words = shlex.split(command.replace("\\\n", "").replace(URL, server.url))
    assert "excerpt_pubmedqa" in run(server, *words, folder=tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "program.py").write_text(program.replace(URL, server.url))
    shown = run(server, sys.executable, "program.py", folder=tmp_path)
    assert "'acc_norm,none'" in shown
