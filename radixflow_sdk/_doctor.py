"""What is wrong with a server, and what to change: looked at from outside.

Reads the server's own account, then scores one document twice, since a silent 0 % of
reuse shows nowhere else. This room must not write to the terminal, and must not stop at
the first finding where more can be learnt.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, read_settings
from radixflow_sdk._transport import HTTPTransport
from radixflow_sdk.exceptions import RadixFlowError
from radixflow_sdk.types import ScoreResult

T = TypeVar("T")

# As long as a page or two: several matches long, and well inside any context.
SAMPLE = "The river runs past the old mill and on to the harbour of the town. " * 60
_OPTIONS = ("yes", "no")

# Cold and cached scores are computed in other shapes; in bf16 this much is rounding.
_ROUNDING = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``ok``; ``note`` for what may be meant so; ``bad`` for what needs a
            change.
        what: What was seen.
        change: What to change.
    """

    level: Literal["ok", "note", "bad"]
    what: str
    change: str = ""


async def examine(
    base_url: str | None,
    *,
    model: str | None = None,
    document: str | None = None,
    timeout: float | None = None,
) -> AsyncGenerator[Finding, None]:
    """Look at one server; yield each finding as it is made.

    Raises:
        InvalidInputError: An argument is not usable.
    """
    settings = read_settings(
        base_url=base_url,
        api_key=None,
        timeout=timeout,
        retry=RetryPolicy(attempts=1),
        max_connections=1,
    )
    transport = HTTPTransport(settings)
    async with RadixFlowClient(
        settings.base_urls[0],
        model=model,
        transport=transport,
        timeout=settings.timeouts,
        retry=settings.retry,
    ) as client:
        names, finding = await _ask(transport.models, "answers and serves")
        yield finding
        if names is None:
            return
        stats, finding = await _ask(transport.stats, "has the plug-in")
        yield finding
        for finding in [] if stats is None else look_at_stats(stats):
            yield finding
        text = SAMPLE if document is None else document
        salt = f"doctor-{uuid.uuid4().hex}"
        results = []
        for which in ("a new document", "the same document again"):
            score = partial(client.score_candidates, text, _OPTIONS, cache_salt=salt)
            result, finding = await _ask(score, f"scores {which}")
            yield finding
            if result is None:
                return
            results.append(result)
        cold, warm = results
        for finding in look_at_results(cold, warm, (stats or {}).get("settings") or {}):
            yield finding


async def _ask(
    question: Callable[[], Awaitable[T]], good: str
) -> tuple[T | None, Finding]:
    began = time.perf_counter()
    try:
        answer = await question()
    except RadixFlowError as error:
        return None, Finding(level="bad", what=f"not so: {good}", change=str(error))
    spent = 1000 * (time.perf_counter() - began)
    named = f" {', '.join(answer)}" if isinstance(answer, tuple) else ""
    return answer, Finding(level="ok", what=f"{good}{named} ({spent:.0f} ms)")


def look_at_stats(stats: Mapping[str, Any]) -> list[Finding]:
    """What the server's own account tells."""
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
    if not isinstance(settings, Mapping):
        return findings
    if not settings.get("prefix_caching"):
        what = "prefix caching is off: every branch computes the whole document"
        change = "serve with --enable-prefix-caching"
        findings.append(Finding(level="bad", what=what, change=change))
    if (mode := settings.get("mamba_cache_mode")) != "align":
        what = f"the recurrent state's cache mode is {mode}"
        change = (
            "for a model with recurrent layers, serve with --mamba-cache-mode align"
        )
        findings.append(Finding(level="note", what=what, change=change))
    return findings


def look_at_results(
    cold: ScoreResult, warm: ScoreResult, settings: Mapping[str, Any]
) -> list[Finding]:
    """What two answers about one document tell, of its length and of reuse."""
    tokens, unit = warm.document_tokens, settings.get("match_unit")
    block = settings.get("block_size")
    findings = []
    if isinstance(unit, int) and isinstance(block, int):
        findings.append(_look_at_length(tokens, unit, block))
    cached, prompt = warm.usage.cached_tokens, warm.usage.prompt_tokens
    reuse = (
        f"{cached / max(prompt, 1):.0%} of the repeated document's tokens were reused"
    )
    if cached == 0:
        change = "use documents longer than the match unit, or serve with a smaller one"
        findings.append(Finding(level="bad", what=reuse, change=change))
    elif isinstance(unit, int) and cached < (tokens - 2 * unit) * len(_OPTIONS):
        change = "see whether the cache is too small (--gpu-memory-utilization)"
        findings.append(Finding(level="note", what=reuse, change=change))
    else:
        findings.append(Finding(level="ok", what=reuse))
    apart = _difference(cold, warm)
    what = f"cold and cached scores differ by at most {apart:.3f} nat"
    if apart > _ROUNDING:
        change = "do not rely on its scores; report this with the server's log"
        findings.append(Finding(level="bad", what=what, change=change))
    else:
        findings.append(Finding(level="ok", what=what))
    return findings


def _look_at_length(tokens: int, unit: int, block: int) -> Finding:
    what = (
        f"the document has {tokens} tokens; a branch resumes at multiples of {unit}, "
        f"and a block has {block}"
    )
    if tokens < unit:
        change = (
            f"nothing of it can be reused: serve with --prefix-match-unit < {tokens}"
        )
        return Finding(level="bad", what=what, change=change)
    return Finding(level="ok", what=what)


def _difference(cold: ScoreResult, warm: ScoreResult) -> float:
    first = {candidate.index: candidate.score for candidate in cold.candidates}
    return max(abs(first[c.index] - c.score) for c in warm.candidates)
