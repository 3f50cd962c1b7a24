"""Host time of ``schedule()`` and ``add_request()``: vLLM's own beside ours.

No model and no GPU: the real scheduler and cache manager, as in the replay, on the
memory of Qwen3.5-9B on an H100.  Processor time of the thread, so that a busy machine
does not show as a slow round; every arm has the same requests in the same order.

    python -m benchmarks.schedule_cost            # all loads
    python -m benchmarks.schedule_cost --quick    # small loads, no results file
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, write_results
from server_ext.policy.config import POLICIES
from server_ext.policy.hints import Hints
from server_ext.replay import rig
from server_ext.replay.cards import CARDS, Card
from server_ext.replay.keys import Keys
from server_ext.replay.policies import MATCH_UNIT, Arm

NATIVE = "vLLM's own"
OURS = "radixflow+"
REPEATS = 3
ROUNDS = 60
"""Rounds of a load that are timed; a long queue is not run dry."""
QUEUED = 20_000
ARRIVAL_US = 10.0
WORST_US = 3_000.0

Segments = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that wait before the first round.

    Attributes:
        name: what they share.
        requests: how many.
        rows: maximum rows of a round.
        prompt: the segments of the prompt with this number.
        branches: branches of a group, for the arm with hints.
    """

    name: str
    requests: int
    rows: int
    prompt: Callable[[int], Segments]
    branches: int = 1


def documents(branches: int, tokens: int, number: int) -> Segments:
    """A document for every `branches` requests."""
    return (f"d{number // branches}", tokens), (f"o{number}", 20 + number % 30)


def tree(number: int) -> Segments:
    """System prompt, 40 requests a document, 4 options a question."""
    return (
        ("system", 800),
        (f"d{number // 40}", 300),
        (f"q{number // 4}", 40),
        (f"o{number}", 3),
    )


def alone(number: int) -> Segments:
    """Nothing shared."""
    return ((f"x{number}", 500),)


