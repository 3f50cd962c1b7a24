"""Virtual time: a clock that only the replay moves, and two engines of time.

A round costs host time (planning it) and device time (running it).  The synchronous
engine plans, runs and waits.  The asynchronous one plans round n + 1 while round n runs
(vLLM's ``async_scheduling``), so host time hides behind the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Clock", "Device"]


@dataclass(slots=True)
class Clock:
    """Seconds of virtual time; `sleep` is the only way they pass."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += max(0.0, seconds)

    def reach(self, moment: float) -> None:
        """Wait until `moment`, if it is in the future."""
        self.now = max(self.now, moment)


@dataclass(slots=True)
class Device:
    """Runs rounds one after the other.

    Attributes:
        free_at: when the last dispatched round ends.
        busy: seconds of work so far.
        idle_between: seconds between rounds in which nothing ran.
    """

    free_at: float = 0.0
    busy: float = 0.0
    idle_between: float = field(default=0.0)

    def run(self, now: float, cost: float) -> tuple[float, float]:
        """Dispatch a round at `now`; when it starts and when it ends."""
        start = max(now, self.free_at)
        self.idle_between += start - self.free_at
        self.free_at = start + cost
        self.busy += cost
        return start, self.free_at
