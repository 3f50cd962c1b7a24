r"""From log-probabilities to scores, probabilities and a ranking. Pure arithmetic.

Natural logarithms. With :math:`LL = \sum_k \log p(t_k)` over the option's tokens:

* ``sum``: LL; lm-evaluation-harness's ``acc``. With label scoring, log p(first label).
* ``mean``: LL / number of tokens.
* ``char``: LL / ``len(option)``; its ``acc_norm``.
* ``byte``: LL / length of the option in UTF-8; its ``acc_bytes``.
* ``pmi``: LL - LL given the unconditional context alone; its ``acc_mutual_info``.
  Holtzman et al., "Surface Form Competition" (arXiv 2104.08315), section 4: with a
  context such as ``"\nAnswer:"`` this is their domain-conditional PMI.
* ``label``: log (p(first label) / sum of p(label)), label scoring only.

The option's length is that of the text as given, without the template's delimiter, as
in lm-evaluation-harness.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from radixflow_sdk._requests import Normalize
    from radixflow_sdk._results import LabelScore, TokenScore


def every_score(
    tokens: Sequence[TokenScore],
    labels: Sequence[LabelScore] | None,
    *,
    option: str | tuple[int, ...],
    unconditional: float | None = None,
) -> dict[Normalize, float]:
    """One option's score under every normalizer that there are numbers for.

    Args:
        tokens: The option's tokens.
        labels: With label scoring, the labels, the first one first; else None.
        option: As given. ``char`` and ``byte`` are for text.
        unconditional: LL of the option after the unconditional context, for ``pmi``.

    Returns:
        Scores in nats (``mean``, ``char``, ``byte``: nats a unit).
    """
    if labels is not None:
        first = labels[0].logprob
        found: dict[Normalize, float] = {"sum": first}
        if len(labels) > 1:
            found["label"] = first - _log_sum_exp([label.logprob for label in labels])
        return found
    total = math.fsum(token.logprob for token in tokens)
    found = {"sum": total, "mean": total / len(tokens)}
    if isinstance(option, str):
        found["char"] = total / len(option)
        found["byte"] = total / len(option.encode())
    if unconditional is not None:
        found["pmi"] = total - unconditional
    return found


def label_mass(labels: Sequence[LabelScore]) -> float:
    """Probability that the next token is one of the labels, from 0 to 1.

    A token that two labels name counts once.
    """
    by_token = {label.token_id: label.logprob for label in labels}
    return min(1.0, math.fsum(math.exp(value) for value in by_token.values()))


class Standing(NamedTuple):
    """One score among others.

    Attributes:
        place: Position among the scores as they were given.
        probability: Softmax over all of them.
        tied: Whether another one is exactly equal.
    """

    place: int
    probability: float
    tied: bool


def rank(scores: Sequence[float]) -> tuple[Standing, ...]:
    """Highest score first; of equal scores the lower position first (as ``argmax``)."""
    probabilities, counts = softmax(scores), Counter(scores)
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return tuple(
        Standing(place, probabilities[place], counts[scores[place]] > 1)
        for place in order
    )


def softmax(scores: Sequence[float]) -> tuple[float, ...]:
    """Probabilities over the scores; they sum to 1."""
    # Shifted twice: by the largest for the range, by the sum for the 1.
    total = _log_sum_exp(scores)
    return tuple(math.exp(score - total) for score in scores)


def brier(probabilities: Sequence[float], gold: int) -> float:
    """Brier's score of one question: sum over options of (p - [option is right])^2.

    From 0 (certain and right) to 2 (certain and wrong). Brier, "Verification of
    forecasts expressed in terms of probability" (1950); over many questions take the
    mean, as lm-evaluation-harness's ``brier_score`` does over the softmax of ``sum``.
    """
    return math.fsum(
        (probability - (place == gold)) ** 2
        for place, probability in enumerate(probabilities)
    )


def _log_sum_exp(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))
