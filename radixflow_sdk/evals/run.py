"""A file of questions, scored: every normaliser in one pass, resumable.

Each answered question is one line of the results file, written as it comes in; a run
that was ended goes on from there. A failed question leaves no line, so the next run
asks it again. This room must not write to the terminal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radixflow_sdk.evals.files import Question
from radixflow_sdk.evals.measures import Measures, measure
from radixflow_sdk.exceptions import InvalidInputError, RadixFlowError
from radixflow_sdk.sync import RadixFlow
from radixflow_sdk.types import BranchedRequest, Normalize, ScoreResult, Scoring

__all__ = ["Failure", "Results", "Setup", "evaluate", "summarise"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What decides the numbers; a results file belongs to one.

    Attributes:
        scoring: What is read from the model.
        unconditional: Context of ``pmi``; None: no ``pmi``.
        model: The model asked for; None: the server's first.
    """

    scoring: Scoring = "likelihood"
    unconditional: str | None = None
    model: str | None = None

    @property
    def normalisers(self) -> tuple[Normalize, ...]:
        """Those that a run has figures for."""
        if self.scoring == "label":
            return ("sum", "label")
        pmi: tuple[Normalize, ...] = () if self.unconditional is None else ("pmi",)
        return ("sum", "mean", "char", "byte", *pmi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A question without an answer.

    Attributes:
        qid: The question.
        error: Why.
    """

    qid: str
    error: RadixFlowError


class Results:
    """A results file, as a context manager: what is in, and room for more.

    Args:
        path: The file; made where there is none.
        setup: What decides the numbers.
        questions: What is asked.
        restart: Begin anew and lose what is in.

    Raises:
        InvalidInputError: The file is of another setup, or is no results file.
    """

    def __init__(
        self,
        path: Path,
        setup: Setup,
        questions: Sequence[Question],
        *,
        restart: bool = False,
    ) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self._asked = {question.qid: _digest(question) for question in questions}
        head = {"radixflow_eval": VERSION, "setup": asdict(setup)}
        try:
            kept = 0 if restart else self._read(head)
            self._file = path.open("ab")
            self._file.truncate(kept)
            if not kept:
                self._write(head)
        except OSError as error:
            raise InvalidInputError(
                f"The results file {str(path)!r}: {error.strerror}; name another one.",
                field="output",
                value=str(path),
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, question: Question, result: ScoreResult) -> None:
        """Keep one answer.

        Raises:
            InvalidInputError: The results so far are another model's.
        """
        record = _record(question, result)
        first = next(iter(self.records.values()), record)
        if first["model"] != record["model"]:
            raise InvalidInputError(
                f"The results in {str(self.path)!r} are of the model "
                f"{first['model']!r}, and the server has {record['model']!r}; restart, "
                "or name another file.",
                field="output",
                value=str(self.path),
            )
        self._write(record)
        self.records[question.qid] = record

    def _write(self, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def _read(self, head: Mapping[str, Any]) -> int:
        """Bytes of the whole lines; one that a killed run left half is not counted."""
        if not self.path.exists():
            return 0
        text = self.path.read_bytes()
        text = text[: text.rfind(b"\n") + 1]
        try:
            found, *records = [json.loads(line) for line in text.splitlines()] or [head]
            if found != head:
                raise self._another(found)
            for record in records:
                if self._asked.get(record["qid"]) != record["digest"]:
                    raise self._another({"question": record["qid"]})
                self.records[record["qid"]] = record
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise self._another("no results") from None
        return len(text)

    def _another(self, found: object) -> InvalidInputError:
        return InvalidInputError(
            f"The results file {str(self.path)!r} holds {found}, which this run does "
            "not ask so; restart, or name another file.",
            field="output",
            value=str(self.path),
        )


def evaluate(
    client: RadixFlow,
    questions: Sequence[Question],
    setup: Setup,
    results: Results,
    *,
    concurrency: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Ask what is not in the results yet; questions on one document stay together.

    Args:
        client: Where to ask.
        questions: All of them.
        setup: What decides the numbers.
        results: Takes the answers.
        concurrency: Groups under way at a time; None: as the client has connections.
        done: Told after each question that was asked.

    Raises:
        InvalidInputError: The results so far are another model's.
    """
    failures: list[Failure] = []
    left = [question for question in questions if question.qid not in results.records]
    requests = [_request(question, setup) for question in left]
    for outcome in client.score_many(requests, concurrency=concurrency):
        question = left[outcome.index]
        if outcome.error is not None:
            failures.append(Failure(qid=question.qid, error=outcome.error))
        else:
            results.add(question, outcome.unwrap())
        done()
    return failures


def summarise(
    setup: Setup, records: Sequence[Mapping[str, Any]]
) -> dict[Normalize, Measures]:
    """Measures under every normaliser; none without a record."""
    return {
        name: measure((record["scores"][name], record["gold"]) for record in records)
        for name in (setup.normalisers if records else ())
    }


def _request(question: Question, setup: Setup) -> BranchedRequest:
    return BranchedRequest(
        document=question.document,
        options=question.options,
        question=question.question,
        scoring=setup.scoring,
        unconditional=setup.unconditional,
    )


def _record(question: Question, result: ScoreResult) -> dict[str, Any]:
    given = sorted(result.candidates, key=lambda candidate: candidate.index)
    scores: dict[str, list[float]] = {
        name: [candidate.scores[name] for candidate in given]
        for name in given[0].scores
    }
    return {
        "qid": question.qid,
        "doc_id": question.doc_id,
        "digest": _digest(question),
        "model": result.model,
        "route": result.route,
        "gold": question.gold,
        "scores": scores,
        "picked": {name: _first(values) for name, values in scores.items()},
        "tokens": [len(candidate.tokens) for candidate in given],
        "prompt_tokens": result.usage.prompt_tokens,
        "computed_tokens": result.usage.computed_tokens,
    }


def _first(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _digest(question: Question) -> str:
    """Of all that is asked; another text under the same name is another question."""
    parts = [question.document, question.question, *question.options, question.gold]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def in_order(
    questions: Sequence[Question], results: Results
) -> Iterator[Mapping[str, Any]]:
    """The answers so far, in the order of the questions."""
    for question in questions:
        if question.qid in results.records:
            yield results.records[question.qid]
