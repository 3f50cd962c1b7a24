"""Group order against order of arrival: mean and tail latency over a load sweep.

Simulated: the replay's Qwen3.5-9B card on the real scheduler, 500 groups of four in the
mixed regime, Poisson arrivals.  Load 1 is the capacity of a server that computes every
shared token once and fills every round.  ``overtake`` is the knob of ``order="group"``.

    python -m benchmarks.group_order
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, write_results
from benchmarks._simulated import mixed_stream
from server_ext.config import POLICIES

LOADS = (0.5, 0.75, 1.0, 1.5, 2.0)
OVERTAKE = (0.5, 0.75, 1.0, 1.5)
LEAD = 1.0
GROUPS = 500
FIGURES = (
    "latency_mean",
    "latency_p50",
    "latency_p99",
    "latency_max",
    "rounds",
    "reuse",
)


def figures(load: float, overtake: float | None) -> dict[str, float]:
    """One run; ``None`` is order of arrival."""
    policy = POLICIES["radixflow+"]
    if overtake is not None:
        policy = replace(policy, name="group", order="group", overtake=overtake)
    found = mixed_stream(policy, "Qwen3.5-9B", groups=GROUPS, load=load)
    kept = {name: found[name] for name in FIGURES}
    return {"load": load, "rate": found["rate"], "overtake": overtake or 0.0, **kept}


def main() -> None:
    """Run, print and keep the results."""
    console = Console()
    plan = list(product(LOADS, (None, *OVERTAKE)))
    raw = [figures(*one) for one in track(plan, "replaying", console=console)]
    base = {run["load"]: run for run in raw if not run["overtake"]}
    table = Table("load", "overtake", "mean", "vs arrival", "p99", "x", "max", "x")
    claims = []
    for run in raw:
        arrival = base[run["load"]]
        mean = run["latency_mean"] / arrival["latency_mean"] - 1
        tail = run["latency_p99"] / arrival["latency_p99"]
        worst = run["latency_max"] / arrival["latency_max"]
        table.add_row(
            f"{run['load']:g}",
            f"{run['overtake']:g}" if run["overtake"] else "arrival",
            f"{run['latency_mean']:.2f} s",
            f"{mean:+.0%}",
            f"{run['latency_p99']:.2f} s",
            f"{tail:.2f}",
            f"{run['latency_max']:.2f} s",
            f"{worst:.2f}",
        )
        if run["overtake"] == LEAD:
            name = f"load {run['load']:g}, overtake {LEAD:g}"
            claims.append(Claim(f"{name}: mean", mean, "of arrival", -0.35, "<="))
            claims.append(Claim(f"{name}: p99", tail, "x arrival", 1.05, "<="))
    console.print(table)
    command = "python -m benchmarks.group_order"
    write_results("group_order", command=command, raw=raw, claims=claims)


if __name__ == "__main__":
    main()
