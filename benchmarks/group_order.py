"""Group order against order of arrival: mean and tail latency over a load sweep.

Simulated: the replay's Qwen3.5-9B card on the real scheduler, 1,000 groups of four in
the mixed regime, Poisson arrivals.  ``overtake`` is the knob of ``order="group"``.

    python -m benchmarks.group_order
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, write_results
from server_ext.config import POLICIES
from server_ext.replay.cards import CARDS
from server_ext.replay.policies import Arm
from server_ext.replay.run import replay
from server_ext.replay.trace import Arrivals, Trace, arrive, paper_groups

RATES = (4.0, 8.0, 12.0, 20.0, 32.0)
OVERTAKE = (1.0, 1.2, 2.0, 50.0)
GROUPS = 1_000


def figures(rate: float, overtake: float | None) -> dict[str, float]:
    """One run; ``None`` is order of arrival."""
    policy = POLICIES["radixflow+"]
    if overtake is not None:
        policy = replace(policy, name="group", order="group", overtake=overtake)
    groups = paper_groups(regime="mixed", questions=GROUPS)
    trace = Trace("group order", arrive(groups, Arrivals("poisson", rate=rate)))
    arm = Arm(policy.name, policy, hints=True, fine=True, about="")
    found = replay(trace, CARDS["Qwen3.5-9B"], arm, look_on=False).figures
    names = ("latency_mean", "latency_p50", "latency_p99", "rounds", "reuse")
    return {"rate": rate, "overtake": overtake or 0.0, **{n: found[n] for n in names}}


def main() -> None:
    """Run, print and keep the results."""
    console = Console()
    plan = list(product(RATES, (None, *OVERTAKE)))
    raw = [figures(*one) for one in track(plan, "replaying", console=console)]
    base = {run["rate"]: run for run in raw if not run["overtake"]}
    table = Table("groups/s", "overtake", "mean", "vs arrival", "p99", "x arrival")
    claims = []
    for run in raw:
        mean = run["latency_mean"] / base[run["rate"]]["latency_mean"] - 1
        tail = run["latency_p99"] / base[run["rate"]]["latency_p99"]
        table.add_row(
            f"{run['rate']:.0f}",
            f"{run['overtake']:.1f}" if run["overtake"] else "arrival",
            f"{run['latency_mean']:.2f} s",
            f"{mean:+.0%}",
            f"{run['latency_p99']:.2f} s",
            f"{tail:.2f}",
        )
        if run["overtake"] == 1.0:
            name = f"{run['rate']:.0f} groups/s, overtake 1"
            claims.append(Claim(f"{name}: mean", mean, "of arrival", -0.35, "<="))
            claims.append(Claim(f"{name}: p99", tail, "x arrival", 1.05, "<="))
    console.print(table)
    command = "python -m benchmarks.group_order"
    write_results("group_order", command=command, raw=raw, claims=claims)


if __name__ == "__main__":
    main()
