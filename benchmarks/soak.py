"""Twenty minutes of everything at once, and every answer checked.

    python -m benchmarks.soak                 # 20 minutes
    python -m benchmarks.soak --minutes 2     # no results file

One real server with the bundled model. Eight tasks score groups in both modes for three
tenants (cache salts); some are cancelled in mid-flight, some hang up after the first
event; two more stream chats with top log-probabilities into the same rounds. At half
time the server is killed (SIGKILL, all its processes) and started again on its port.

Each score is held against its cold reference, which vLLM's own ``/v1/completions`` gave
before the soak on an idle server, without the prefix cache. At the end nothing may be
left in the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks._harness import Claim, Server, show_claims, write_results
from benchmarks.end_to_end import Group, loads, through_completions
from radixflow_sdk import RadixFlowClient, RadixFlowError, Timeouts

SCORERS, CHATTERS = 8, 2
TENANTS = ("tenant-a", "tenant-b", "tenant-c")
MODES = ("likelihood", "label")
CANCELLED, HUNG_UP = 0.15, 0.10
AGREE_NAT = 0.1
"""What two runs in bfloat16 may differ by; a wrong state is off by tenths."""
GAUGES = ("running", "waiting", "held", "parked", "oldest_blocked_s")

Reference = dict[tuple[int, str], tuple[float, ...]]


@dataclass
class Seen:
    """What happened.

    Attributes:
        counts: answers and failures by kind.
        differences: of each score from its reference, in nats.
        outage: while true, the server is being killed and started again.
        errors: messages of failures outside the outage.
        gauges: the largest value of each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[float] = field(default_factory=list)
    outage: bool = False
    errors: list[str] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)

    def failed(self, kind: str, error: Exception, *, began_in_outage: bool) -> None:
        """Count a failure, and keep its words unless the server was away."""
        if self.outage or began_in_outage:
            self.counts[f"{kind}: failed in the outage"] += 1
        else:
            self.counts[f"{kind}: failed"] += 1
            self.errors.append(f"{kind}: {type(error).__name__}: {error}")


async def references(url: str, groups: Sequence[Group]) -> Reference:
    """Every group's scores, one group at a time, without the prefix cache."""
    found: Reference = {}
    for number, group in enumerate(groups):
        for mode in MODES:
            salt = f"reference-{number}-{mode}"
            answer = (await through_completions(url, [group], mode, salt))[0]
            if answer.scores is None:  # a label outside the twenty likeliest
                continue
            found[number, mode] = answer.scores
    return found


async def score_on(
    client: RadixFlowClient,
    groups: Sequence[Group],
    expected: Reference,
    seen: Seen,
    dice: random.Random,
) -> None:
    """Score one random group, as one of several kinds of caller."""
    number, mode = dice.choice(list(expected))
    group, away = groups[number], seen.outage
    order = dice.sample(range(4), 4)
    asked = client.score_candidates(
        group.document,
        [group.question.options[place] for place in order],
        question=group.question.question,
        scoring=mode,  # type: ignore[arg-type]
        cache_salt=dice.choice(TENANTS),
    )
    patience = dice.uniform(0.0, 0.5) if dice.random() < CANCELLED else None
    try:
        result = await asyncio.wait_for(asked, patience)
    except TimeoutError:
        seen.counts["scored: cancelled"] += 1
        return
    except RadixFlowError as error:
        seen.failed("scored", error, began_in_outage=away)
        return
    seen.counts[f"scored: answered ({mode})"] += 1
    for candidate in result.candidates:
        reference = expected[number, mode][order[candidate.index]]
        seen.differences.append(abs(candidate.score - reference))


