"""Diagnose a server: what is wrong, and what to change.

Reads the server's statistics, then scores one document twice to measure cache reuse. On
request `_exact` compares cached with uncached scores.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, read_settings
from radixflow_sdk._exact import Trial, try_exactness
from radixflow_sdk._findings import Finding
from radixflow_sdk._results import ScoreResult
from radixflow_sdk.exceptions import RadixFlowError

T = TypeVar("T")

# One or two pages: several match units, and well inside any context.
SAMPLE = "The river runs past the old mill and on to the harbour of the town. " * 60
# Two tokens each: options of one token are read together, in one request, and show
# nothing about the cache.
_OPTIONS = ("yes it", "no it")

# Cold and cached scores are computed in different batch shapes; this is bf16 rounding.
_ROUNDING = 0.25

# Few-shot examples and passages are often shorter than this many tokens.
_LONG_UNIT = 128


async def examine(
    base_url: str | None,
    *,
    model: str | None = None,
    document: str | None = None,
    timeout: float | None = None,
    exact: bool = False,
) -> AsyncGenerator[Finding, None]:
    """Examine one server; yield each finding as it is known.

    Args:
        base_url: The server.
        model: A served model.
        document: A text that replaces `SAMPLE`.
        timeout: Seconds for each request.
        exact: Also compare cached with uncached scores.

    Raises:
        InvalidInputError: An argument is not usable.
    """
    settings = read_settings(
        base_url=base_url, timeout=timeout, retry=RetryPolicy(attempts=1)
    )
    async with RadixFlowClient(
        settings.base_urls[0],
        model=model,
        timeout=settings.timeouts,
        retry=settings.retry,
        route="branches",
    ) as client:
        names, finding = await _try(
            client.models, "answers and serves", "does not answer as a vLLM server"
        )
        yield finding
        if names is None:
            return
        stats, finding = await _try(
            client.stats, "has the plug-in", "does not show that it has the plug-in"
        )
        yield finding
        for finding in [] if stats is None else check_stats(stats):
            yield finding
        text = SAMPLE if document is None else document
        salt = f"doctor-{uuid.uuid4().hex}"
        results = []
        for which in ("a new document", "the same document again"):
            score = partial(client.score_candidates, text, _OPTIONS, cache_salt=salt)
            result, finding = await _try(
                score, f"scores {which}", f"does not score {which}"
            )
            yield finding
            if result is None:
                return
            results.append(result)
        cold, warm = results
        measured = (stats or {}).get("settings") or {}
        for finding in check_results(cold, warm, measured):
            yield finding
        if exact:
            async for finding in _compare_scores(client, stats or {}):
                yield finding


async def _compare_scores(
    client: RadixFlowClient, stats: Mapping[str, Any]
) -> AsyncGenerator[Finding, None]:
    settings = stats.get("settings")
    if not isinstance(settings, Mapping) or not settings.get("match_unit"):
        what = "cached and uncached scores are compared on RadixFlow's scheduler only"
        change = "start it with `radixflow serve MODEL`, and without --scheduler-cls"
        yield Finding(level="bad", what=what, change=change)
        return
    try:
        async for finding in try_exactness(client, settings, Trial()):
            yield finding
    except* RadixFlowError as errors:
        change = str(errors.exceptions[0])
        what = "does not answer all that a comparison of its scores asks"
        yield Finding(level="bad", what=what, change=change)


async def _try(
    query: Callable[[], Awaitable[T]], good: str, bad: str
) -> tuple[T | None, Finding]:
    began = time.perf_counter()
    try:
        answer = await query()
    except RadixFlowError as error:
        return None, Finding(level="bad", what=bad, change=str(error))
    spent = 1000 * (time.perf_counter() - began)
    named = f" {', '.join(answer)}" if isinstance(answer, tuple) else ""
    return answer, Finding(level="ok", what=f"{good}{named} ({spent:.0f} ms)")


def check_stats(stats: Mapping[str, Any]) -> list[Finding]:
    """Findings from the server's statistics."""
    versions = f"RadixFlow {stats.get('version')} on vLLM {stats.get('vllm_version')}"
    findings = [Finding(level="ok", what=versions)]
    scheduler, settings = stats.get("scheduler"), stats.get("settings")
    if scheduler != "RadixFlowScheduler":
        change = "start it with `radixflow serve MODEL`, and without --scheduler-cls"
        what = f"its scheduler is {scheduler}: a blocked branch stops the others"
        findings.append(Finding(level="bad", what=what, change=change))
    elif isinstance(policy := stats.get("policy"), Mapping):
        what = f"its scheduler is {scheduler}, policy {policy.get('name')}"
        findings.append(Finding(level="ok", what=what))
    if isinstance(engine := stats.get("engine"), Mapping):
        findings += _check_engine(engine, settings or {})
    if not isinstance(settings, Mapping):
        return findings
    if not settings.get("prefix_caching"):
        what = "prefix caching is off: every branch computes the whole document"
        change = "serve with --enable-prefix-caching"
        findings.append(Finding(level="bad", what=what, change=change))
    unit = _count(settings, "match_unit")
    if unit is not None and unit >= _LONG_UNIT:
        what = f"prefixes of fewer than {unit} tokens are never reused"
        change = "serve with a smaller --block-size; 32 on a CPU, 16 on a GPU"
        findings.append(Finding(level="note", what=what, change=change))
    if (mode := settings.get("mamba_cache_mode")) != "align":
        what = f"the recurrent state's cache mode is {mode}"
        change = (
            "for a model with recurrent layers, serve with --mamba-cache-mode align"
        )
        findings.append(Finding(level="note", what=what, change=change))
    return findings


