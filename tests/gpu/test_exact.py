"""``radixflow doctor --exact``: nothing is wrong with a server, or it says what is."""

from __future__ import annotations

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


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_nothing_is_wrong(runner: str, tmp_path: Path) -> None:
    with serving(tmp_path, **(second_runner() if runner == "V2" else {})) as server:
        done = doctor(server)
    assert done.exit_code == 0, done.output
    assert f"model runner {runner}" in done.output
    for phase in ("in a group", "again", "all groups at once"):
        assert f"{phase}: " in done.output
    assert "repeated groups resume as far as they can" in done.output


@pytest.mark.parametrize("worker", ["CopiesHalfBlocks", "CopiesAllAtOnce"])
def test_each_error_of_the_block_copy_is_found(worker: str, tmp_path: Path) -> None:
    flags = ("--worker-cls", f"tests.gpu.broken_workers.{worker}")
    with serving(tmp_path, *flags, PYTHONPATH=str(ROOT)) as server:
        done = doctor(server)
    assert done.exit_code == 1, done.output
    assert "BAD  wrong by " in done.output
