"""Rows, read: from vLLM's outputs to exact numbers or a named failure.

Every way in which a row could be missing, stale or not a number ends here in a
`BranchFailure`; nothing past this room has to doubt a log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import SamplingParams

from server_ext.hints import STATE_ONLY, TRIM_ROWS

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

__all__ = ["BranchFailure", "Reading", "read_labels", "read_rows", "sampling"]

MOST_POSITIVE = 1e-3
"""A log-probability above this is not one (float32 rounding stays far below)."""
MINUS_INFINITY = -9999.0
"""How some servers spell it; no real log-probability comes near."""


class BranchFailure(Exception):
    """One branch has no answer.

    Attributes:
        code: the wire's error code.
        retryable: whether asking again may help.
    """

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Reading:
    """What a branch came to.

    Attributes:
        token_ids: the scored tokens (the generated one in label mode).
        token_logprobs: their natural log-probabilities, same length.
        token_is_top: whether no token is likelier there (a tie counts), same length.
        labels: log-probability of each label token, label mode only.
    """

    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    token_is_top: tuple[bool, ...]
    labels: tuple[float, ...] | None = None


def sampling(
    *, hints: dict[str, Any], labels: Sequence[int], scored: bool, cached: bool
) -> SamplingParams:
    """Sampling parameters of one request of a group.

    Args:
        hints: the wire's hints.
        labels: token ids to read from the generated row, empty for none.
        scored: read the prompt's own rows.  With neither, the state alone is wanted.
        cached: let the request read the prefix cache.
    """
    internal = TRIM_ROWS if scored else STATE_ONLY if not labels else {}
    ids = list(dict.fromkeys(labels))
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        # Decoding the rows of cached tokens, which hold no token, kills the engine.
        detokenize=False,
        # The likeliest token too: vLLM's rank takes a tie for the top, which bfloat16
        # often has, for a second place.
        prompt_logprobs=1 if scored else None,
        logprobs=len(ids) or None,
        logprob_token_ids=ids or None,
        skip_reading_prefix_cache=not cached,
        extra_args={**hints, **internal},
    )


def read_rows(output: RequestOutput, scored: Sequence[int]) -> Reading:
    """Log-probabilities of the last ``len(scored)`` prompt tokens.

    Raises:
        BranchFailure: a row is missing, is another token's, or is not a number.
    """
    rows = output.prompt_logprobs
    if rows is None or len(rows) < len(scored) or not scored:
        raise BranchFailure(
            "missing_logprob",
            f"the engine gave {len(rows or ())} rows for {len(scored)} scored tokens",
            retryable=False,
        )
    pairs = list(zip(scored, list(rows)[-len(scored) :], strict=True))
    values = tuple(_value(row, token) for token, row in pairs)
    return Reading(tuple(scored), values, tuple(_is_top(row, at) for at, row in pairs))


def read_labels(output: RequestOutput, labels: Sequence[int]) -> Reading:
    """Log-probabilities of `labels` and of the generated token, from one row.

    Raises:
        BranchFailure: as for `read_rows`.
    """
    completion = output.outputs[0]
    if not completion.logprobs or not completion.token_ids:
        raise BranchFailure(
            "missing_logprob", "the engine gave no row for the labels", retryable=False
        )
    row, generated = completion.logprobs[0], completion.token_ids[0]
    return Reading(
        (generated,),
        (_value(row, generated),),
        (True,),  # temperature 0, and no rule of sampling
        tuple(_value(row, label) for label in labels),
    )


def _is_top(row: Any, token: int) -> bool:
    own = row[token].logprob
    return all(entry.logprob <= own for entry in row.values())


def _value(row: Any, token: int) -> float:
    entry = row.get(token) if row is not None else None
    if entry is None:
        raise BranchFailure(
            "missing_logprob",
            f"the row has no entry for token {token}",
            retryable=False,
        )
    value = float(entry.logprob)
    if not MINUS_INFINITY < value <= MOST_POSITIVE:  # nor is NaN
        raise BranchFailure(
            "non_finite_logprob",
            f"the log-probability of token {token} is {value}",
            retryable=False,
        )
    return value
