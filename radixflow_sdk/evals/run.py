"""Scores a file of questions: every normalizer in one pass, resumable.

The server is asked which model it serves before the first question, and also where no
question is left: a figure is of the model that is served now, or it is refused. Each
answered question is one line of the results file, written as it comes in; a run that
was ended goes on from there. A failed question leaves no line, so the next run asks it
again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radixflow_sdk._config import Settings
from radixflow_sdk._plan import make_plan
from radixflow_sdk._requests import Normalize, ScoreRequest, Scoring
from radixflow_sdk._results import ScoreResult
from radixflow_sdk.evals.containers import RESULTS_KEY
from radixflow_sdk.evals.prompts import DEFAULT_STYLE, PromptStyle
from radixflow_sdk.evals.questions import Question
from radixflow_sdk.exceptions import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    ConnectTimeoutError,
    ContextTooLongError,
    InvalidInputError,
    InvalidRequestError,
    PartialGroupError,
    RadixFlowError,
)
from radixflow_sdk.sync import RadixFlow

__all__ = ["Failure", "Results", "Setup", "evaluate"]

VERSION = 2
MODELS_TIMEOUT = 60.0
"""Seconds for a server to say what it serves, with all retries."""
MIN_IN_A_ROW = 3
"""With little concurrency, one question that a server dies of is not yet its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What decides the numbers; a results file belongs to one.

    Attributes:
        scoring: What is read from the model.
        unconditional: Context of ``pmi``; None: no ``pmi``.
        style: How the questions are put.

    Raises:
        InvalidInputError: The two do not go together, or a value is not usable.
    """

    scoring: Scoring = "likelihood"
    unconditional: str | None = None
    style: PromptStyle = DEFAULT_STYLE

    def __post_init__(self) -> None:
        shown = self.style.words is not None or self.style.shots.count
        if self.scoring == "label" and shown:
            raise InvalidInputError(
                "scoring is 'label'; templates and shots are for likelihood scoring.",
                field="scoring",
                value=self.scoring,
            )
        # What no question could be asked with is refused before the first one.
        options = ("yes", "no")
        make_plan(
            ScoreRequest(
                " ", options, scoring=self.scoring, unconditional=self.unconditional
            )
        )

    def identity(self) -> dict[str, str | int | None]:
        """What a results file says about its setup."""
        own = {"scoring": self.scoring, "unconditional": self.unconditional}
        return {**own, **self.style.identity()}

    def request(self, question: Question) -> ScoreRequest:
        """The request that asks a question."""
        return self.style.request(
            question, scoring=self.scoring, unconditional=self.unconditional
        )

    @property
    def normalizers(self) -> tuple[Normalize, ...]:
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
    """A results file, as a context manager: the answers so far, and the next ones.

    Args:
        path: The file; made where there is none.
        setup: What decides the numbers.
        questions: What is asked.
        restart: Begin anew; what is in is lost with the first new answer.

    Attributes:
        path: The file.
        records: The answers, by their question.
        earlier: The questions whose answers were in already.
        failures: Of this run.
        damaged: Numbers of the file's lines that cannot be read; they stay, and their
            questions are asked again.

    Raises:
        InvalidInputError: The file is of another setup, or is no results file, or
            another run is writing it.
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
        self.failures: list[Failure] = []
        self.damaged: list[int] = []
        self._setup = setup
        self._asked = {question.qid: _digest(question) for question in questions}
        try:
            with ExitStack() as opened:
                self._file = opened.enter_context(path.open("ab"))
                self._lock()
                text = path.read_bytes()
                # The line that a killed run left half is not whole, and not kept.
                lines = text[: text.rfind(b"\n") + 1]
                self._read(text, lines.splitlines(), restart=restart)
                opened.pop_all()
        except OSError as error:
            raise self._broken(error) from None
        self._kept = len(lines) if self.records else 0
        self.earlier = frozenset(self.records)
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def model(self) -> str | None:
        """The model that answered; None before the first answer."""
        first = next(iter(self.records.values()), None)
        return None if first is None else first["model"]

    def check_model(self, model: str) -> None:
        """Refuse another model than the one that answered so far.

        Raises:
            InvalidInputError: It is another.
        """
        if self.model not in (None, model):
            raise self._other(
                f"is of the model {self.model!r}, and this run is of {model!r}"
            )

    def add(self, question: Question, result: ScoreResult) -> None:
        """Keep one answer.

        Raises:
            InvalidInputError: The results so far are another model's, or the file
                cannot be written.
        """
        self.check_model(result.model)
        record = _record(question, result)
        try:
            if not self._begun:
                self._begun = True
                self._file.truncate(self._kept)
                if not self._kept:
                    self._write({RESULTS_KEY: VERSION, "setup": self._setup.identity()})
            self._write(record)
        except OSError as error:
            raise self._broken(error) from None
        self.records[question.qid] = record

    def _lock(self) -> None:
        """Be the file's one writer until it is closed."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refused(
                "is being written by another run: wait for its end, or give --output "
                "another FILE."
            ) from None

    def _write(self, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def _read(self, text: bytes, lines: Sequence[bytes], *, restart: bool) -> None:
        # What is no results file is not thrown away, whatever was asked.
        if text and not text.startswith(b'{"%s"' % RESULTS_KEY.encode()):
            raise self._no_results()
        if restart or len(lines) < 2:
            return
        try:
            head = json.loads(lines[0])
            if head[RESULTS_KEY] != VERSION:
                raise self._other("is of another version of radixflow")
            self._check_setup(head["setup"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise self._no_results() from None
        for number, line in enumerate(lines[1:], start=2):
            try:
                record = json.loads(line)
                self._check_answer(record)
            except (IndexError, KeyError, TypeError, ValueError):
                self.damaged.append(number)
            else:
                self._check_question(record["qid"], record["digest"])
                self.check_model(record["model"])
                self.records[record["qid"]] = record

    def _check_setup(self, had: Mapping[str, Any]) -> None:
        own = self._setup.identity()
        for name in {**own, **had}:
            before, value = had.get(name), own.get(name)
            if before != value:
                raise self._other(
                    f"is of {_option(name, before)}, this run has "
                    f"{_option(name, value)}"
                )

    def _check_question(self, qid: str, digest: str) -> None:
        if qid not in self._asked:
            raise self._other(f"answers question {qid!r}, which is not asked any more")
        if self._asked[qid] != digest:
            raise self._other(
                f"answers question {qid!r} as it was before its text, options or gold "
                "were changed"
            )

    def _check_answer(self, record: Mapping[str, Any]) -> None:
        """Refuse a record that the figures cannot be made of."""
        strings = (record["qid"], record["digest"], record["model"])
        if not all(isinstance(value, str) for value in strings):
            raise TypeError
        for name in self._setup.normalizers:
            scores = record["scores"][name]
            if min(record["gold"], record["picked"][name]) < 0:
                raise IndexError
            _ = scores[record["gold"]] + scores[record["picked"][name]] + sum(scores)

    def _broken(self, error: OSError) -> InvalidInputError:
        name = str(self.path)
        return InvalidInputError(
            f"The results file {name!r}: {error.strerror}; give --output another FILE.",
            field="output",
            value=name,
        )

    def _other(self, sentence: str) -> InvalidInputError:
        return self._refused(
            f"{sentence}: give --output another FILE, or --restart to throw it away."
        )

    def _no_results(self) -> InvalidInputError:
        return self._refused(
            "holds no results of this command: give --output another FILE."
        )

    def _refused(self, sentence: str) -> InvalidInputError:
        name = str(self.path)
        return InvalidInputError(f"{name!r} {sentence}", field="output", value=name)


def _option(name: str, value: object) -> str:
    return f"no --{name}" if value is None else f"--{name} {value}"


def evaluate(
    settings: Settings,
    questions: Sequence[Question],
    setup: Setup,
    results: Results,
    *,
    model: str | None = None,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Ask what is not in the results yet; questions on one document stay together.

    Args:
        settings: Where to ask, and how many questions at a time.
        questions: All of them.
        setup: What decides the numbers.
        results: Takes the answers, and the failures.
        model: The model to ask; None: the server's first.
        done: Called after each question that was asked.

    Raises:
        InvalidInputError: The server does not serve the model, or the results so far
            are another's.
        APIError: The server could not be asked what it serves, or failed as many
            questions in a row as there are under way, 3 or more.
    """
    with RadixFlow(
        settings.base_urls,
        api_key=settings.api_key,
        timeout=settings.timeouts,
        retry=settings.retry,
        max_connections=settings.max_connections,
    ) as client:
        answering = _choose(_served(client, settings), model)
        results.check_model(answering)
        left = [q for q in questions if q.qid not in results.records]
        max_in_a_row = max(settings.max_connections, MIN_IN_A_ROW)
        _ask(
            client.with_options(model=answering),
            left,
            setup,
            results,
            max_in_a_row,
            done,
        )


