"""What a round costs on the device: ``a + b tokens + c rows + d attended pairs``.

`Cost` is data; `fit` finds its numbers from measured rounds (``radixflow replay
calibrate``) by least squares with no number below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Cost", "Sample", "attended_pairs", "fit"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Coefficients, in seconds.

    Attributes:
        round: for a round at all (weights read once, kernels launched).
        token: for each token.
        row: for each row (its states read and written, its logits).
        pair: for each pair of a query token and a token it attends to.
        host: planning a round, on the host.
        host_row: planning a row, on the host.
    """

    round: float
    token: float
    row: float
    pair: float = 0.0
    host: float = 0.0
    host_row: float = 0.0

    def device(self, tokens: int, rows: int, pairs: int) -> float:
        """Seconds that a round takes on the device."""
        return self.round + self.token * tokens + self.row * rows + self.pair * pairs

    def planning(self, rows: int) -> float:
        """Seconds that a round takes on the host before it can start."""
        return self.host + self.host_row * rows

    def as_dict(self) -> dict[str, float]:
        """The coefficients as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured round."""

    seconds: float
    tokens: int
    rows: int
    pairs: int = 0


def attended_pairs(start: int, tokens: int) -> int:
    """Pairs of causal attention for `tokens` queries after `start` known tokens."""
    return tokens * start + tokens * (tokens + 1) // 2


def fit(samples: Sequence[Sample]) -> Cost:
    """The cost that explains measured rounds best, no coefficient below zero.

    Args:
        samples: at least four rounds that differ in tokens and rows.

    Raises:
        ValueError: too few rounds.
    """
    if len(samples) < 4:
        raise ValueError(f"a fit needs at least 4 rounds, got {len(samples)}")
    columns = [
        [1.0 for _ in samples],
        [float(sample.tokens) for sample in samples],
        [float(sample.rows) for sample in samples],
        [float(sample.pairs) for sample in samples],
    ]
    seconds = [sample.seconds for sample in samples]
    found = _nonnegative(columns, seconds)
    return Cost(round=found[0], token=found[1], row=found[2], pair=found[3])


def _nonnegative(columns: list[list[float]], wanted: list[float]) -> list[float]:
    """Least squares by coordinate descent on scaled columns, clipped at zero."""
    scale = [max(column) or 1.0 for column in columns]
    scaled = [
        [value / size for value in column]
        for column, size in zip(columns, scale, strict=True)
    ]
    gram = [[_dot(one, other) for other in scaled] for one in scaled]
    target = [_dot(column, wanted) for column in scaled]
    found = [0.0] * len(columns)
    for _ in range(20_000):
        moved = 0.0
        for index, row in enumerate(gram):
            if not row[index]:
                continue
            rest = target[index] - _dot(row, found) + row[index] * found[index]
            value = max(0.0, rest / row[index])
            moved = max(moved, abs(value - found[index]))
            found[index] = value
        if moved < 1e-12:
            break
    return [value / size for value, size in zip(found, scale, strict=True)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
