"""The paper's drawn example on the real scheduler: each round's rows and tokens.

Three documents of 3,000 tokens, four short branches each, all at once, a budget of
4,096 tokens a round; native order with exact readiness beside traversal.  No
model and no GPU.  ``docs/round.svg`` is drawn from the results.

    python -m benchmarks.drawn_example
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks._harness import Claim, write_results
from server_ext.replay.cards import CARDS
from server_ext.replay.policies import arm_named
from server_ext.replay.run import replay
from server_ext.replay.trace import Group, Trace

BUDGET = 4_096
ARMS = {"prefix-stop": "radix-0.33", "traversal": "traversal"}


def drawn() -> Trace:
    """The example's three groups."""
    return Trace(
        "drawn",
        tuple(
            Group(
                name=f"g{index}",
                at=0.0,
                segments=((f"d{index}", 3_000),),
                branches=(60, 60, 60, 70 if index == 0 else 60),
            )
            for index in range(3)
        ),
    )


def main() -> None:
    """Run both, and keep every round."""
    card = replace(CARDS["Qwen3.5-9B"], token_budget=BUDGET)
    raw, rounds = [], {}
    for name, arm in ARMS.items():
        outcome = replay(drawn(), card, arm_named(arm), keep_rounds=9)
        rounds[name] = len(outcome.rounds)
        raw += [
            {
                "order": name,
                "rows": dict(entry.rows),
                "blocked": list(entry.blocked),
                "bubble": entry.bubble,
            }
            for entry in outcome.rounds
        ]
    path = write_results(
        "drawn_example",
        command="python -m benchmarks.drawn_example",
        raw=raw,
        claims=[Claim("rounds with traversal", rounds["traversal"], "rounds", 4, "<=")],
        budget=BUDGET,
    )
    print(f"{rounds['prefix-stop']} rounds, {rounds['traversal']} with traversal")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
