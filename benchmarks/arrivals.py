"""The loads of `_trees` on vLLM's real scheduler, without a model: four arrivals.

    python -m benchmarks.arrivals            # about two minutes

Tokens and rounds are the scheduler's own.  Latencies are in virtual time: a round takes
what `radixflow replay calibrate` found on the bundled model's CPU server, so that no
other work on the machine shows in them.  Arms: vLLM's order (``radix``), the default
policy without hints, and with the hints of ``/v1/branches``.

Arrivals: ``together``; ``in turn`` (one group after another); ``poisson 0.4``, ``0.7``
and ``1``, where 1 is the rate at which vLLM's order completes the groups that arrive
together; ``one by one`` (one request at a time).  ``100 blocks`` is ``together`` on a
cache of 100 blocks.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._harness import Claim, show_claims, write_results
from benchmarks._trees import LOADS, UNIT, encode, limit16, make_load
from server_ext.policy.config import POLICIES
from server_ext.policy.hints import Hints
from server_ext.replay import rig

ROUND_S, ROW_S, TOKEN_S = 11.3e-3, 1.78e-3, 38.9e-6
"""Seconds of a round, a row and a token: calibrated on the bundled model's server."""
NATIVE, PLAIN, HINTED = "radix", "radixflow+", "radixflow+, hints"
TOGETHER, IN_TURN, ONE_BY_ONE, CROWDED = (
    *("together", "in turn", "one by one"),
    "100 blocks",
)
POISSON = {"poisson 0.4": 0.4, "poisson 0.7": 0.7, "poisson 1": 1.0}
ARRIVALS = (TOGETHER, IN_TURN, *POISSON, ONE_BY_ONE, CROWDED)
BLOCKS, FEW_BLOCKS = 4_000, 100

Prompt = tuple[list[int], tuple[bytes, ...], tuple[int, ...]]
"""Token ids, prefix keys, and where prompts part, in tokens."""


@cache
def prompts_of(load: str) -> list[list[Prompt]]:
    """The prompts of each group of a load."""
    return [
        [
            (ids, tuple(_keys(ids)), boundaries)
            for option in group.options
            for ids in [encode(group.context + option)]
        ]
        for group in make_load(load)
        for boundaries in [_boundaries([*group.parts, group.question])]
    ]


def _boundaries(parts: Sequence[str]) -> tuple[int, ...]:
    ends = itertools.accumulate(parts)
    return tuple(sorted({len(encode(text)) for text in ends}))


def _keys(ids: Sequence[int]) -> Iterator[bytes]:
    key = b""
    for end in range(UNIT, len(ids) + 1, UNIT):
        text = f"{key.hex()} {ids[end - UNIT : end]}".encode()
        key = hashlib.blake2b(text, digest_size=16).digest()
        yield key


@dataclass(frozen=True, slots=True)
class Seen:
    """What one arm made of one load.

    Attributes:
        tokens: prompt tokens computed.
        rounds: rounds with work.
        mean_s: mean seconds from arrival to the last answer of what arrived together.
        p99_s: their 99th percentile.
        busy_s: seconds of all rounds.
    """

    tokens: int
    rounds: int
    mean_s: float
    p99_s: float
    busy_s: float


class Run:
    """One scheduler in virtual time.

    Args:
        arm: `NATIVE`, `PLAIN` or `HINTED`.
        blocks: of the cache.
    """

    def __init__(self, arm: str, blocks: int) -> None:
        shape = rig.Shape(
            block_size=128,
            unit=UNIT,
            recurrent_groups=3,
            blocks=blocks,
            max_model_len=4_096,
            token_budget=2_048,
            rows=16,
        )
        policy = POLICIES[NATIVE if arm == NATIVE else PLAIN].on("cpu", 1.0)
        self._hinted = arm == HINTED
        self._scheduler: Any = rig.make_served_scheduler(shape, policy)
        self._scheduler.clock = lambda: self.now
        self._under_way: dict[str, tuple[int, float]] = {}
        self._left: dict[int, int] = {}
        self.now = 0.0
        self.tokens = self.rounds = 0
        self.busy = 0.0
        self.latencies: list[float] = []

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._left)

    def send(self, number: int, prompts: Sequence[Prompt], arrival: float) -> None:
        """Hand over what arrives together."""
        self._left[number] = len(prompts)
        for index, (ids, keys, boundaries) in enumerate(prompts):
            hints = None
            if self._hinted:
                group, scored = f"g{number}", boundaries[-1]
                hints = rig.wire(
                    Hints(group, "consumer", len(prompts), boundaries, scored)
                )
            name = f"{number}-{index}"
            self._under_way[name] = number, arrival
            self._scheduler.add_request(
                rig.make_request(
                    name, len(ids), keys, UNIT, arrival=arrival, extra_args=hints
                )
            )

    def step(self) -> None:
        """One round."""
        scheduler = self._scheduler
        planned = scheduler.schedule()
        tokens = planned.total_num_scheduled_tokens
        if tokens:
            rows = len(planned.num_scheduled_tokens)
            spent = ROUND_S + rows * ROW_S + tokens * TOKEN_S
            self.tokens += tokens
            self.rounds += 1
            self.now += spent
            self.busy += spent
        else:
            self.now += 1e-3
        scheduler.update_from_output(planned, rig.model_output(scheduler, planned))
        for name in [n for n in self._under_way if n not in scheduler.requests]:
            number, arrival = self._under_way.pop(name)
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number]
                self.latencies.append(self.now - arrival)


