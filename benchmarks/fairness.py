"""A small group beside clients that each send groups of 4,096 branches.

    python -m benchmarks.fairness --out before.json      # on the code before
    python -m benchmarks.fairness --before before.json   # on the code after

One real server with the bundled model. A client of its own asks for four options about
a document that the server knows, twice a second; 0, 4 and then 16 other clients send
large groups one after another. Noted are the small group's latency, the time of a round
and the branches that the large groups complete per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks._harness import Claim, Server, show_claims, write_results

LARGE_CLIENTS = (0, 4, 16)
BRANCHES = 4096
EVERY_SECONDS = 0.5
WARM_UP_SECONDS = 10.0
KEPT_OF_THROUGHPUT = 0.97
TEXTS = Path(__file__).parents[1] / "server_ext" / "demo" / "held_out.json"


def documents() -> list[str]:
    """The texts that the bundled model has not seen."""
    return [each["document"] for each in json.loads(TEXTS.read_text())["documents"]]


async def send_large(http: httpx.AsyncClient, number: int, seen: list[float]) -> None:
    """Send large groups until cancelled; note when each of their branches ends."""
    texts = documents()
    words = sorted({word for text in texts for word in text.split() if word.isalpha()})
    pairs = (f" {one} {other}" for one in words for other in words)
    options = [{"text": next(pairs)} for _ in range(BRANCHES)]
    while True:
        body = {"document": {"text": texts[1 + number % 20]}, "branches": options}
        async with http.stream("POST", "/v1/branches", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                seen += [time.monotonic()] * ('"branch.completed"' in line)
        number += 1


async def send_small(http: httpx.AsyncClient, until: float) -> list[float]:
    """Seconds that each small group took."""
    options = [{"text": f" the {word}"} for word in ("lamp", "boat", "coat", "dog")]
    body = {"document": {"text": documents()[0]}, "branches": options}
    took: list[float] = []
    while (began := time.monotonic()) < until:
        answer = await http.post("/v1/branches", json=body)
        answer.raise_for_status()
        assert json.loads(answer.text.splitlines()[-1])["completed"] == len(options)
        took.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))
    return took


async def measure(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    """The small group beside so many large clients."""
    limits = httpx.Limits(max_connections=clients + 1)
    seen: list[float] = []
    async with httpx.AsyncClient(
        base_url=server.url, timeout=600, limits=limits
    ) as http:
        tasks = [asyncio.create_task(send_large(http, n, seen)) for n in range(clients)]
        await asyncio.sleep(WARM_UP_SECONDS if clients else 1)
        await send_small(http, time.monotonic() + 1)  # its document is computed
        began, before = time.monotonic(), server.mark()
        took = await send_small(http, began + seconds)
        wall = time.monotonic() - began
        rounds = server.rounds_since(before)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
    rows = [len(each["rows"]) for each in rounds]
    return {
        "clients": clients,
        "groups": len(took),
        "p50_ms": round(1000 * statistics.median(took), 1),
        "p99_ms": round(1000 * _p99(took), 1),
        "round_ms": round(1000 * wall / max(len(rounds), 1), 2),
        "rows_a_round": round(statistics.mean(rows), 2),
        "branches_a_second": round(sum(at > began for at in seen) / wall, 1),
    }


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def claims(
    cells: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]
) -> list[Claim]:
    """What a run is held to."""
    found: list[Claim] = []
    alone = cells[0]["p99_ms"]
    for cell in cells[1:]:
        name = f"beside {cell['clients']} large clients"
        bound = round(2 * cell["round_ms"] + alone, 1)
        found.append(
            Claim(f"small group's p99 {name}", cell["p99_ms"], "ms", bound, "<=")
        )
        for other in before:
            if other["clients"] == cell["clients"]:
                share = cell["branches_a_second"] / other["branches_a_second"]
                found.append(
                    Claim(
                        f"large groups' throughput {name}, against before",
                        round(share, 3),
                        "x",
                        KEPT_OF_THROUGHPUT,
                        ">=",
                    )
                )
    return found


def main() -> int:
    """Measure, show, write; 1 where a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--before", type=Path, help="cells of the code before")
    parser.add_argument("--out", type=Path, help="write the cells here alone")
    chosen = parser.parse_args()
    before = json.loads(chosen.before.read_text()) if chosen.before else []
    cells = []
    with Server("NotedRadixFlowScheduler") as server:
        server.wait()
        for clients in LARGE_CLIENTS:
            cells.append(asyncio.run(measure(server, clients, chosen.seconds)))
            print(json.dumps(cells[-1]), flush=True)
    found = claims(cells, before)
    show_claims(found)
    if chosen.out:
        chosen.out.write_text(json.dumps(cells))
    else:
        write_results(
            "fairness",
            command=f"python -m benchmarks.fairness --seconds {chosen.seconds:g}",
            raw=cells,
            claims=found,
            before=before,
        )
    return 0 if all(claim.met for claim in found) else 1


if __name__ == "__main__":
    sys.exit(main())
