"""A small benchmark of a running server.

The figures are this client's measurements and the server's counters over the same time.
The documents are random words under a salt of their own, so that the first question
about each is cold.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import Settings
from radixflow_sdk._events import ClientEvent, RequestEnded
from radixflow_sdk._requests import ScoreRequest
from radixflow_sdk._results import Progress
from radixflow_sdk._validate import check_count
from radixflow_sdk.exceptions import APIError

_TEXT = (
    "river mill harbour market garden window letter winter morning station village "
    "bridge teacher engine island mountain forest silver candle library doctor kitchen "
    "railway summer picture corner journey evening captain weather"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load.

    Attributes:
        groups: Number of questions.
        options: Candidates of each.
        documents: Distinct documents; the questions take them in turn.
        words: Words of each document.
        concurrency: Maximum concurrent groups.

    Raises:
        InvalidInputError: One of them is not a positive number.
    """

    groups: int = 64
    options: int = 4
    documents: int = 16
    words: int = 300
    concurrency: int = 16

    def __post_init__(self) -> None:
        for name in ("groups", "options", "documents", "words", "concurrency"):
            check_count(name, getattr(self, name))

    def requests(self, salt: str) -> Iterator[ScoreRequest]:
        """The questions; the same in every run, except for the salt."""
        rng = random.Random(7)
        texts = [
            " ".join(rng.choices(WORDS, k=self.words)) for _ in range(self.documents)
        ]
        for number in range(self.groups):
            yield ScoreRequest(
                document=texts[number % self.documents],
                question=f"Which word is number {number + 1}?",
                options=[
                    f"{rng.choice(WORDS)} {place}" for place in range(self.options)
                ],
                cache_salt=salt,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The measurements.

    Attributes:
        groups: Groups with a result.
        failed: Groups without.
        error: Why the first of them failed, or None.
        seconds: From the first request to the last answer.
        groups_a_second: `groups` over `seconds`.
        p50: Median seconds from call to result; None without a result.
        p95: 95th percentile of the same.
        prompt_tokens: Tokens of the prompts of all branches.
        computed_tokens: Tokens computed for them, with the shared prefixes.
        reuse: Share of the prompt tokens that was not computed.
        rounds: Worker rounds of the server in that time; None where it has no counter.
        rows_a_round: Mean number of requests in a round.
        at_a_time: Mean number of groups on the server; less than ``concurrency`` while
            the server is overloaded.
        others: Requests on the server before the first of this client.
        route: How the scores were computed.
    """

    groups: int
    failed: int
    error: str | None
    seconds: float
    groups_a_second: float
    p50: float | None
    p95: float | None
    prompt_tokens: int
    computed_tokens: int
    reuse: float | None
    rounds: int | None
    rows_a_round: float | None
    at_a_time: float
    others: int | None
    route: str | None


async def measure(
    settings: Settings,
    load: Load,
    *,
    model: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Figures:
    """Send a load to the servers of the settings.

    One group runs first and is not counted, to open connections and warm up the server.
    With several servers the rounds are not reported, since each server counts its own.

    Raises:
        RadixFlowError: The first group failed.
    """
    async with RadixFlowClient(
        settings.base_urls,
        api_key=settings.api_key,
        model=model,
        max_connections=load.concurrency,
        timeout=settings.timeouts,
    ) as client:
        ask = client.stats if len(settings.base_urls) == 1 else None
        spent: list[float] = []
        watched = client.with_options(on_event=partial(_note_time, spent))
        [first] = Load(groups=1, words=8).requests(f"bench-{uuid.uuid4().hex}")
        await client.run(first)
        before = await _stats(ask)
        began = time.perf_counter()
        outcomes = await watched.score_all(
            load.requests(f"bench-{uuid.uuid4().hex}"),
            concurrency=load.concurrency,
            progress=progress,
        )
        seconds = time.perf_counter() - began
        after = await _stats(ask)
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    times = sorted(result.elapsed for result in results)
    prompt = sum(result.usage.prompt_tokens for result in results)
    computed = sum(result.usage.computed_tokens for result in results)
    rounds, rows = (_grown(before, after, name) for name in ("rounds", "rows"))
    gauges = (before or {}).get("gauges") or {}
    return Figures(
        groups=len(results),
        failed=len(errors),
        error=str(errors[0]) if errors else None,
        seconds=seconds,
        groups_a_second=len(results) / seconds,
        p50=quantile(times, 0.5),
        p95=quantile(times, 0.95),
        prompt_tokens=prompt,
        computed_tokens=computed,
        reuse=1 - computed / prompt if prompt else None,
        rounds=rounds,
        rows_a_round=rows / rounds if rows is not None and rounds else None,
        at_a_time=sum(spent) / seconds,
        others=gauges["running"] + gauges["waiting"] if gauges else None,
        route=results[0].route if results else None,
    )


def _note_time(spent: list[float], event: ClientEvent) -> None:
    if isinstance(event, RequestEnded):
        spent.append(event.elapsed)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed."""
    if not ordered:
        return None
    below = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(below, 1) - 1]


async def _stats(
    ask: Callable[[], Awaitable[Mapping[str, Any]]] | None,
) -> Mapping[str, Any] | None:
    """The server's statistics; None where it has none."""
    try:
        return None if ask is None else await ask()
    except APIError:
        return None


def _grown(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, name: str
) -> int | None:
    earlier = ((before or {}).get("counters") or {}).get(name)
    later = ((after or {}).get("counters") or {}).get(name)
    return (
        later - earlier if isinstance(earlier, int) and isinstance(later, int) else None
    )
