"""What holding costs: processor time of an idle engine, and how well a deadline is met.

    python -m benchmarks.idle

On the real server under the policy ``radixflow`` (flexible admission): the engine's
processor time while there is nothing to do, beside vLLM's own scheduler, and while one
branch is held (with ``hold_ms`` 1000, so that there is time to look); then branches one
by one on an idle engine with ``hold_ms`` 5, each of which has to wait for its deadline:
by how much the release comes later.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks._harness import Claim, Server, show_claims, spread, write_results

HOLD_MS = 5
BRANCHES = 300
IDLE_SECONDS = 10.0
LONG_HOLD_MS = 1000
TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds(group: int) -> dict[str, float]:
    """Processor time so far of each process of a group, by the process's name."""
    found: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        fields = after.split()
        if int(fields[2]) == group:
            name = before.partition("(")[2]
            used = (int(fields[11]) + int(fields[12])) / TICK
            found[name] = found.get(name, 0.0) + used
    return found


def share_of_a_core(server: Server, seconds: float) -> dict[str, float]:
    """Processor time of the engine's processes over the next `seconds`, as a share."""
    before, began = processor_seconds(server.group), time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - began
    after = processor_seconds(server.group)
    return {
        name: round((after[name] - before.get(name, 0.0)) / wall, 4)
        for name in after
        if "VLLM" in name
    }


def serve(hold_ms: int) -> Server:
    """A server that holds branches for `hold_ms`."""
    policy = {"radixflow": {"policy": "radixflow", "hold_ms": hold_ms}}
    return Server("HoldNotingScheduler", ["--additional-config", json.dumps(policy)])


def ask(server: Server, number: int) -> None:
    """Score one branch."""
    body: dict[str, Any] = {
        "document": {"text": f"Anna has {number} keys."},
        "branches": [{"text": " One of them is red."}],
    }
    httpx.post(f"{server.url}/v1/branches", json=body, timeout=60).raise_for_status()


def overshoots() -> tuple[list[float], dict[str, float]]:
    """Milliseconds past the deadline of each branch; and the idle engine's share."""
    with serve(HOLD_MS) as server:
        server.wait()
        for number in range(5):  # first-use costs
            ask(server, number)
        idle = share_of_a_core(server, IDLE_SECONDS)
        mark = server.mark()
        for number in range(BRANCHES):
            ask(server, 100 + number)
        notes = server.rounds_since(mark)
    held = [note["held_s"] for note in notes if "held_s" in note]
    return [1000 * seconds - HOLD_MS for seconds in held], idle


def idle_of_stock() -> dict[str, float]:
    """The idle engine's share of a core under vLLM's own scheduler."""
    with Server("StockScheduler") as server:
        server.wait()
        for number in range(5):
            ask(server, number)
        return share_of_a_core(server, IDLE_SECONDS)


def while_holding() -> dict[str, float]:
    """The engine's share of a core while one branch is held for a second."""
    with serve(LONG_HOLD_MS) as server:
        server.wait()
        ask(server, 0)
        asking = threading.Thread(target=ask, args=(server, 1))
        asking.start()
        time.sleep(0.1)
        shares = share_of_a_core(server, 0.8)
        asking.join()
    return shares


def main() -> int:
    """Measure, print, write."""
    stock = idle_of_stock()
    late, idle = overshoots()
    holding = while_holding()
    ordered = sorted(late)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    claims = [
        Claim(
            "an idle engine's processes, more than under vLLM's own scheduler",
            sum(idle.values()) - sum(stock.values()),
            "of a core",
            0.02,
            "<=",
        ),
        Claim("while a branch is held", sum(holding.values()), "of a core", 0.5, "<="),
        Claim("past the deadline, median", statistics.median(late), "ms", 1.0, "<="),
        Claim("past the deadline, p99", p99, "ms", 1.0, "<="),
        Claim("past the deadline, worst", ordered[-1], "ms", 1.0, "<="),
    ]
    show_claims(claims)
    path = write_results(
        "idle",
        command="python -m benchmarks.idle",
        raw=[
            {"idle": idle},
            {"idle_stock": stock},
            {"holding": holding},
            {"late_ms": spread(late)},
        ],
        claims=claims,
    )
    print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
