"""When a question is computed once for its branches: never, always, or by its price.

Simulated: the replay's cards on the real scheduler, 400 groups of four in the mixed
regime, Poisson arrivals.  Load 1 is the capacity of a server that computes every shared
token once and fills every round.  Sharing a question saves tokens, and costs a row and
a round (`server_ext/sharing.py`).

    python -m benchmarks.sharing
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, write_results
from benchmarks._simulated import mixed_stream
from server_ext.config import MAX_WORTH, POLICIES, Policy

OURS = POLICIES["radixflow+"]
RULES = {
    "never": replace(OURS, name="never", row_tokens=MAX_WORTH),
    "always": replace(OURS, name="always", round_tokens=0),
    "by price": OURS,
}
MODELS = ("Qwen3.5-0.8B", "Qwen3.5-9B")
LOADS = (0.1, 0.5, 1.0, 1.5)
GROUPS = 400
FIGURES = ("latency_mean", "latency_p99", "rounds", "tokens", "reuse")


def figures(model: str, load: float, policy: Policy) -> dict[str, float]:
    """Mean and tail latency, rounds, tokens and reuse of one run."""
    found = mixed_stream(policy, model, groups=GROUPS, load=load)
    return {name: found[name] for name in FIGURES}


def main() -> None:
    """Run, print and keep the results."""
    console = Console()
    plan = list(product(MODELS, LOADS, RULES))
    raw = [
        {"model": model, "load": load, "rule": rule} | figures(model, load, RULES[rule])
        for model, load, rule in track(plan, "replaying", console=console)
    ]
    table = Table("model", "load", "question shared", "mean", "p99", "rounds", "reuse")
    claims = []
    for model, load in product(MODELS, LOADS):
        runs = {r["rule"]: r for r in raw if (r["model"], r["load"]) == (model, load)}
        for rule, run in runs.items():
            table.add_row(
                model,
                f"{load:g}",
                rule,
                f"{1000 * run['latency_mean']:.1f} ms",
                f"{1000 * run['latency_p99']:.1f} ms",
                f"{run['rounds']:,.0f}",
                f"{100 * run['reuse']:.2f}%",
            )
        best = min(runs[rule]["latency_mean"] for rule in ("never", "always"))
        ratio = runs["by price"]["latency_mean"] / best
        name = f"{model}, load {load:g}: mean latency of the price"
        claims.append(Claim(name, round(ratio, 4), "x the better of both", 1.02, "<="))
    console.print(table)
    command = "python -m benchmarks.sharing"
    write_results("sharing", command=command, raw=raw, claims=claims)


if __name__ == "__main__":
    main()
