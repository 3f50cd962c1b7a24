"""Host time of ``schedule()``: vLLM's own beside every preset, on the same queues.

No model and no GPU: the real scheduler and cache manager, as in the replay.  Groups are
sent as our endpoint sends them (a producer, then hinted consumers) to every arm alike;
what is timed is ``schedule()`` alone, in processor time of its thread, so that a busy
machine does not show as a slow round.

    python -m benchmarks.schedule_cost            # all queues, about eight minutes
    python -m benchmarks.schedule_cost --quick    # small queues, no results file
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, write_results
from server_ext.policy.config import POLICIES
from server_ext.policy.hints import STATE_ONLY
from server_ext.replay import rig
from server_ext.replay.cards import CARDS, Card
from server_ext.replay.policies import MATCH_UNIT, Arm

NATIVE = "vLLM's own"
REPEATS = 3
PARKED = (10, 100, 1_000, 5_000, 20_000)
PARKED_ROUNDS = 11
"""Rounds of the producer that they wait for: one cache block of 528 tokens each."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A backlog: groups of branches, and the rows of a round."""

    name: str
    groups: int
    branches: int
    rows: int
    document: int = 3_000


QUEUES = (
    Queue("500 groups x 4", 500, 4, 16),
    Queue("20 groups x 200", 20, 200, 256),
    Queue("1 group x 2000", 1, 2_000, 256),
)
QUICK = (Queue("20 groups x 4", 20, 4, 16), Queue("2 groups x 50", 2, 50, 64))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one arm took on one queue.

    Attributes:
        rounds: rounds with work.
        rows: rows scheduled.
        tokens: tokens scheduled.
        mean_us: mean microseconds of ``schedule()`` a round.
        worst_us: the longest.
        row_us: microseconds a scheduled row.
    """

    rounds: int
    rows: int
    tokens: int
    mean_us: float
    worst_us: float
    row_us: float


def requests_of(
    queue: Queue, group: int, keys: rig.Keys, document: str = ""
) -> list[Any]:
    """A group as ``POST /v1/branches`` sends it, by default on its own document."""
    name, shared = f"g{group}", (document or f"d{group}", queue.document)
    hints = {
        "radixflow_v": 1,
        "radixflow_group": name,
        "radixflow_branches": queue.branches,
        "radixflow_shared_tokens": queue.document,
    }
    producer = {**hints, "radixflow_role": "producer", **STATE_ONLY}
    consumer = {**hints, "radixflow_role": "consumer"}
    made = [_request(f"{name}-p", (shared,), keys, producer)]
    for branch in range(queue.branches):
        tail = (f"q{group}", 20), (f"b{group}.{branch}", 10 + branch % 30)
        made.append(_request(f"{name}-{branch}", (shared, *tail), keys, consumer))
    return made


def _request(
    name: str, segments: tuple[tuple[str, int], ...], keys: rig.Keys, hints: Any
) -> Any:
    tokens = sum(length for _, length in segments)
    return rig.make_request(
        name,
        tokens,
        keys.of("", segments),
        keys.unit,
        arrival=0.0,
        extra_args=hints,
    )


def drain(scheduler: Any, limit: int = 100_000) -> list[tuple[float, int, int]]:
    """Run a scheduler dry; microseconds, rows and tokens of each round."""
    timed: list[tuple[float, int, int]] = []
    for _ in range(limit):
        if not scheduler.has_unfinished_requests():
            return timed
        begun = time.thread_time()
        planned = scheduler.schedule()
        spent = (time.thread_time() - begun) * 1e6
        scheduler.update_from_output(planned, rig.model_output(scheduler, planned))
        rows, tokens = (
            len(planned.num_scheduled_tokens),
            (planned.total_num_scheduled_tokens),
        )
        if rows:
            timed.append((spent, rows, tokens))
    raise RuntimeError("the scheduler does not come to an end")


def card_for(queue: Queue) -> Card:
    """Qwen3.5-9B with the queue's rows."""
    return replace(CARDS["Qwen3.5-9B"], rows=queue.rows, max_model_len=65_536)


def measure(queue: Queue, make: Callable[[Card], Any]) -> Cost:
    """One run of one arm."""
    scheduler = make(card_for(queue))
    keys = rig.Keys(MATCH_UNIT)
    for group in range(queue.groups):
        for request in requests_of(queue, group, keys):
            scheduler.add_request(request)
    gc.collect()
    gc.disable()
    try:
        timed = drain(scheduler)
    finally:
        gc.enable()
    times = [spent for spent, _, _ in timed]
    rows = sum(row for _, row, _ in timed)
    return Cost(
        rounds=len(timed),
        rows=rows,
        tokens=sum(tokens for _, _, tokens in timed),
        mean_us=statistics.fmean(times),
        worst_us=max(times),
        row_us=sum(times) / rows,
    )


