"""Accuracies that a run must reach (``--fail-under``), and the run's exit status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radixflow_sdk._requests import Normalize
from radixflow_sdk.evals.run import Setup
from radixflow_sdk.evals.summary import Summary
from radixflow_sdk.exceptions import InvalidInputError

OK = 0
FAILED = 1
"""A question failed, or the server could not be asked."""
BELOW = 3
"""An accuracy is under its limit."""
INTERRUPTED = 130
"""Ctrl-C, as the shells have it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The least accuracy under one normalizer."""

    normalizer: Normalize
    accuracy: float


def read_limit(words: str, setup: Setup) -> Limit:
    """A limit such as ``char=0.6``.

    Raises:
        InvalidInputError: It is none, or the run has no such normalizer.
    """
    given, _, number = words.partition("=")
    name = next((name for name in setup.normalizers if name == given), None)
    try:
        accuracy = float(number)
    except ValueError:
        accuracy = -1.0
    if name is None or not 0 <= accuracy <= 1:
        raise InvalidInputError(
            f"fail_under is {words!r}; write NORMALIZER=ACCURACY, such as char=0.6, "
            f"the accuracy from 0 to 1; this run has {', '.join(setup.normalizers)}.",
            field="fail_under",
            value=words,
        )
    return Limit(name, accuracy)


def missed(summary: Summary, limits: Sequence[Limit]) -> Iterator[str]:
    """A sentence for each limit that the run does not reach."""
    for limit in limits:
        found = summary.measures.get(limit.normalizer)
        if found is not None and found.accuracy < limit.accuracy:
            yield (
                f"{limit.normalizer} is {found.accuracy:.6g} ({found.right} of "
                f"{found.count}), under {limit.accuracy:g}"
            )


def exit_status(summary: Summary, limits: Sequence[Limit]) -> int:
    """The exit status of ``radixflow eval``."""
    if summary.stopped or summary.failed:
        return FAILED
    return BELOW if any(missed(summary, limits)) else OK