async def hang_up(
    http: httpx.AsyncClient, groups: Sequence[Group], seen: Seen, dice: random.Random
) -> None:
    """Read the first event of a group, then leave."""
    group, away = dice.choice(groups), seen.outage
    body = {
        "document": {"text": group.document},
        "branches": [{"text": f" {option}"} for option in group.question.options],
        "cache_salt": dice.choice(TENANTS),
    }
    try:
        async with http.stream("POST", "/v1/branches", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_lines():
                break
        seen.counts["hung up"] += 1
    except httpx.HTTPError as error:
        seen.failed("hung up", error, began_in_outage=away)


async def chat(
    http: httpx.AsyncClient, groups: Sequence[Group], seen: Seen, dice: random.Random
) -> None:
    """Generate with top log-probabilities; every token must have five."""
    group, away = dice.choice(groups), seen.outage
    body = {
        "model": "radixflow-demo",
        "prompt": group.document[: dice.randrange(200, 2000)],
        "max_tokens": dice.randrange(10, 80),
        "temperature": 0,
        "logprobs": 5,
        "ignore_eos": True,
    }
    try:
        answer = await http.post("/v1/completions", json=body)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        seen.failed("chat", error, began_in_outage=away)
        return
    rows = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
    whole = len(rows) == body["max_tokens"] and all(len(row) >= 4 for row in rows)
    seen.counts["chat: answered" if whole else "chat: without its rows"] += 1


async def watch(http: httpx.AsyncClient, seen: Seen, until: float) -> None:
    """Keep the largest value of every gauge."""
    while time.monotonic() < until:
        await asyncio.sleep(2)
        try:
            stats = (await http.get("/v1/radixflow/stats")).json()
        except (httpx.HTTPError, ValueError):
            continue
        for name in GAUGES:
            most = max(seen.gauges.get(name, 0), stats.get("gauges", {}).get(name, 0))
            seen.gauges[name] = most


async def kill_once(server: Server, seen: Seen, at: float) -> None:
    """Kill the server at its time, and have it back."""
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    seen.outage = True
    await asyncio.to_thread(server.kill_and_restart)
    await asyncio.to_thread(server.wait)
    seen.outage = False
    seen.counts["server: killed and back"] += 1


async def soak(
    server: Server, groups: Sequence[Group], minutes: float, seed: int
) -> Seen:
    """All of it for `minutes`."""
    seen = Seen()
    expected = await references(server.url, groups)
    began = time.monotonic()
    until = began + 60 * minutes
    http = httpx.AsyncClient(base_url=server.url, timeout=120)
    client = RadixFlowClient(
        server.url, max_connections=SCORERS, timeout=Timeouts(total=120)
    )

    async def score_forever(place: int) -> None:
        dice = random.Random(f"{seed} scores {place}")
        while time.monotonic() < until:
            if dice.random() < HUNG_UP:
                await hang_up(http, groups, seen, dice)
            else:
                await score_on(client, groups, expected, seen, dice)
            await asyncio.sleep(dice.uniform(0, 0.2) + seen.outage)

    async def chat_forever(place: int) -> None:
        dice = random.Random(f"{seed} chats {place}")
        while time.monotonic() < until:
            await chat(http, groups, seen, dice)
            await asyncio.sleep(dice.uniform(0, 1) + seen.outage)

    async def show() -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns) as progress:
            bar = progress.add_task("soaking", total=60 * minutes)
            while (now := time.monotonic()) < until:
                answered = sum(n for k, n in seen.counts.items() if "answered" in k)
                progress.update(
                    bar, completed=now - began, description=f"{answered} answered"
                )
                await asyncio.sleep(1)

    async with http, client, asyncio.TaskGroup() as tasks:
        for place in range(SCORERS):
            tasks.create_task(score_forever(place))
        for place in range(CHATTERS):
            tasks.create_task(chat_forever(place))
        tasks.create_task(watch(http, seen, until))
        tasks.create_task(kill_once(server, seen, began + 30 * minutes))
        tasks.create_task(show())
    return seen


def gauges_when_idle(server: Server, seconds: float = 30) -> dict[str, float]:
    """The gauges once they are all zero, or as they are after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = server.settings()["gauges"]
        left = {name: found[name] for name in GAUGES}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def claims(seen: Seen, left: dict[str, float]) -> list[Claim]:
    """What a soak is held to."""
    wrong = sum(difference > AGREE_NAT for difference in seen.differences)
    kills = seen.counts["server: killed and back"]
    lost = seen.counts["chat: without its rows"]
    worst = round(max(seen.differences, default=float("inf")), 4)
    return [
        Claim("scores that were checked", len(seen.differences), "scores", 1, ">="),
        Claim("scores off their cold reference", wrong, "scores", 0, "<="),
        Claim("largest difference from a cold reference", worst, "nat", 0.1, "<="),
        Claim("failures while the server was there", len(seen.errors), "", 0, "<="),
        Claim("chats that lost their log-probabilities", lost, "chats", 0, "<="),
        Claim("times the server was killed and came back", kills, "", 1, ">="),
        *(
            Claim(f"{name} at the end", value, "", 0, "<=")
            for name, value in left.items()
        ),
    ]


def main() -> int:
    """Soak, show, write; 1 where a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    groups = [group for load in loads(quick=False).values() for group in load][:48]
    with Server("NotedRadixFlowScheduler") as server:
        server.wait()
        seen = asyncio.run(soak(server, groups, chosen.minutes, chosen.seed))
        left = gauges_when_idle(server)
        counters = server.settings()["counters"]
    found = claims(seen, left)
    console = Console()
    for kind, count in sorted(seen.counts.items()):
        console.print(f"{count:>7} {kind}")
    for error in seen.errors[:10]:
        console.print(error, markup=False)
    show_claims(found)
    if chosen.minutes >= 20:
        write_results(
            "soak",
            command="python -m benchmarks.soak",
            raw=[{"kind": kind, "count": n} for kind, n in sorted(seen.counts.items())],
            claims=found,
            largest_gauges=seen.gauges,
            counters_since_restart=counters,
            errors=seen.errors[:50],
        )
    return 0 if all(claim.met for claim in found) else 1


if __name__ == "__main__":
    sys.exit(main())