LOADS = (
    Load("500 documents x 4", 2_000, 16, partial(documents, 4, 3_000), 4),
    Load("20 documents x 200", 4_000, 256, partial(documents, 200, 3_000), 200),
    Load("1 document x 2,000", 2_000, 256, partial(documents, 2_000, 3_000), 2_000),
    Load("20,000 in a tree", QUEUED, 16, tree, 40),
    Load("20,000 on one document", QUEUED, 16, partial(documents, QUEUED, 1_500), 4096),
    Load("2,500 documents x 8", QUEUED, 16, partial(documents, 8, 500), 8),
    Load("20,000 that share nothing", QUEUED, 16, alone),
    Load("1,024 running", 4_096, 1_024, partial(documents, 8, 500), 8),
)
QUICK = (
    Load("20 documents x 4", 80, 16, partial(documents, 4, 3_000), 4),
    Load("200 in a tree", 200, 16, tree, 40),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one arm took on one load.

    Attributes:
        rounds: rounds with work.
        rows: rows scheduled.
        requests: requests that were taken to their end.
        tokens: tokens scheduled.
        add_us: mean microseconds of ``add_request()``.
        mean_us: mean microseconds of ``schedule()`` a round.
        worst_us: the longest.
        row_us: microseconds a scheduled row.
        request_us: microseconds a request that was taken to its end.
    """

    rounds: float
    rows: float
    requests: float
    tokens: float
    add_us: float
    mean_us: float
    worst_us: float
    row_us: float
    request_us: float


def requests_of(load: Load, *, hinted: bool) -> Iterator[Any]:
    """The requests of a load, with the hints of our endpoint or without."""
    keys = Keys(MATCH_UNIT)
    for number in range(load.requests):
        segments = load.prompt(number)
        boundaries, tokens = [], 0
        for _, length in segments[:-1]:
            tokens += length
            boundaries.append(tokens)
        group = f"g{number // load.branches}"
        hints = Hints(group, "consumer", load.branches, tuple(boundaries), tokens)
        yield rig.make_request(
            f"r{number}",
            tokens + segments[-1][1],
            keys.of("", segments),
            MATCH_UNIT,
            arrival=0.0,
            extra_args=rig.wire(hints) if hinted and load.branches > 1 else None,
        )


def card_for(load: Load) -> Card:
    """Qwen3.5-9B with the rows of the load."""
    return replace(CARDS["Qwen3.5-9B"], rows=load.rows, max_model_len=65_536)


def measure(load: Load, make: Callable[[Card], Any], *, hinted: bool) -> Cost:
    """One run of one arm."""
    scheduler = make(card_for(load))
    requests = list(requests_of(load, hinted=hinted))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        begun = time.thread_time()
        for request in requests:
            scheduler.add_request(request)
        add_us = (time.thread_time() - begun) * 1e6 / len(requests)
        timed = list(rounds(scheduler))
    finally:
        gc.enable()
        gc.unfreeze()
    times, rows, ended, tokens = zip(*timed, strict=True)
    return Cost(
        rounds=len(timed),
        rows=sum(rows),
        requests=sum(ended),
        tokens=sum(tokens),
        add_us=add_us,
        mean_us=statistics.fmean(times),
        worst_us=max(times),
        row_us=sum(times) / sum(rows),
        request_us=sum(times) / sum(ended),
    )


def rounds(scheduler: Any) -> Iterator[tuple[float, int, int, int]]:
    """Microseconds, rows, requests that end and tokens of each round.

    At most `ROUNDS` of them; a request ends with its prompt's last token.
    """
    for _ in range(ROUNDS):
        if not scheduler.has_unfinished_requests():
            return
        begun = time.thread_time()
        planned = scheduler.schedule()
        spent = (time.thread_time() - begun) * 1e6
        names = list(planned.num_scheduled_tokens)
        asked = [scheduler.requests[name] for name in names]
        ended = sum(r.num_computed_tokens >= r.num_prompt_tokens for r in asked)
        scheduler.update_from_output(planned, rig.model_output(scheduler, planned))
        if names:
            yield spent, len(names), ended, planned.total_num_scheduled_tokens


def arms() -> dict[str, tuple[Callable[[Card], Any], bool]]:
    """How each arm's scheduler is made, and whether its requests carry hints."""
    ours = POLICIES[OURS]
    made: dict[str, tuple[Callable[[Card], Any], bool]] = {
        NATIVE: (lambda card: rig.make_native_scheduler(card, fine=True), False)
    }
    for name, policy, hinted in (
        (OURS, ours, False),
        (f"{OURS}, hints", ours, True),
        (f"{OURS}, fence", replace(ours, fence="on"), False),
    ):
        arm = Arm(name, policy, hints=hinted, fine=True, about="")
        made[name] = (partial(rig.make_scheduler, arm=arm), hinted)
    return made


def medians(costs: list[Cost]) -> Cost:
    """The median of each figure."""
    names = Cost.__slots__
    return Cost(*(statistics.median(getattr(c, name) for c in costs) for name in names))


def main() -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small loads, no file")
    parser.add_argument("--load", help="one load, by the start of its name; no file")
    asked = parser.parse_args()
    loads = [x for x in LOADS if x.name.startswith(asked.load or "")]
    quick = asked.quick or asked.load
    console = Console()
    plan = [
        (load, name, make, hinted)
        for load in (QUICK if asked.quick else loads)
        for _ in range(1 if quick else REPEATS)
        for name, (make, hinted) in arms().items()
    ]
    raw: dict[tuple[str, str], list[Cost]] = {}
    for load, name, make, hinted in track(plan, "schedule()", console=console):
        cost = measure(load, make, hinted=hinted)
        raw.setdefault((load.name, name), []).append(cost)
    cost = {key: medians(costs) for key, costs in raw.items()}
    _print(console, cost)
    if not quick:
        write_results(
            "schedule_cost",
            command="python -m benchmarks.schedule_cost",
            raw=[
                {"load": load, "arm": arm, **{n: getattr(c, n) for n in Cost.__slots__}}
                for (load, arm), costs in raw.items()
                for c in costs
            ],
            claims=list(_claims(cost)),
        )


def _print(console: Console, cost: dict[tuple[str, str], Cost]) -> None:
    table = Table(
        *("load", "arm", "rounds", "rows", "ended", "add us", "us/round", "worst us"),
        *("us/row", "us/request"),
    )
    for (load, arm), c in cost.items():
        table.add_row(
            *(load, arm, f"{c.rounds:.0f}", f"{c.rows:.0f}", f"{c.requests:.0f}"),
            *(f"{c.add_us:.1f}", f"{c.mean_us:.0f}", f"{c.worst_us:.0f}"),
            *(f"{c.row_us:.1f}", f"{c.request_us:.1f}"),
        )
    console.print(table)


def _claims(cost: dict[tuple[str, str], Cost]) -> Iterator[Claim]:
    """Ours against vLLM's own: a request, a row, an arrival and the longest round."""
    for (load, arm), ours in cost.items():
        if arm == NATIVE:
            continue
        native = cost[load, NATIVE]
        name = f"{load}, {arm}"
        whole = ours.request_us / native.request_us
        yield Claim(f"{name}: host time a request", whole, "x native", 1.25, "<=")
        row = ours.row_us / native.row_us
        yield Claim(f"{name}: host time a row", row, "x native", 1.25, "<=")
        added = ours.add_us - native.add_us
        yield Claim(f"{name}: an arrival beyond native", added, "us", ARRIVAL_US, "<=")
        bound = max(WORST_US, 3 * native.worst_us)
        yield Claim(f"{name}: longest round", ours.worst_us, "us", round(bound), "<=")


if __name__ == "__main__":
    main()