def arms() -> dict[str, Callable[[Card], Any]]:
    """vLLM's own scheduler, and ours under each preset."""
    made: dict[str, Callable[[Card], Any]] = {
        NATIVE: lambda card: rig.make_native_scheduler(card, fine=True)
    }
    for name, policy in POLICIES.items():
        arm = Arm(name, policy, hints=True, fine=True, about="")
        made[name] = lambda card, arm=arm: rig.make_scheduler(card, arm)
    return made


def parked_cost(branches: int) -> float:
    """Median microseconds of a round while one long producer parks `branches`."""
    groups = -(-branches // 1_000)
    each = branches // groups
    queue = Queue("parked", groups, each, 16, document=PARKED_ROUNDS * 528)
    card = replace(card_for(queue), token_budget=528 + queue.rows)
    scheduler = rig.make_scheduler(
        card, Arm("p", POLICIES["radixflow+"], hints=True, fine=True, about="")
    )
    keys = rig.Keys(MATCH_UNIT)
    for group in range(groups):
        for request in requests_of(queue, group, keys, "one document"):
            scheduler.add_request(request)
    times = []
    for _ in range(PARKED_ROUNDS - 1):
        begun = time.thread_time()
        planned = scheduler.schedule()
        times.append((time.thread_time() - begun) * 1e6)
        scheduler.update_from_output(planned, rig.model_output(scheduler, planned))
    return statistics.median(times[2:])


def medians(costs: list[Cost]) -> Cost:
    """The median of each figure."""
    names = ("rounds", "rows", "tokens", "mean_us", "worst_us", "row_us")
    return Cost(*(statistics.median(getattr(c, name) for c in costs) for name in names))


def main() -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    console = Console()
    queues = QUICK if quick else QUEUES
    plan = [
        (queue, name, make)
        for _ in range(1 if quick else REPEATS)
        for queue in queues
        for name, make in arms().items()
    ]
    raw: dict[tuple[str, str], list[Cost]] = {}
    for queue, name, make in track(plan, "schedule()", console=console):
        raw.setdefault((queue.name, name), []).append(measure(queue, make))
    parked = {n: parked_cost(n) for n in (PARKED[:2] if quick else PARKED)}
    cost = {key: medians(costs) for key, costs in raw.items()}
    _print(console, cost, parked)
    if not quick:
        write_results(
            "schedule_cost",
            command="python -m benchmarks.schedule_cost",
            raw=_raw(raw, parked),
            claims=_claims(cost, parked),
        )


def _print(
    console: Console, cost: dict[tuple[str, str], Cost], parked: dict[int, float]
) -> None:
    table = Table("queue", "arm", "rounds", "rows", "us/round", "worst us", "us/row")
    for (queue, arm), c in cost.items():
        table.add_row(
            queue,
            arm,
            f"{c.rounds:.0f}",
            f"{c.rows:.0f}",
            f"{c.mean_us:.0f}",
            f"{c.worst_us:.0f}",
            f"{c.row_us:.1f}",
        )
    console.print(table)
    for branches, spent in parked.items():
        console.print(f"{branches:>6} parked branches: {spent:.0f} us a round")


def _raw(
    raw: dict[tuple[str, str], list[Cost]], parked: dict[int, float]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"queue": queue, "arm": arm, **{n: getattr(c, n) for n in Cost.__slots__}}
        for (queue, arm), costs in raw.items()
        for c in costs
    ]
    rows += [{"parked": branches, "round_us": us} for branches, us in parked.items()]
    return rows


def _claims(cost: dict[tuple[str, str], Cost], parked: dict[int, float]) -> list[Claim]:
    claims = []
    for queue in QUEUES:
        ours, native = cost[queue.name, "radixflow+"], cost[queue.name, NATIVE]
        few = queue.branches < 100
        whole = ours.rounds * ours.mean_us / (native.rounds * native.mean_us)
        claims.append(
            Claim(f"{queue.name}: host time of the queue", whole, "x native", 1.0, "<=")
        )
        a_row = ours.row_us / native.row_us
        claims.append(
            Claim(f"{queue.name}: host time a row", a_row, "x native", 1.25, "<=")
            if few
            else Claim(
                f"{queue.name}: mean a round",
                ours.mean_us / native.mean_us,
                "x native",
                1.5,
                "<=",
            )
        )
        if not few:
            worst = ours.worst_us / native.worst_us
            claims.append(
                Claim(f"{queue.name}: worst round", worst, "x native", 3.0, "<=")
            )
            claims.append(
                Claim(f"{queue.name}: host time a row", a_row, "x native", 1.25, "<=")
            )
    growth = parked[PARKED[-1]] / parked[PARKED[0]]
    claims.append(
        Claim("20,000 parked branches against 10, a round", growth, "x", 1.25, "<=")
    )
    return claims


if __name__ == "__main__":
    main()
