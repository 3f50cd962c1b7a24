"""From the options' scores to accuracies and their doubts. Pure arithmetic.

* accuracy: the share of questions whose highest score is the right option's; of equal
  scores the first option counts, as in ``argmax``, and the question is counted as tied.
* interval: Wilson's score interval at 95 % (z = 1.96), which stays within 0 and 1 and
  holds for small numbers. Wilson (1927), "Probable inference, the law of succession,
  and statistical inference", JASA 22. It takes questions as independent of each other;
  questions on one document are not quite, so with few documents it is too narrow.
* Brier: mean over questions of the sum over options of (p - [right])^2, 0 to 2.
* ECE: expected calibration error over ten bins of equal width, the mean over questions
  of |accuracy - confidence| of their bin; confidence is the picked option's probability
  (the softmax over the options' scores). Guo et al. (2017), arXiv 1706.04599.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radixflow_sdk import _scoring

__all__ = ["Bin", "Measures", "measure", "wilson"]

BINS = 10
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Questions of like confidence.

    Attributes:
        low: Least confidence, in.
        high: Most confidence, out (in for the last bin).
        count: Questions.
        confidence: Their mean confidence; 0 where there is none.
        accuracy: Share of them that is right; 0 where there is none.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What one normalizer comes to, over all questions.

    Attributes:
        right: Questions whose first option is the right one.
        count: Questions.
        accuracy: ``right / count``.
        low: Lower end of the accuracy's 95 % interval (Wilson).
        high: Upper end.
        chance: Accuracy of guessing: the mean of 1 / number of options.
        tied: Questions whose highest score two options share.
        brier: Mean Brier score, 0 to 2.
        ece: Expected calibration error, 0 to 1.
        bins: The reliability diagram.
    """

    right: int
    count: int
    accuracy: float
    low: float
    high: float
    chance: float
    tied: int
    brier: float
    ece: float
    bins: tuple[Bin, ...]


def measure(answers: Iterable[tuple[Sequence[float], int]]) -> Measures:
    """Measures of (an option's score each, position of the right one) pairs.

    Args:
        answers: One pair or more.
    """
    seen: list[tuple[float, bool]] = []
    chances: list[float] = []
    briers: list[float] = []
    tied = 0
    for scores, gold in answers:
        standings = _scoring.rank(scores)
        best = standings[0]
        seen.append((best.probability, best.place == gold))
        chances.append(1 / len(scores))
        briers.append(_scoring.brier(_scoring.softmax(scores), gold))
        tied += best.tied
    count, right = len(seen), sum(hit for _, hit in seen)
    low, high = wilson(right, count)
    bins = _bins(seen)
    return Measures(
        right=right,
        count=count,
        accuracy=right / count,
        low=low,
        high=high,
        chance=math.fsum(chances) / count,
        tied=tied,
        brier=math.fsum(briers) / count,
        ece=math.fsum(b.count * abs(b.accuracy - b.confidence) for b in bins) / count,
        bins=bins,
    )


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, for 1 or more."""
    share, square = right / count, _Z * _Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    spread = share * (1 - share) / count + square / (4 * count * count)
    half = _Z * math.sqrt(spread) / (1 + square / count)
    # Exact at the ends, where rounding would leave 1e-17.
    low = 0.0 if right == 0 else max(0.0, middle - half)
    high = 1.0 if right == count else min(1.0, middle + half)
    return low, high


def _bins(seen: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    members: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, hit in seen:
        members[min(int(confidence * BINS), BINS - 1)].append((confidence, hit))
    return tuple(
        Bin(
            low=place / BINS,
            high=(place + 1) / BINS,
            count=len(own),
            confidence=math.fsum(c for c, _ in own) / max(len(own), 1),
            accuracy=sum(hit for _, hit in own) / max(len(own), 1),
        )
        for place, own in enumerate(members)
    )
