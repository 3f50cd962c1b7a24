"""Chats that share nothing: what the scheduler costs where it has nothing to save.

    python -m benchmarks.chats             # about 8 minutes
    python -m benchmarks.chats --quick     # one repeat, five seconds of arrivals

Streaming chats of their own text, 24 tokens each, arrive at random (Poisson) at 6, 25
and 60 a second, at the same times in each arm, on the real server with the bundled
model. Arms: ``stock`` (vLLM's own scheduler class), ``radix`` (vLLM's order on our
scheduler) and ``radixflow+``. Noted are prompt tokens computed, the time to the first
token, the time between tokens, the whole answer's time, and the scheduler's host time
a scheduled row (our class alone counts it). Two servers run; one is idle while the
other works.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks._harness import Claim, Server, show_claims, spread, write_results
from benchmarks.trees import computed

STOCK, NATIVE, OURS = "stock", "radix", "radixflow+"
ARMS = (STOCK, NATIVE, OURS)
RATES = (6, 25, 60)
"""Chats a second."""
SECONDS = 15.0
REPEATS = 3
ANSWER = 24
"""Tokens that each chat generates."""
NOISE = 1.05
"""What counts as equal; the spread of the repeats stands beside it."""
WORDS = ("lamp", "boat", "coat", "dog", "hat", "shop", "inn", "fair", "milk", "rope")


@dataclass(frozen=True, slots=True)
class Timed:
    """One chat: seconds to its first token, between its tokens, to its end."""

    first: float
    between: float
    whole: float


def prompt(number: int) -> str:
    """A text of its own from the first word on, of about 60 to 180 words."""
    words = random.Random(number)
    return f"{number} " + " ".join(words.choices(WORDS, k=words.randrange(60, 180)))


async def chat(http: httpx.AsyncClient, number: int, after: float) -> Timed:
    """Wait `after` seconds, then ask and read the stream."""
    await asyncio.sleep(after)
    body = {
        "model": "radixflow-demo",
        "messages": [{"role": "user", "content": prompt(number)}],
        "max_completion_tokens": ANSWER,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    began, stamps = time.monotonic(), list[float]()
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                stamps.append(time.monotonic())
    # The first event holds the role alone; a token is what follows it.
    tokens = stamps[1:]
    between = (tokens[-1] - tokens[0]) / (ANSWER - 1)
    return Timed(tokens[0] - began, between, tokens[-1] - began)


async def arrive(url: str, rate: int, seconds: float, first: int) -> list[Timed]:
    """All chats of one run."""
    gaps = random.Random(rate)
    count = int(rate * seconds)
    after = list(itertools.accumulate(gaps.expovariate(rate) for _ in range(count)))
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        return await asyncio.gather(
            *(chat(http, first + n, at) for n, at in enumerate(after))
        )


def host_us(server: Server) -> int:
    """Microseconds in ``schedule()`` since the server's start, as our class counts."""
    counted: int = server.settings()["counters"]["host_us"]
    return counted


def run(
    servers: Mapping[str, Server], arm: str, rate: int, seconds: float, first: int
) -> dict[str, Any]:
    """One arm at one rate."""
    server = servers[STOCK if arm == STOCK else OURS]
    if arm != STOCK:
        server.switch(arm)
    mark, host = server.mark(), 0 if arm == STOCK else host_us(server)
    seen = asyncio.run(arrive(server.url, rate, seconds, first))
    rounds = server.rounds_since(mark)
    figures: dict[str, Any] = {"tokens": computed(rounds), "rounds": len(rounds)}
    for name in ("first", "between", "whole"):
        values = sorted(getattr(one, name) for one in seen)
        figures[f"{name}_s"] = round(statistics.median(values), 5)
        figures[f"{name}_p99_s"] = round(values[(len(values) - 1) * 99 // 100], 5)
    if arm != STOCK:
        rows = sum(len(each["rows"]) for each in rounds)
        figures["host_us_row"] = round((host_us(server) - host) / rows, 2)
    return figures


FIGURES = {
    "tokens": "prompt tokens",
    "first_s": "time to first token",
    "between_s": "time between tokens",
    "whole_s": "whole answer",
    "whole_p99_s": "whole answer, p99",
    "host_us_row": "host time a row",
}


def claims(raw: Sequence[dict[str, Any]]) -> list[Claim]:
    """Ours against the native order, and against the stock class."""
    medians: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for arm, rate in itertools.product(ARMS, RATES):
        runs = [one for one in raw if (one["arm"], one["rate"]) == (arm, rate)]
        for name in FIGURES:
            values = [one[name] for one in runs if one.get(name) is not None]
            if values:
                medians[arm, rate][name] = statistics.median(values)
    found = []
    for rate, other in itertools.product(RATES, (NATIVE, STOCK)):
        for name, words in FIGURES.items():
            theirs, ours = medians[other, rate].get(name), medians[OURS, rate].get(name)
            if theirs and ours:
                target = {"tokens": 1.0, "host_us_row": 1.1}.get(name, NOISE)
                label = f"{rate} a second: {words} / {other}"
                found.append(Claim(label, round(ours / theirs, 3), "x", target, "<="))
    return found


def table(raw: Sequence[dict[str, Any]]) -> Table:
    """Medians with their spread, one line an arm and rate."""
    shown = Table(title="Chats that share nothing: median (least to most) of the runs")
    for column in ("a second", "arm", *FIGURES.values()):
        shown.add_column(column, justify="right")
    for rate, arm in itertools.product(RATES, ARMS):
        runs = [one for one in raw if (one["arm"], one["rate"]) == (arm, rate)]
        row = [str(rate), arm]
        for name in FIGURES:
            values = [one[name] for one in runs if one.get(name) is not None]
            if not values:
                row.append("-")
                continue
            three, scale = spread(values), 1000 if name.endswith("_s") else 1
            low, high = three["min"] * scale, three["max"] * scale
            row.append(f"{three['median'] * scale:.4g} ({low:.4g} to {high:.4g})")
        shown.add_row(*row)
    return shown


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    repeats, seconds = (1, 5.0) if quick else (REPEATS, SECONDS)
    raw: list[dict[str, Any]] = []
    with ExitStack() as stack:
        servers = {
            STOCK: stack.enter_context(Server("StockScheduler")),
            OURS: stack.enter_context(Server("NotedRadixFlowScheduler")),
        }
        for server in servers.values():
            server.wait()
        for arm in ARMS:  # first-use costs
            run(servers, arm, RATES[0], 3.0, 10_000_000)
        first = 0
        for repeat, rate in itertools.product(range(repeats), RATES):
            # Every chat is new to all arms; who comes first changes with the repeat.
            for arm in ARMS[repeat:] + ARMS[:repeat]:
                seen = run(servers, arm, rate, seconds, first)
                raw.append({"repeat": repeat, "rate": rate, "arm": arm, **seen})
                print(json.dumps(raw[-1]), flush=True)
            first += 100_000
    Console(width=160).print(table(raw))
    found = claims(raw)
    show_claims(found)
    if not quick:
        command = "python -m benchmarks.chats"
        path = write_results("chats", command=command, raw=raw, claims=found)
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
