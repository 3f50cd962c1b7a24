"""From log-probabilities to scores, probabilities and a ranking. Pure arithmetic.

Normalisers, with LL the sum of the log-probabilities of the option's tokens:

* ``sum``: LL. With label scoring, log P(first label).
* ``mean``: LL / number of tokens.
* ``char``: LL / ``len(option)``, lm-evaluation-harness's ``acc_norm``.
* ``byte``: LL / length of the option in UTF-8, its ``acc_bytes``.
* ``label``: log (P(first label) / sum of P(label)), label scoring only.

The option's length is that of the text as given, without the template's delimiter, as
in lm-evaluation-harness. This room must not know where the numbers came from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from radixflow_sdk.types import LabelScore, Normalize, TokenScore


def score(
    tokens: Sequence[TokenScore],
    labels: Sequence[LabelScore] | None,
    *,
    option: str | tuple[int, ...],
    normalize: Normalize,
) -> float:
    """One option's score, in nats or nats per unit.

    ``char`` and ``byte`` need an option given as text; the plan has seen to that.
    """
    if labels is not None:
        first = labels[0].logprob
        if normalize == "label":
            return first - _log_sum_exp([label.logprob for label in labels])
        return first
    total = math.fsum(token.logprob for token in tokens)
    return total / _length(tokens, option, normalize)


def _length(
    tokens: Sequence[TokenScore], option: str | tuple[int, ...], normalize: Normalize
) -> int:
    if normalize == "mean":
        return len(tokens)
    if normalize == "char" and isinstance(option, str):
        return len(option)
    if normalize == "byte" and isinstance(option, str):
        return len(option.encode())
    return 1


def softmax(scores: Sequence[float]) -> tuple[float, ...]:
    """Probabilities over the scores; they sum to 1."""
    # Shifted twice: by the largest for the range, by the sum for the 1.
    total = _log_sum_exp(scores)
    return tuple(math.exp(score - total) for score in scores)


def _log_sum_exp(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))


def rank(scores: Sequence[float]) -> tuple[int, ...]:
    """Positions, highest score first; equal scores: lower position first."""
    return tuple(sorted(range(len(scores)), key=lambda position: -scores[position]))


def ties(scores: Sequence[float]) -> tuple[bool, ...]:
    """For each score, whether another one is exactly equal."""
    counts = Counter(scores)
    return tuple(counts[score] > 1 for score in scores)
