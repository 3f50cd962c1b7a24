"""Schedulers that note each round they make, for every arm in the same way.

vLLM's own metrics see a round only when a request ends in it, so rounds of a chunked
document would be missing. A note is one line of JSON in the file that the environment
variable names; the schedulers decide nothing here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from server_ext.engine.scheduler import RadixFlowScheduler

NOTES = "RADIXFLOW_BENCHMARK_NOTES"


class _Noting:
    """Writes, for each round with work, its rows and who came in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = Path(os.environ[NOTES])
        self._notes = path.open("a", buffering=1, encoding="utf-8")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """One round, natively; then its note."""
        output: SchedulerOutput = super().schedule(*args, **kwargs)
        if output.num_scheduled_tokens:
            note = {
                "rows": list(output.num_scheduled_tokens.items()),
                "admitted": [
                    [
                        new.req_id,
                        len(new.prompt_token_ids or ()),
                        new.num_computed_tokens,
                    ]
                    for new in output.scheduled_new_reqs
                ],
            }
            self._notes.write(json.dumps(note) + "\n")
        return output


class StockScheduler(_Noting, Scheduler):
    """The class that vLLM runs by default where async scheduling is off."""


class NotedRadixFlowScheduler(_Noting, RadixFlowScheduler):
    """Ours."""


class HoldNotingScheduler(NotedRadixFlowScheduler):
    """Ours, with a note of how long each branch was held."""

    def _open_round(self) -> None:
        held = {name: entry.at for name, entry in self.gate._held.items()}
        super()._open_round()
        now = self.clock()
        for name, since in held.items():
            if name not in self.gate:
                self._notes.write(json.dumps({"held_s": now - since}) + "\n")
