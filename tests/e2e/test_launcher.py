"""``radixflow serve``: a stop that leaves nothing, refusals by the real engine."""

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.loads import loads
from tests.e2e.served import SECONDS_TO_START, body, group_members, launched, serving

pytestmark = pytest.mark.server


@pytest.mark.slow  # two servers on two cores: the second one's stop then takes minutes
def test_ctrl_c_stops_the_server_and_its_workers(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        members = server.alive()
        assert len(members) > 1  # the engine runs in a process of its own
        settings = server.stats()["settings"]
        log = server.log.read_text("utf-8")
        assert f"block {settings['block_size']}" in log
        assert f"{settings['rows']} rows a round, async scheduling" in log
        many = body(loads()[-1].document, [f" {number}" for number in range(2000)])
        ends: list[object] = []

        def ask() -> None:
            try:
                ends.append(server.post(many))
            except httpx.TransportError as error:
                ends.append(error)

        busy = threading.Thread(target=ask)
        busy.start()
        while not server.in_flight():
            assert busy.is_alive(), ends
            time.sleep(0.01)
        os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does
        assert server.process.wait(120) == 0
        busy.join()
        assert len(ends) == 1
        deadline = time.monotonic() + 10
        while group_members(server.process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not group_members(server.process.pid)
        # vLLM logs that its engine is gone; what is ours has nothing to add.
        assert "server_ext/" not in server.log.read_text("utf-8")[len(log) :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--max-num-batched-tokens", "130", "--policy", "radixflow"],
            "raise --max-num-batched-tokens",
        ),
        (["--additional-config", '{"radixflow": {"policy": "x"}}'], "unknown"),
    ],
    ids=["small budget", "policy"],
)
def test_the_engine_refuses_in_one_sentence(
    tmp_path: Path, flags: list[str], told: str
) -> None:
    with launched(tmp_path, *flags) as (process, _, log):
        assert process.wait(SECONDS_TO_START) == 2
        *_, last = log.read_text("utf-8", errors="replace").splitlines()
    assert last.startswith("radixflow serve: refused: ")
    assert told in last
