"""What a slot and a round cost on a server, fitted to the server's own round log.

``seconds = round + token * tokens + row * rows`` is fitted by non-negative least
squares to the rounds that the next one followed at once.  The scheduler weighs a stop
in tokens, so the costs of a slot and of a round are given in tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from server_ext.policy.config import MAX_COST
from server_ext.replay.worker import Cost

__all__ = ["Calibration", "CalibrationError", "Sample", "calibrate", "samples"]

MIN_ROUNDS = 40
"""Fewest rounds that a fit accepts."""
RESAMPLES = 200
"""Fits to rounds drawn with replacement, for the spread."""
OUTLIER = 6.0
"""A round is left out where its error is above this multiple of the median error."""


class CalibrationError(ValueError):
    """The costs cannot be fitted to the log; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured round."""

    seconds: float
    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Worth:
    """A cost in tokens, and the tenth and the ninetieth percentile of its refits."""

    tokens: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a round log says of a server.

    Attributes:
        cost: seconds of a round, a token and a row.
        row: what a row is worth.
        round: what a round is worth.
        used: rounds that the fit uses.
        error: median error of these rounds, in seconds.
    """

    cost: Cost
    row: Worth
    round: Worth
    used: int
    error: float

    @property
    def option(self) -> str:
        """The settings as an option of ``radixflow serve``."""
        settings = {"row_tokens": self.row.tokens, "round_tokens": self.round.tokens}
        return f"--additional-config '{json.dumps({'radixflow': settings})}'"


def samples(
    rounds: Sequence[Mapping[str, Any]], *, asynchronous: bool = False
) -> list[Sample]:
    """The rounds of a log whose duration is known.

    A round lasts until the next one starts where the server had work all the while: a
    request waited without being held, or one continues in the next round.

    Args:
        rounds: ``rounds`` of the answer of ``GET /v1/radixflow/rounds``.
        asynchronous: the server plans a round while the last one runs. The time from
            one start to the next is then what the round before took.

    Raises:
        CalibrationError: an entry is not a round.
    """
    try:
        log = [
            (entry["number"], float(entry["at"]), dict(entry["scheduled"]),
             entry["waiting"] - entry.get("held", 0))
            for entry in rounds
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"not a round log: {error!r}") from None
    found, before = [], None
    for (number, at, scheduled, waiting), after in pairwise(log):
        follows = after[0] == number + 1
        busy = follows and (waiting > 0 or bool(scheduled.keys() & after[2].keys()))
        timed = before if asynchronous else scheduled
        if busy and timed is not None and after[1] > at:
            found.append(Sample(after[1] - at, sum(timed.values()), len(timed)))
        before = scheduled if busy else None
    return found


def calibrate(timed: Sequence[Sample]) -> Calibration:
    """Fit the costs, and how much they move when the rounds are drawn again.

    Raises:
        CalibrationError: too few rounds, or rounds that are too much alike.
    """
    if len(timed) < MIN_ROUNDS:
        raise CalibrationError(
            f"{len(timed)} rounds that the next one followed at once, and at least "
            f"{MIN_ROUNDS} are needed: ask again under load (a server keeps its last "
            "512 rounds)"
        )
    kept = _without_outliers(timed)
    cost = _fit(kept)
    source = random.Random(0)
    rows, whole = [], []
    for _ in range(RESAMPLES):
        again = _fit(source.choices(kept, k=len(kept)))
        rows.append(_worth(again.row, again))
        whole.append(_worth(again.round, again))
    return Calibration(
        cost=cost,
        row=Worth(_worth(cost.row, cost), *_range(rows)),
        round=Worth(_worth(cost.round, cost), *_range(whole)),
        used=len(kept),
        error=median(_errors(kept, cost)),
    )


def _without_outliers(timed: Sequence[Sample]) -> Sequence[Sample]:
    """Without the rounds that other work on the machine delayed."""
    errors = _errors(timed, _fit(timed))
    bound = OUTLIER * median(errors)
    kept = [one for one, error in zip(timed, errors, strict=True) if error <= bound]
    return kept if len(kept) >= MIN_ROUNDS else timed


def _fit(timed: Sequence[Sample]) -> Cost:
    known = np.array([(1.0, one.tokens, one.rows) for one in timed])
    scale = known.max(axis=0)
    if np.linalg.matrix_rank(known / scale) < known.shape[1]:
        raise CalibrationError(
            "the rounds are too much alike to separate a round, a row and a token: "
            "send prompts of different lengths, a few and many at a time"
        )
    found, _ = nnls(known / scale, np.array([one.seconds for one in timed]))
    whole, token, row = (float(value) for value in found / scale)
    if token <= 0:
        raise CalibrationError(
            "the time of these rounds does not grow with their tokens: send longer "
            "prompts"
        )
    return Cost(round=whole, token=token, row=row)


def _errors(timed: Sequence[Sample], cost: Cost) -> list[float]:
    return [abs(cost.device(one.tokens, one.rows, 0) - one.seconds) for one in timed]


def _worth(seconds: float, cost: Cost) -> int:
    return min(round(seconds / cost.token), MAX_COST)


def _range(values: Sequence[int]) -> tuple[int, int]:
    """The tenth and the ninetieth percentile."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
