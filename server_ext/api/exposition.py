"""Prometheus: the scheduler's counters as ``radixflow_*`` series on ``/metrics``.

The scheduler lives in another process, so its snapshot is fetched once a second.
A scrape reads the last snapshot and never waits for the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from server_ext.api.protocol import RequestRefused

__all__ = ["SchedulerCollector"]

logger = logging.getLogger("vllm.radixflow")

PERIOD = 1.0
"""Seconds between two snapshots."""

_HELP = {
    "rounds": "Worker rounds (scheduler steps that had work)",
    "rows": "Requests scheduled, summed over the rounds",
    "tokens": "Tokens scheduled, summed over the rounds",
    "prompt_tokens": "Prompt tokens of admitted requests",
    "cached_tokens": "Prompt tokens read from the prefix cache at admission",
    "blocked": "Branches found BLOCKED at least once",
    "blocked_visits": "Visits that found a branch BLOCKED",
    "woken": "Branches that were BLOCKED and have been scheduled since",
    "recovered_rows": "Slots filled behind a BLOCKED branch in the same round",
    "deferred": "Branches that fragment deferral skipped, summed over the rounds",
    "lookups": "Prefix-cache lookups of waiting requests",
    "hints": "Requests with usable hints",
    "hints_ignored": "Requests whose hints were malformed",
    "capped_hits": "Hits shortened so that a scored row is computed",
    "scans_cut": "Rounds whose scan ended at the scan limit",
    "audited": "Rounds that debug mode audited",
    "bubbles": "Of these, rounds that left out a READY branch that fitted",
    "host_us": "Time in schedule(), in microseconds",
    "held": "Branches held for at least one round by the admission gate",
    "overtakes": "Releases that passed a branch which had arrived earlier",
    "running": "Requests running",
    "waiting": "Requests waiting, with held ones and those in prefix buckets",
    "parked": "Requests waiting in prefix buckets",
    "oldest_blocked_s": "Seconds since the longest BLOCKED branch was first found so",
    "longest_hold_s": "Longest hold so far, in seconds",
}


class SchedulerCollector(Collector):
    """Shows the last snapshot.

    Args:
        fetch: gets a snapshot from the engine.
    """

    def __init__(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._fetch = fetch
        self._last: dict[str, Any] = {}

    async def follow(self) -> None:
        """Fetch a snapshot every `PERIOD` seconds until the engine ends."""
        while True:
            try:
                self._last = await self._fetch()
            except RequestRefused:
                logger.info("RadixFlow metrics stop: the engine has ended")
                return
            await anyio.sleep(PERIOD)

    def collect(self) -> Iterator[Metric]:
        """The series, as of the last snapshot; none before the first."""
        for name, value in (self._last.get("counters") or {}).items():
            yield CounterMetricFamily(f"radixflow_{name}", _help(name), value)
        for name, value in (self._last.get("gauges") or {}).items():
            yield GaugeMetricFamily(f"radixflow_{name}", _help(name), value)
        policy = self._last.get("policy")
        if policy is not None:
            shown = {name: str(value) for name, value in policy.items()}
            yield InfoMetricFamily("radixflow_policy", "The policy in force", shown)

    def describe(self) -> Iterator[Metric]:
        """Nothing to declare at registration: the names come with the snapshot."""
        return iter(())


def _help(name: str) -> str:
    return _HELP.get(name, name)
