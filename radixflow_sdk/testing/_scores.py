"""Scores of options: from a table, or derived from a hash."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from radixflow_sdk._prompt import LABEL, LIKELIHOOD
from radixflow_sdk._requests import Label
from radixflow_sdk._results import LabelScore, TokenScore
from radixflow_sdk.exceptions import BranchError


class Scores:
    """A table from options to log-probabilities.

    Args:
        table: For each option, the log-probability of its one token, or the error that
            its branch fails with.
        default: For options that are not in the table; None derives a number between
            -10 and 0 from ``context`` and option, the same in every run.
    """

    def __init__(
        self,
        table: Mapping[str | tuple[int, ...], float | BranchError] | None,
        *,
        default: float | None,
    ) -> None:
        self._table = dict(table or {})
        self._default = default

    def of(
        self, content: str | tuple[int, ...], *, context: str = ""
    ) -> float | BranchError:
        """The score of a branch, found by its text with or without the template."""
        for key in _keys(content):
            if key in self._table:
                return self._table[key]
        if self._default is not None:
            return self._default
        digest = hashlib.blake2b(f"{context}\0{content}".encode(), digest_size=4)
        return -10.0 * (int.from_bytes(digest.digest()) + 1) / 2**32


def _keys(content: str | tuple[int, ...]) -> tuple[str | tuple[int, ...], ...]:
    if not isinstance(content, str):
        return (content,)
    inner = content.removeprefix(LABEL.before_option).removesuffix(LABEL.after_option)
    return content, inner, content.removeprefix(LIKELIHOOD.before_option)


def share(first: float, labels: Sequence[Label]) -> tuple[LabelScore, ...]:
    """The first label has its log-probability; the others share the rest evenly."""
    rest = math.log(max(-math.expm1(first), 1e-30) / max(len(labels) - 1, 1))
    return tuple(
        LabelScore(
            label=label,
            token_id=label if isinstance(label, int) else index,
            logprob=rest if index else first,
        )
        for index, label in enumerate(labels)
    )


def token(score: float, labels: Sequence[LabelScore] | None) -> TokenScore:
    """A branch's one token: its own, or with labels the most likely label.

    A token of probability 0.5 or more is the most likely one; any other is not.
    """
    if labels is None:
        return TokenScore(token_id=0, logprob=score, is_top=score >= math.log(0.5))
    best = max(labels, key=lambda label: label.logprob)
    return TokenScore(token_id=best.token_id, logprob=best.logprob, is_top=True)
