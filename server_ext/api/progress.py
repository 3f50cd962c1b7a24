"""Progress of the groups: those under way, and the last that ended.

Covers this API-server process alone; the scheduler reports what the engine does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from server_ext.api.group import Group

__all__ = ["Groups"]

SHOWN = 100
"""Most running groups that are shown, the oldest first."""
ENDED = 20
"""Ended groups that are kept."""


@dataclass
class Groups:
    """Every group that runs, and the last `ENDED` that do no more.

    Attributes:
        clock: seconds, of any origin.
    """

    clock: Callable[[], float] = time.monotonic
    _running: dict[int, tuple[Group, float]] = field(default_factory=dict)
    _ended: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=ENDED))

    @contextmanager
    def under_way(self, group: Group) -> Iterator[None]:
        """Count `group` to the running ones for the length of a block."""
        began, key = self.clock(), id(group)
        self._running[key] = (group, began)
        try:
            yield
        finally:
            del self._running[key]
            whole = sum(group.progress().values()) == len(group.prompts.branches)
            shown = self._shown(group, began, "ended" if whole else "aborted")
            self._ended.appendleft(shown)

    @property
    def running(self) -> int:
        """Groups under way."""
        return len(self._running)

    def as_dict(self) -> dict[str, Any]:
        """What ``GET /v1/radixflow/groups`` shows: running ones first."""
        running = islice(self._running.values(), SHOWN)
        shown = [self._shown(group, began, "running") for group, began in running]
        return {"running": self.running, "groups": [*shown, *self._ended]}

    def _shown(self, group: Group, began: float, state: str) -> dict[str, Any]:
        return {
            "group_id": group.group_id,
            "request_id": group.request_id,
            "branches": len(group.prompts.branches),
            **group.progress(),
            "seconds": round(self.clock() - began, 3),
            "state": state,
        }
