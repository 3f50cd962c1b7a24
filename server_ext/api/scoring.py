"""Read exact log-probabilities from vLLM's outputs, or fail by name.

A row that is missing, stale or not a number becomes a `BranchFailure`, so the caller
never has to check a log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import SamplingParams

from server_ext.policy.hints import TRIM_ROWS

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

__all__ = [
    "BranchFailure",
    "Reading",
    "read_id_rows",
    "read_labels",
    "read_next",
    "read_rows",
    "sampling",
]

MOST_POSITIVE = 1e-3
"""A log-probability above this is not one (float32 rounding stays far below)."""
MINUS_INFINITY = -9999.0
"""How some servers write minus infinity; no real log-probability is near it."""


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
    """Scores of a branch.

    Attributes:
        token_ids: the scored tokens (the generated one in label mode).
        token_logprobs: their natural log-probabilities, same length.
        token_is_top: whether no token is likelier there (a tie counts), same length;
            None where the rows do not hold it.
        labels: log-probability of each label token, label mode only.
    """

    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    token_is_top: tuple[bool, ...] | None
    labels: tuple[float, ...] | None = None


def sampling(
    *,
    hints: dict[str, Any],
    cached: bool,
    labels: Sequence[int] = (),
    scored: Sequence[int] = (),
    by_ids: bool = False,
) -> SamplingParams:
    """Sampling parameters of one request of a group.

    Args:
        hints: the wire's hints.
        cached: let the request read the prefix cache.
        labels: token ids to read from the generated row, empty for none.
        scored: the prompt's own last tokens, whose rows are read.
        by_ids: read them as vLLM's V2 model runner offers it, by id from a first row;
            else all rows of the prompt, which the scheduler trims.
    """
    internal: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    if scored and by_ids:
        start = hints["radixflow_scored_from"] - 1
        ids_of_rows = [[token] for token in scored]
        rows = {"prompt_logprob_token_ids": ids_of_rows, "prompt_logprob_start": start}
    elif scored:
        internal = TRIM_ROWS
        # Ask for the likeliest token too: vLLM's rank counts a tie at the top, common
        # in bfloat16, as a second place.
        rows = {"prompt_logprobs": 1}
    ids = list(dict.fromkeys(labels))
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        # Decoding the rows of cached tokens, which hold no token, kills the engine.
        detokenize=False,
        logprobs=len(ids) or None,
        logprob_token_ids=ids or None,
        skip_reading_prefix_cache=not cached,
        extra_args={**hints, **internal},
        **rows,
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


def read_id_rows(output: RequestOutput, scored: Sequence[int]) -> Reading:
    """The same from the V2 model runner, which gives the scored rows and no others.

    It withholds the rows of a request whose prefix-cache hit took a scored row.  The
    patch `prompt_logprobs` adds the likeliest token's value as a second column.

    Raises:
        BranchFailure: as for `read_rows`.
    """
    rows = getattr(output, "prompt_token_id_logprobs", None)
    if rows is None or len(rows) != len(scored) or not scored:
        raise BranchFailure(
            "missing_logprob",
            f"the engine gave {0 if rows is None else len(rows)} rows for "
            f"{len(scored)} scored tokens",
            retryable=False,
        )
    values = [float(row[0]) for row in rows]
    pairs = zip(scored, values, strict=True)
    tops = None if len(rows[0]) < 2 else tuple(bool(row[0] >= row[1]) for row in rows)
    return Reading(tuple(scored), tuple(_checked(*pair) for pair in pairs), tops)


def read_labels(output: RequestOutput, labels: Sequence[int]) -> Reading:
    """Log-probabilities of `labels` and of the generated token, from one row.

    Raises:
        BranchFailure: as for `read_rows`.
    """
    row, generated = _generated(output)
    return Reading(
        (generated,),
        (_value(row, generated),),
        (True,),  # temperature 0, and no rule of sampling
        tuple(_value(row, label) for label in labels),
    )


def read_next(output: RequestOutput, token: int) -> Reading:
    """Log-probability of a branch that is one token, from the row before it.

    Raises:
        BranchFailure: as for `read_rows`.
    """
    row, _ = _generated(output)
    value = _value(row, token)
    return Reading((token,), (value,), (_is_top(row, token),))


def _generated(output: RequestOutput) -> tuple[Any, int]:
    """The generated row, and the token that was generated: the likeliest one."""
    completion = output.outputs[0]
    if not completion.logprobs or not completion.token_ids:
        raise BranchFailure(
            "missing_logprob", "the engine gave no generated row", retryable=False
        )
    return completion.logprobs[0], completion.token_ids[0]


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
    return _checked(token, float(entry.logprob))


def _checked(token: int, value: float) -> float:
    if not MINUS_INFINITY < value <= MOST_POSITIVE:  # nor is NaN
        raise BranchFailure(
            "non_finite_logprob",
            f"the log-probability of token {token} is {value}",
            retryable=False,
        )
    return value