def _ask(
    client: RadixFlow,
    questions: Sequence[Question],
    setup: Setup,
    results: Results,
    max_in_a_row: int,
    done: Callable[[], None],
) -> None:
    in_a_row = 0
    requests = map(setup.request, questions)
    with closing(client.score_many(requests)) as outcomes:
        for asked, outcome in enumerate(outcomes, start=1):
            question = questions[outcome.index]
            in_a_row = in_a_row + 1 if _is_of_server(outcome.error) else 0
            if outcome.error is None:
                results.add(question, outcome.unwrap())
            else:
                failure = Failure(qid=question.qid, error=outcome.error)
                results.failures.append(failure)
            done()
            if in_a_row >= max_in_a_row and asked < len(questions):
                raise APIError(f"{in_a_row} questions in a row failed")


def _served(client: RadixFlow, settings: Settings) -> tuple[str, ...]:
    try:
        return client.with_options(timeout=MODELS_TIMEOUT).models()
    except ConnectTimeoutError:
        raise
    except APITimeoutError:
        raise APITimeoutError(
            f"{settings.base_urls[0]} did not say within {MODELS_TIMEOUT:g} s what it "
            "serves; check that the server runs and that base_url names it."
        ) from None


def _choose(served: Sequence[str], model: str | None) -> str:
    if model is not None and model not in served:
        raise InvalidInputError(
            f"model is {model!r}; the server serves {', '.join(map(repr, served))}.",
            field="model",
            value=model,
        )
    return model or served[0]


def _is_of_server(error: BaseException | None) -> bool:
    """Whether the next question would fail, too.

    One that took too long may be longer than others, and so is its own.
    """
    if isinstance(error, PartialGroupError):
        error = error.__cause__
    if isinstance(error, APIConnectionError):
        return True
    return isinstance(error, APIError) and not isinstance(
        error, InvalidRequestError | ContextTooLongError | APITimeoutError
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
