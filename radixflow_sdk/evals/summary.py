"""The figures of a run: for the terminal, for programs and for the page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from radixflow_sdk._requests import Normalize
from radixflow_sdk.evals.measures import Measures, measure
from radixflow_sdk.evals.questions import Question
from radixflow_sdk.evals.run import Results, Setup
from radixflow_sdk.exceptions import (
    ContextTooLongError,
    PartialGroupError,
    RadixFlowError,
)

__all__ = ["Answer", "Summary", "Tokens", "summarize"]

TOO_LONG = (
    "the prompt does not fit the model's context: serve with a larger --max-model-len, "
    "or leave such questions out with --too-long skip"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A question that was answered, and its record in the results file."""

    question: Question
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the answers cost: tokens of all prompts, and those that were computed."""

    prompt: int
    computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run.

    Attributes:
        name: What was asked: the file's name.
        results: Where the answers are.
        setup: What decided the numbers.
        model: The model that answered; None where none did.
        made: When this was made, UTC.
        questions: How many are asked.
        total: How many the file has; more than ``questions`` with a limit.
        answered: How many have an answer.
        earlier: How many of these had one before this run.
        failures: For each reason, the names of the questions that failed for it.
        too_long: Questions that do not fit the model's context and are skipped.
        stopped: Why the server was asked no more, or not at all; None where it was.
        measures: Under every normalizer; empty without an answer.
        subsets: The same for each subset, where there are several.
        answers: In the order of the questions.
        seconds: How long this run took.
    """

    name: str
    results: str
    setup: Setup
    model: str | None
    made: datetime
    questions: int
    total: int
    answered: int
    earlier: int
    failures: Mapping[str, Sequence[str]]
    too_long: Sequence[str]
    stopped: str | None
    measures: Mapping[Normalize, Measures]
    subsets: Mapping[str, Mapping[Normalize, Measures]]
    answers: Sequence[Answer]
    seconds: float

    @property
    def digest(self) -> str:
        """Of all answered questions: another text or answer gives another digest."""
        digests = "".join(answer.record["digest"] for answer in self.answers)
        return hashlib.sha256(digests.encode()).hexdigest()[:16]

    @property
    def routes(self) -> tuple[str, ...]:
        """How the numbers were read, `ScoreResult.route`."""
        return tuple(sorted({answer.record["route"] for answer in self.answers}))

    @property
    def tokens(self) -> Tokens:
        """What the answers cost."""
        records = [answer.record for answer in self.answers]
        return Tokens(
            prompt=sum(record["prompt_tokens"] for record in records),
            computed=sum(record["computed_tokens"] for record in records),
        )

    @property
    def failed(self) -> int:
        """Questions that failed in this run."""
        return sum(map(len, self.failures.values()))

    @property
    def headline(self) -> str:
        """One sentence: how many, of what, by whom, and from when."""
        who = "" if self.model is None else f", answered by {self.model}"
        since = ""
        if self.earlier:
            all_ = "all " if self.earlier == self.answered else ""
            since = f", {all_}{self.earlier} from earlier results"
        skipped = (
            f", {len(self.too_long)} too long and skipped" if self.too_long else ""
        )
        return f"{self.answered} of {self.asked} of {self.name}{who}{since}{skipped}"

    @property
    def asked(self) -> str:
        """How many questions, and with a limit of how many they are the first."""
        if self.questions == self.total:
            return f"{self.questions} questions"
        return f"the first {self.questions:,} of {self.total:,} questions"

    @property
    def reasons(self) -> list[str]:
        """One line for each reason of failures, with the questions that it ended."""
        lines = []
        for reason, names in self.failures.items():
            who = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
            count = "" if len(names) == 1 else f"{len(names)} questions "
            lines.append(f"{count}({who}): {reason}" if count else f"{who}: {reason}")
        return lines

    def why_stopped(self, again: str) -> str | None:
        """Why the server was asked no more, and how the run goes on; None where not.

        Args:
            again: How the run goes on, as a sentence.
        """
        if self.stopped is None:
            return None
        if self.answered == self.questions:
            old = "the results are earlier ones, maybe not of the model it has now"
            return f"{self.stopped}; {old}"
        if self.answered:
            kept = f"{self.answered} of {self.questions} are in {self.results}"
            return f"{self.stopped}; {kept}; {again}"
        return self.stopped

    def as_json(self) -> dict[str, Any]:
        """The figures, for programs; every question is in the results file."""
        return {
            "model": self.model,
            "questions": self.questions,
            "answered": self.answered,
            "earlier": self.earlier,
            "failed": self.failed,
            "stopped": self.stopped,
            "measures": {name: asdict(found) for name, found in self.measures.items()},
            **({} if self.questions == self.total else {"first_of": self.total}),
            **({"too_long": len(self.too_long)} if self.too_long else {}),
            **({"subsets": _plain(self.subsets)} if self.subsets else {}),
        }


def summarize(
    name: str,
    setup: Setup,
    questions: Sequence[Question],
    results: Results,
    *,
    total: int | None = None,
    stopped: str | None = None,
    seconds: float = 0.0,
    skip_too_long: bool = False,
) -> Summary:
    """What a run came to.

    Args:
        name: What was asked.
        setup: What decided the numbers.
        questions: Those that count.
        results: The answers; others' among them do not count.
        total: How many questions the file has; None: as many as count.
        stopped: Why the server was not asked to the end.
        seconds: How long it took.
        skip_too_long: Questions that do not fit the context are no failures.
    """
    records = results.records
    answers = [
        Answer(question, records[question.qid])
        for question in questions
        if question.qid in records
    ]
    failures: dict[str, list[str]] = {}
    too_long: list[str] = []
    for failure in results.failures:
        if skip_too_long and is_too_long(failure.error):
            too_long.append(failure.qid)
            continue
        failures.setdefault(_reason(failure.error), []).append(failure.qid)
    return Summary(
        name=name,
        results=str(results.path),
        setup=setup,
        model=results.model,
        made=datetime.now(UTC),
        questions=len(questions),
        total=len(questions) if total is None else total,
        answered=len(answers),
        earlier=sum(own.question.qid in results.earlier for own in answers),
        failures=failures,
        too_long=too_long,
        stopped=stopped,
        measures=_measures(answers, setup),
        subsets={
            name: _measures(
                [own for own in answers if own.question.subset == name], setup
            )
            for name in dict.fromkeys(own.question.subset for own in answers)
            if name
        },
        answers=answers,
        seconds=seconds,
    )


def _measures(answers: Sequence[Answer], setup: Setup) -> dict[Normalize, Measures]:
    return {
        name: measure(
            (own.record["scores"][name], own.record["gold"]) for own in answers
        )
        for name in (setup.normalizers if answers else ())
    }


def _plain(
    subsets: Mapping[str, Mapping[Normalize, Measures]],
) -> dict[str, dict[str, Any]]:
    return {
        name: {normalizer: asdict(found) for normalizer, found in own.items()}
        for name, own in subsets.items()
    }


def is_too_long(error: RadixFlowError) -> bool:
    """Whether a question does not fit the model's context."""
    return isinstance(error, ContextTooLongError)


def _reason(error: RadixFlowError) -> str:
    """Why a question failed; of one that broke off, what broke it."""
    if is_too_long(error):  # its numbers are the question's own
        return TOO_LONG
    broken = isinstance(error, PartialGroupError) and error.__cause__ is not None
    return str(error.__cause__ if broken else error)
