"""What a round costs on the device: ``a + b tokens + c rows + d attended pairs``."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Cost", "attended_pairs"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Coefficients, in seconds.

    Attributes:
        round: for a round at all (weights read once, kernels launched).
        token: for each token.
        row: for each slot (its states read and written, its logits).
        pair: for each pair of a query token and a token it attends to.
        host: planning a round, on the host.
        host_row: planning a slot, on the host.
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

    @property
    def in_tokens(self) -> tuple[int, int]:
        """What a slot and a round are worth, in tokens (without attended pairs)."""
        row, whole = self.row + self.host_row, self.round + self.host
        return round(row / self.token), round(whole / self.token)

    def as_dict(self) -> dict[str, float]:
        """The coefficients as JSON-ready data."""
        return asdict(self)


def attended_pairs(start: int, tokens: int) -> int:
    """Pairs of causal attention for `tokens` queries after `start` known tokens."""
    return tokens * start + tokens * (tokens + 1) // 2