def _check_engine(
    engine: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[Finding]:
    scheduling = "asynchronous" if settings.get("async_scheduling") else "synchronous"
    what = (
        f"model runner {engine.get('model_runner')}, cache layout "
        f"{engine.get('kv_cache_layout')}, {scheduling} scheduling"
    )
    findings = [Finding(level="ok", what=what)]
    workers = engine.get("workers") or []
    if held := {name for names in workers for name in names}:
        what = f"{len(workers)} workers hold the patches {', '.join(sorted(held))}"
        findings.append(Finding(level="ok", what=what))
    return findings


def check_results(
    cold: ScoreResult, warm: ScoreResult, settings: Mapping[str, Any]
) -> list[Finding]:
    """Findings from two answers about one document: its length, and cache reuse."""
    findings = _check_reuse(warm, settings)
    apart = _difference(cold, warm)
    what = f"cold and cached scores differ by at most {apart:.3f} nat"
    if apart > _ROUNDING:
        change = "do not rely on its scores; report this with the server's log"
        findings.append(Finding(level="bad", what=what, change=change))
    else:
        findings.append(Finding(level="ok", what=what))
    return findings


def _check_reuse(warm: ScoreResult, settings: Mapping[str, Any]) -> list[Finding]:
    if warm.route != "branches":
        what = "only the plug-in reports how much of a repeated document is reused"
        return [Finding(level="note", what=what)]
    tokens, unit = warm.document_tokens, _count(settings, "match_unit")
    cached = min(candidate.cached_tokens for candidate in warm.candidates)
    length = f"the document has {tokens} tokens"
    reuse = (
        f"{cached} of the repeated document's {tokens} tokens were reused "
        f"({cached / max(tokens, 1):.0%})"
    )
    most = None
    if unit is not None:
        # The last token is computed again: its logits row has the option's first score.
        most = max(warm.shared_tokens - 1, 0) // unit * unit
        length += f"; a branch resumes at multiples of {unit}"
    if block := _count(settings, "block_size"):
        length += f", and a block has {block}"
    if most == 0:
        change = (
            "every branch computes all of so short a document; what is reused is of "
            f"documents of more than {unit} tokens"
        )
        return [
            Finding(level="warn", what=f"{length}: too short to reuse", change=change),
            Finding(level="ok", what=f"{reuse}, as it must be of one so short"),
        ]
    findings = [] if most is None else [Finding(level="ok", what=length)]
    if cached == 0:
        change = (
            "every branch computes the whole document: fix what is BAD above, or give "
            "the cache more room (--gpu-memory-utilization, --kv-cache-memory-bytes)"
        )
        findings.append(Finding(level="bad", what=reuse, change=change))
    elif unit and most and cached < most - unit:
        change = "see whether the cache is too small (--gpu-memory-utilization)"
        findings.append(Finding(level="warn", what=reuse, change=change))
    else:
        findings.append(Finding(level="ok", what=reuse))
    return findings


def _count(settings: Mapping[str, Any], name: str) -> int | None:
    value = settings.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _difference(cold: ScoreResult, warm: ScoreResult) -> float:
    first = {candidate.index: candidate.score for candidate in cold.candidates}
    return max(abs(first[c.index] - c.score) for c in warm.candidates)
