"""Calibrated probabilities and an abstention threshold, fitted on labeled answers.

* temperature: the softmax is of the scores divided by T, which minimizes the mean
  negative log-probability of the right options. Guo et al. (2017), arXiv 1706.04599.
  It changes no ranking.
* threshold: the least confidence from which on the answers reach a wanted accuracy.

Both are fitted on one part of the questions and checked on the other: documents are
divided, so that no document is in both parts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radixflow_sdk import _scoring
from radixflow_sdk._requests import Normalize
from radixflow_sdk._results import ScoreResult
from radixflow_sdk.evals.measures import Measures, measure
from radixflow_sdk.exceptions import InvalidInputError

__all__ = ["Calibration", "Fit", "Labeled", "fit", "read_calibration"]

MIN_QUESTIONS = 10
"""For each of the two parts; fewer say nothing."""
FILE_KEY = "radixflow_calibration"
_BOUNDS = (-7.0, 7.0)
"""Of the logarithm of the temperature."""


@dataclass(frozen=True, slots=True)
class Labeled:
    """An answered question whose right option is known."""

    document: str
    scores: Sequence[float]
    gold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What turns scores into probabilities that mean what they say.

    Attributes:
        model: The model that it was fitted for.
        normalizer: The scores that it is for.
        temperature: What they are divided by.
        threshold: Abstain under this confidence; None: no confidence is enough.
        accuracy: The accuracy that the threshold is to reach.
    """

    model: str
    normalizer: Normalize
    temperature: float
    threshold: float | None
    accuracy: float

    def probabilities(self, result: ScoreResult) -> tuple[float, ...]:
        """Calibrated probabilities of the options, in the order of ``options``.

        Raises:
            InvalidInputError: The result is another model's, or has no such score.
        """
        if result.model != self.model:
            raise InvalidInputError(
                f"result is of the model {result.model!r}; the calibration is for "
                f"{self.model!r}.",
                field="result",
                value=result,
            )
        own = result.under(self.normalizer)
        given = sorted(own.candidates, key=lambda candidate: candidate.index)
        return tuple(scaled([one.score for one in given], self.temperature))

    def decide(self, result: ScoreResult) -> int | None:
        """The index of the best option, or None to abstain.

        Raises:
            InvalidInputError: As `probabilities`.
        """
        confidence = max(self.probabilities(result))
        if self.threshold is None or confidence < self.threshold:
            return None
        return result.under(self.normalizer).best.index

    def write(self, path: Path) -> None:
        """Write it as JSON, for `read_calibration`."""
        path.write_text(json.dumps({FILE_KEY: 1, **asdict(self)}) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A calibration, and what it comes to on questions that it was not fitted on.

    Attributes:
        calibration: The two numbers.
        fitted: Questions that it was fitted on.
        before: Measures of the others, as they are.
        after: The same, calibrated.
        nll_before: Their mean negative log-probability of the right option.
        nll_after: The same, calibrated.
        kept: How many of them reach the threshold.
        kept_right: How many of these are right.
    """

    calibration: Calibration
    fitted: int
    before: Measures
    after: Measures
    nll_before: float
    nll_after: float
    kept: int
    kept_right: int

    def as_json(self) -> dict[str, Any]:
        """The figures, for programs."""
        return asdict(self)


def scaled(scores: Sequence[float], temperature: float) -> list[float]:
    """The softmax of the scores divided by a temperature."""
    return list(_scoring.softmax([score / temperature for score in scores]))


def fit(
    answers: Sequence[Labeled], *, model: str, normalizer: Normalize, accuracy: float
) -> Fit:
    """Fit on one half of the documents, and check on the other.

    Args:
        answers: At least 20 questions, on at least two documents.
        model: The model that answered.
        normalizer: The scores that these are.
        accuracy: What the threshold is to reach.

    Raises:
        InvalidInputError: There are too few questions.
    """
    fitted = [own for own in answers if _is_fitted(own.document)]
    held_out = [own for own in answers if not _is_fitted(own.document)]
    if min(len(fitted), len(held_out)) < MIN_QUESTIONS:
        raise InvalidInputError(
            f"results has {len(answers)} questions, {len(fitted)} of them on documents "
            f"to fit on; {MIN_QUESTIONS} are needed to fit on and as many to check.",
            field="results",
            value=len(answers),
        )
    temperature = _temperature(fitted)
    threshold = _threshold(fitted, temperature, accuracy)
    chosen = [_standing(own, temperature) for own in held_out]
    kept = [hit for sure, hit in chosen if threshold is not None and sure >= threshold]
    return Fit(
        calibration=Calibration(
            model=model,
            normalizer=normalizer,
            temperature=temperature,
            threshold=threshold,
            accuracy=accuracy,
        ),
        fitted=len(fitted),
        before=measure((own.scores, own.gold) for own in held_out),
        after=measure(
            ([score / temperature for score in own.scores], own.gold)
            for own in held_out
        ),
        nll_before=_nll(held_out, 1.0),
        nll_after=_nll(held_out, temperature),
        kept=len(kept),
        kept_right=sum(kept),
    )


def read_calibration(path: Path) -> Calibration:
    """A calibration that `Calibration.write` wrote.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        values: Mapping[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
        if values[FILE_KEY] != 1 or not values["temperature"] > 0:
            raise ValueError
        return Calibration(**{k: v for k, v in values.items() if k != FILE_KEY})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"calibration is {str(path)!r}, which holds none ({error}); write one with "
            "radixflow calibrate.",
            field="calibration",
            value=str(path),
        ) from None


def _is_fitted(document: str) -> bool:
    """Half of all documents, the same ones each time."""
    return hashlib.sha256(document.encode()).digest()[0] % 2 == 0


def _temperature(answers: Sequence[Labeled]) -> float:
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda exponent: _nll(answers, math.exp(exponent)),
        bounds=_BOUNDS,
        method="bounded",
    )
    return math.exp(float(found.x))


def _nll(answers: Sequence[Labeled], temperature: float) -> float:
    total = 0.0
    for own in answers:
        scores = [score / temperature for score in own.scores]
        top = max(scores)
        total += math.log(math.fsum(math.exp(score - top) for score in scores))
        total += top - scores[own.gold]
    return total / len(answers)


def _standing(own: Labeled, temperature: float) -> tuple[float, bool]:
    """The confidence, and whether the picked option is right."""
    picked = max(range(len(own.scores)), key=own.scores.__getitem__)
    return scaled(own.scores, temperature)[picked], picked == own.gold


def _threshold(
    answers: Sequence[Labeled], temperature: float, accuracy: float
) -> float | None:
    """The least confidence whose answers, with all surer ones, are right so often."""
    surest = sorted(
        (_standing(own, temperature) for own in answers), key=lambda own: -own[0]
    )
    found = None
    right = 0
    for count, (confidence, hit) in enumerate(surest, start=1):
        right += hit
        is_last = count == len(surest) or surest[count][0] < confidence
        if is_last and right >= accuracy * count:
            found = confidence
    return found
