"""``radixflow doctor --exact``: nothing is wrong with a server, or it says what is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixflow_sdk import cli
from tests.e2e.served import Served, serving
from tests.gpu.v2 import ROOT, second_runner

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]


def doctor(server: Served) -> Any:
    return CliRunner().invoke(cli.app, ["doctor", server.url, "--exact"])


def float32(worker: str) -> tuple[str, ...]:
    """Flags under which rounding is 1e-5 nat, and a difference is a fault."""
    return ("--dtype", "float32", "--worker-cls", worker)


def check(done: Any, runner: str) -> None:
    assert done.exit_code == 0, done.output
    assert f"model runner {runner}" in done.output
    for phase in ("in a group", "again", "all groups at once"):
        assert f"{phase}: " in done.output
    assert "repeated groups resume as far as they can" in done.output


def test_nothing_is_wrong(tmp_path: Path) -> None:
    flags = float32("tests.e2e.float32_worker.Float32Worker")
    with serving(tmp_path, *flags, PYTHONPATH=str(ROOT)) as server:
        done = doctor(server)
    check(done, "V1")
    assert len(re.findall(r"at most 0\.00\d\d nat", done.output)) == 4


def test_nothing_is_wrong_on_v2(tmp_path: Path) -> None:
    with serving(tmp_path, **second_runner()) as server:
        check(doctor(server), "V2")


@pytest.mark.parametrize("worker", ["CopiesHalfBlocks", "CopiesAllAtOnce"])
def test_each_error_of_the_block_copy_is_found(worker: str, tmp_path: Path) -> None:
    flags = float32(f"tests.gpu.broken_workers.{worker}")
    with serving(tmp_path, *flags, PYTHONPATH=str(ROOT)) as server:
        done = doctor(server)
    assert done.exit_code == 1, done.output
    assert "BAD  wrong by " in done.output