def measure(load: str, arrival: str, arm: str, capacity: float) -> Seen:
    """One arm on one load.

    Args:
        load: a key of `LOADS`.
        arrival: one of `ARRIVALS`.
        arm: `NATIVE`, `PLAIN` or `HINTED`.
        capacity: groups a second at Poisson load 1.
    """
    units = prompts_of(load)
    if arrival == ONE_BY_ONE:
        units = [[prompt] for group in units for prompt in group]
    run = Run(arm, FEW_BLOCKS if arrival == CROWDED else BLOCKS)
    if arrival in (IN_TURN, ONE_BY_ONE):
        for number, unit in enumerate(units):
            run.send(number, unit, run.now)
            while run.is_busy:
                run.step()
    else:
        gaps = random.Random(5)
        rate = capacity * POISSON.get(arrival, 0.0)
        times = itertools.accumulate(
            gaps.expovariate(rate) if rate else 0.0 for _ in units
        )
        waiting = list(enumerate(zip(times, units, strict=True)))[::-1]
        while waiting or run.is_busy:
            if not run.is_busy:
                run.now = max(run.now, waiting[-1][1][0])
            while waiting and waiting[-1][1][0] <= run.now:
                number, (at, unit) = waiting.pop()
                run.send(number, unit, at)
            run.step()
    latencies = sorted(run.latencies)
    return Seen(
        tokens=run.tokens,
        rounds=run.rounds,
        mean_s=sum(latencies) / len(latencies),
        p99_s=latencies[(len(latencies) - 1) * 99 // 100],
        busy_s=run.busy,
    )


Figures = dict[tuple[str, str, str], Seen]


def main() -> int:
    """Measure, show, write; 0 also when a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=LOADS, help="one load; no results file")
    only = parser.parse_args().load
    console = Console()
    seen: Figures = {}
    loads = [only] if only else list(LOADS)
    plan = [(load, arrival) for load in loads for arrival in ARRIVALS]
    for load, arrival in track(plan, "arrivals", console=console):
        first = seen.get((load, TOGETHER, NATIVE))
        capacity = len(prompts_of(load)) / first.busy_s if first else 0.0
        for arm in (NATIVE, PLAIN, HINTED):
            seen[load, arrival, arm] = measure(load, arrival, arm, capacity)
    limits = {
        load: limit16(ids for group in prompts_of(load) for ids, _, _ in group)
        for load in loads
    }
    claims = list(_claims(seen, limits))
    _show(console, seen, limits)
    show_claims(claims)
    if not only:
        write_results(
            "arrivals",
            command="python -m benchmarks.arrivals",
            raw=[
                {"load": load, "arrival": arrival, "arm": arm, "limit16": limits[load]}
                | {name: getattr(found, name) for name in Seen.__slots__}
                for (load, arrival, arm), found in seen.items()
            ],
            claims=claims,
        )
    return 0


def _claims(seen: Figures, limits: dict[str, int]) -> Iterator[Claim]:
    for (load, arrival, arm), found in seen.items():
        if arm == NATIVE:
            continue
        native, name = seen[load, arrival, NATIVE], f"{load}, {arrival}, {arm}"
        tokens = round(found.tokens / native.tokens, 3)
        yield Claim(f"{name}: tokens / vLLM's order", tokens, "x", 1.0, "<=")
        mean = round(found.mean_s / native.mean_s, 3)
        yield Claim(f"{name}: mean latency / vLLM's order", mean, "x", 1.0, "<=")
        if arrival == TOGETHER:
            limited = round(found.tokens / limits[load], 3)
            yield Claim(f"{name}: tokens / limit16", limited, "x", 1.05, "<=")
            rounds = round(found.rounds / native.rounds, 3)
            yield Claim(f"{name}: rounds / vLLM's order", rounds, "x", 0.6, "<=")


def _show(console: Console, seen: Figures, limits: dict[str, int]) -> None:
    arms = (NATIVE, PLAIN, HINTED)
    table = Table("load", "arrival", *arms, title="x limit16, rounds, mean ms")
    for load, arrival in dict.fromkeys((load, at) for load, at, _ in seen):
        cells = [seen[load, arrival, arm] for arm in arms]
        table.add_row(
            *(load, arrival),
            *(
                f"{one.tokens / limits[load]:.2f} {one.rounds} {one.mean_s * 1e3:.0f}"
                for one in cells
            ),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
