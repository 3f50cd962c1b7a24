"""The programs that the docs name run, and fail with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(900)
def test_the_demo_runs_without_a_terminal() -> None:
    done = run("examples/demo.py", seconds=880)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().split("\n")[-1]
    assert "of 24 right" in last
    for figure in ("seconds", "tokens", "rounds"):
        assert f"{figure} " in last


@pytest.mark.slow
@pytest.mark.server
def test_a_demo_whose_server_does_not_come_up_says_so() -> None:
    done = run("examples/demo.py", "--start-timeout", "1", seconds=120)
    assert done.returncode == 1
    assert "The server was not up after 1 s." in done.stderr
    log = done.stderr.split("The server's log: ")[1].strip()
    assert Path(log).is_file()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1200)
def test_the_quick_benchmark_writes_its_results() -> None:
    name = f"quick_test_{os.getpid()}"
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    try:
        done = run("benchmarks/end_to_end.py", "--quick", "--name", name, seconds=1180)
        assert done.returncode == 0, done.stderr
        results = json.loads(path.read_text(encoding="utf-8"))
    finally:
        path.unlink(missing_ok=True)
    arms = {(seen["mode"], seen["arm"]) for seen in results["raw"]}
    assert ("label", "stock") in arms
    assert ("likelihood", "radixflow+") in arms
    by_name = {claim["name"]: claim for claim in results["claims"]}
    assert by_name["label, quick: rounds of radixflow+ / radix"]["met"]
    (difference,) = [n for n in by_name if "largest difference" in n]
    assert by_name[difference]["met"]
