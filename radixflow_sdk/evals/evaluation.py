"""The story of one evaluation: ask, sum up, compare with the limits, end.

What the command `radixflow eval` does apart from reading its words and writing its
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from radixflow_sdk._config import Settings
from radixflow_sdk.evals.limits import INTERRUPTED, Limit, exit_status, missed
from radixflow_sdk.evals.questions import Question
from radixflow_sdk.evals.run import Results, Setup, evaluate
from radixflow_sdk.evals.summary import Summary, summarize
from radixflow_sdk.exceptions import APIError

__all__ = ["Evaluation", "Finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How an evaluation ended.

    Attributes:
        summary: Its figures.
        below: A sentence for each limit that it does not reach.
        status: The exit status.
    """

    summary: Summary
    below: tuple[str, ...]
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation: what is asked, how, of whom, and where the answers go.

    Attributes:
        name: What the summary calls it.
        questions: All of the file's.
        setup: What decides the numbers.
        settings: Where to ask, and how many questions at a time.
        output: The results file.
        limit: Only the first so many questions.
        limits: The accuracies that it must reach.
        model: The model to ask; None: the server's first.
        restart: Begin anew.
        skip_too_long: Questions that do not fit the context are no failures.
    """

    name: str
    questions: Sequence[Question]
    setup: Setup
    settings: Settings
    output: Path
    limit: int | None = None
    limits: Sequence[Limit] = ()
    model: str | None = None
    restart: bool = False
    skip_too_long: bool = False

    def open(self) -> Results:
        """The results so far, for `run`.

        Raises:
            InvalidInputError: The results file is another run's.
        """
        return Results(self.output, self.setup, self.questions, restart=self.restart)

    @property
    def asked(self) -> Sequence[Question]:
        """The questions within the limit."""
        return self.questions[: self.limit]

    def answered(self, results: Results) -> int:
        """How many of them have an answer."""
        return sum(question.qid in results.records for question in self.asked)

    def run(self, results: Results, done: Callable[[], None]) -> Finished:
        """Ask what has no answer yet, and sum up.

        Args:
            results: From `open`.
            done: Called after each question that was asked.

        Raises:
            InvalidInputError: It would be another model than the results'.
        """
        stopped = None
        interrupted = False
        begun = perf_counter()
        try:
            evaluate(
                self.settings,
                self.asked,
                self.setup,
                results,
                model=self.model,
                done=done,
            )
        except APIError as error:
            stopped = str(error).removesuffix(".")
        except KeyboardInterrupt:
            interrupted = True
        summary = summarize(
            self.name,
            self.setup,
            self.asked,
            results,
            total=len(self.questions),
            stopped=stopped,
            seconds=perf_counter() - begun,
            skip_too_long=self.skip_too_long,
        )
        return Finished(
            summary=summary,
            below=tuple(missed(summary, self.limits)),
            status=INTERRUPTED if interrupted else exit_status(summary, self.limits),
        )
