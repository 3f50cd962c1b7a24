"""The engine's loop around one scheduler, without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

__all__ = ["EngineLoop"]


class EngineLoop:
    """Plans a round, runs it, and reads its output, as vLLM's ``EngineCore`` does.

    Args:
        scheduler: plans the rounds.
        execute: runs a round, one without work included: its output.
        asynchronous: plan a round while the last one runs, as ``async_scheduling``.
        before: called before the output of a round is read.
        after: called with the round and what the scheduler made of its output.

    Attributes:
        in_flight: rounds that have been planned and whose output is not read yet.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput],
        *,
        asynchronous: bool = False,
        before: Callable[[], None] = lambda: None,
        after: Callable[[SchedulerOutput, Any], None] = lambda _planned, _answers: None,
    ) -> None:
        self.scheduler = scheduler
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._execute = execute
        self._asynchronous = asynchronous
        self._before = before
        self._after = after

    @property
    def busy(self) -> bool:
        """Whether the engine has work."""
        return bool(self.in_flight) or self.scheduler.has_requests()

    def step(self) -> SchedulerOutput | None:
        """One turn: the round that was planned in it, None where nothing is queued."""
        planned = None
        if self.scheduler.has_requests():
            planned = self.scheduler.schedule()
            self.in_flight.append((planned, self._execute(planned)))
            if self._asynchronous and self._can_plan_ahead(planned):
                return planned
        if self.in_flight:
            self._read()
        return planned

    def _can_plan_ahead(self, planned: SchedulerOutput) -> bool:
        more = planned.num_scheduled_tokens or self.scheduler.has_requests()
        return len(self.in_flight) < 2 and bool(more)

    def _read(self) -> None:
        planned, output = self.in_flight.popleft()
        self._before()
        self._after(planned, self.scheduler.update_from_output(planned, output))
