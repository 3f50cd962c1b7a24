"""Multiple-choice files, read: our own format, QuALITY's and RACE's as published.

One JSON object a line (RACE: a file). Which format it is shows in its keys:

* ours: ``document`` with ``questions`` (``question``, ``options``, ``gold`` counted
  from 0; ``qid`` if there is one), or one question beside its ``document``;
* QuALITY: ``article`` with ``questions`` of ``gold_label`` counted from 1;
* RACE: ``article`` with ``questions``, ``options`` and ``answers`` A to D side by side,
  or one ``question`` with its ``answer``.

Nothing is repaired. What cannot be scored, or would give a wrong accuracy, is refused
with its file and line, all mistakes together; what is only odd is a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from radixflow_sdk._plan import make_plan
from radixflow_sdk._requests import MAX_BRANCHES, ScoreRequest
from radixflow_sdk.exceptions import InvalidInputError

__all__ = ["RESULTS_KEY", "Question", "read_questions"]

RESULTS_KEY = "radixflow_eval"
"""The first key of a results file, which distinguishes it from questions."""

MAX_LINE_BYTES = 64 * 2**20
"""A longer line could not be sent anyway: the server takes bodies of 64 MiB."""
MAX_MISTAKES = 20
_SUFFIXES = (".jsonl", ".json", ".txt")

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        qid: Names it; unique in a run.
        doc_id: Names its document; empty where the file does not.
        document: Text, or the texts of its parts.
        question: Text.
        options: 2 or more texts.
        gold: Position of the right option.
    """

    qid: str
    doc_id: str
    document: str | tuple[str, ...]
    question: str
    options: tuple[str, ...]
    gold: int


def read_questions(path: Path, *, warn: Warn = lambda why: None) -> list[Question]:
    """Every question of a file, or of a folder's files in order of their names.

    A folder's results files are passed over.

    Args:
        path: The file or the folder.
        warn: Called with a sentence for what is odd and counts all the same.

    Raises:
        InvalidInputError: Something cannot be read or scored, has no answer, or is
            there twice; the first 20 mistakes are named.
    """
    reading = _Reading(warn)
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in _SUFFIXES and file.is_file() and not _is_results(file):
                reading.read(file, name=file.relative_to(path).as_posix())
    else:
        reading.read(path, name=path.name)
    return reading.end(path)


class _Reading:
    """What was found so far, and what was wrong with it."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._found: dict[str, Question] = {}
        self._asked: dict[object, str] = {}
        self._mistakes: list[str] = []

    def read(self, file: Path, *, name: str) -> None:
        """Read one file.

        Args:
            file: Where it is.
            name: Names its questions that have no name of their own: the same from
                wherever the file is read.
        """
        begun = False
        try:
            for number, line in _lines(file):
                place = f"{file}:{number}"
                try:
                    value = _object(line)
                except ValueError as error:
                    self._refuse(place, str(error))
                    if not begun:
                        return  # another kind of file: its other lines say no more
                else:
                    begun = True
                    self._take(place, value, default=f"{name}:{number}")
        except OSError as error:
            self._refuse(str(file), error.strerror or "cannot be read")

    def end(self, path: Path) -> list[Question]:
        """All questions.

        Raises:
            InvalidInputError: There was a mistake, or there is no question.
        """
        if not self._found and not self._mistakes:
            self._refuse(str(path), f"holds no question ({', '.join(_SUFFIXES)} files)")
        if self._mistakes:
            raise self._error()
        return list(self._found.values())

    def _take(self, place: str, value: Mapping[str, Any], *, default: str) -> None:
        kind = _kind(value)
        try:
            makers = kind.read(value, default)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(place, _reason(error, kind))
            return
        for number, make in enumerate(makers):
            where = place if len(makers) == 1 else f"{place}, question {number + 1}"
            try:
                question = make()
                self._keep(where, question)
            except (KeyError, TypeError, ValueError) as error:
                self._refuse(where, _reason(error, kind))

    def _keep(self, where: str, question: Question) -> None:
        if question.qid in self._found:
            raise ValueError(f"question {question.qid!r} is there twice")
        self._found[question.qid] = question
        for why in _odd(question):
            self._warn(f"{where}: {why}")
        asked = ("".join(question.document), question.question, question.options)
        first = self._asked.setdefault(asked, question.qid)
        if first != question.qid:
            self._warn(f"{where}: the same as question {first!r}, and counts twice")

    def _refuse(self, place: str, why: str) -> None:
        self._mistakes.append(f"{place}: {why.removesuffix('.')}")
        if len(self._mistakes) == MAX_MISTAKES:
            raise self._error()

    def _error(self) -> InvalidInputError:
        first, *others = self._mistakes
        text = f"{first}."
        if others:
            count = len(self._mistakes)
            end = "; the rest was not read" if count == MAX_MISTAKES else ""
            text = "\n  ".join([f"{count} mistakes{end}:", *self._mistakes])
        return InvalidInputError(text, field="file", value=first.partition(": ")[0])


def _is_results(file: Path) -> bool:
    try:
        with file.open("rb") as lines:
            first = lines.readline(len(RESULTS_KEY) + 10)
    except OSError:
        return False  # refused where its questions are read
    return first.startswith(f'{{"{RESULTS_KEY}"'.encode())


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1; cut above the limit."""
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if line.strip():
                yield number, line
            if len(line) > MAX_LINE_BYTES:
                return


def _object(line: bytes) -> Mapping[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"is over {MAX_LINE_BYTES} bytes; the rest was not read")
    advice = "write one JSON object a line (no CSV, no list)"
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        at = f"column {error.pos + 1}"
        raise ValueError(f"is not JSON at {at} ({error.msg}); {advice}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"is not a JSON object; {advice}")
    if RESULTS_KEY in value:
        raise ValueError("these are an evaluation's results; name the questions' file")
    return value


# --- the formats ----------------------------------------------------------------------

Makers = Sequence[Callable[[], Question]]
"""Made one by one, so that one question's mistake does not hide the next one's."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A format: what its lines hold, in words, and how they are read."""

    holds: str
    read: Callable[[Mapping[str, Any], str], Makers]


def _kind(value: Mapping[str, Any]) -> _Kind:
    if "article" not in value:
        return _OURS
    return _RACE if "questions" not in value or "answers" in value else _QUALITY


def _reason(error: Exception, kind: _Kind) -> str:
    if isinstance(error, KeyError):
        return f"has no {error}; a line holds {kind.holds}"
    return str(error)


def _ours(value: Mapping[str, Any], default: str) -> Makers:
    doc_id = str(value.get("doc_id", ""))
    together = "questions" in value
    base = doc_id if together and doc_id else default
    asked = _items("questions", value["questions"], dict) if together else [value]
    return [
        partial(_our_question, value["document"], item, doc_id, f"{base}-{place}")
        for place, item in enumerate(asked)
    ]


def _our_question(
    document: Any, item: Mapping[str, Any], doc_id: str, default: str
) -> Question:
    return _question(
        qid=item.get("qid", default),
        doc_id=doc_id,
        document=document,
        question=item["question"],
        options=item["options"],
        gold=_whole("gold", item["gold"]),
    )


def _quality(value: Mapping[str, Any], default: str) -> Makers:
    doc_id = str(value.get("article_id", ""))
    return [
        partial(
            _quality_question,
            value["article"],
            item,
            doc_id,
            f"{doc_id or default}-{place}",
        )
        for place, item in enumerate(_items("questions", value["questions"], dict))
    ]


def _quality_question(
    article: Any, item: Mapping[str, Any], doc_id: str, default: str
) -> Question:
    label = _whole("gold_label", item["gold_label"])
    if label < 1:
        raise ValueError(f"gold_label is {label}: QuALITY counts from 1")
    return _question(
        qid=item.get("question_unique_id", default),
        doc_id=doc_id,
        document=article,
        question=item["question"],
        options=item["options"],
        gold=label - 1,
    )


def _race(value: Mapping[str, Any], default: str) -> Makers:
    # With one question a line, the line's name is the article's, for all its questions.
    name = str(value.get("id") or value.get("example_id") or default)
    base = name
    if "question" in value:
        base = default
        columns = [[value[key]] for key in ("question", "options", "answer")]
    else:
        keys = ("questions", "options", "answers")
        columns = [list(_items(key, value[key], object)) for key in keys]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("questions, options and answers differ in number")
    return [
        partial(
            _race_question,
            value["article"],
            question,
            options,
            answer,
            name,
            f"{base}-{place}",
        )
        for place, (question, options, answer) in enumerate(zip(*columns, strict=True))
    ]


def _race_question(
    article: Any, question: Any, options: Any, answer: Any, name: str, qid: str
) -> Question:
    return _question(
        qid=qid,
        doc_id=name,
        document=article,
        question=question,
        options=options,
        gold=_letter(answer),
    )


_OURS = _Kind(
    "document, and question, options and gold (from 0), or questions with these",
    _ours,
)
_QUALITY = _Kind(
    "article, and questions with question, options and gold_label (from 1)", _quality
)
_RACE = _Kind(
    "article, and questions, options and answers (letters) side by side, or one "
    "question, options and answer",
    _race,
)


# --- one question ---------------------------------------------------------------------


def _question(
    *, qid: Any, doc_id: str, document: Any, question: Any, options: Any, gold: int
) -> Question:
    texts = _items("options", options, str)
    if not 2 <= len(texts) <= MAX_BRANCHES:
        raise ValueError(f"{len(texts)} options: give 2 to {MAX_BRANCHES}")
    if isinstance(document, list):
        document = tuple(_items("document", document, str))
    elif not isinstance(document, str):
        raise TypeError(f"document is {type(document).__name__}, not text or parts")
    if not isinstance(question, str):
        raise TypeError(f"question is {type(question).__name__}, not text")
    if not 0 <= gold < len(texts):
        raise ValueError(f"gold is {gold}: it names none of the {len(texts)} options")
    if not isinstance(qid, str | int) or isinstance(qid, bool) or qid == "":
        raise TypeError(f"the question's id is {qid!r}, not text or a whole number")
    if any("\ud800" <= character <= "\udfff" for character in str(qid)):
        raise ValueError(f"the question's id is {qid!r}, with a lone surrogate")
    # What cannot be sent is refused.
    make_plan(ScoreRequest(document, texts, question=question))
    return Question(
        qid=str(qid),
        doc_id=doc_id,
        document=document,
        question=question,
        options=tuple(texts),
        # Of equal options the first is picked, and any of them is right.
        gold=texts.index(texts[gold]),
    )


def _odd(question: Question) -> Iterator[str]:
    seen: set[str] = set()
    for option in question.options:
        text = option.strip()
        if text in seen:
            yield f"option {_short(text)} is there twice, blanks around it apart"
        elif not text:
            yield "an option is blank"
        seen.add(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _items(name: str, value: Any, kind: type[Any]) -> Sequence[Any]:
    if not isinstance(value, list) or not all(isinstance(x, kind) for x in value):
        wanted = "texts" if kind is str else "objects" if kind is dict else "values"
        raise TypeError(f"{name} is not a list of {wanted}")
    return value


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    return value


def _letter(answer: Any) -> int:
    if not isinstance(answer, str) or len(answer) != 1 or not "A" <= answer <= "Z":
        raise ValueError(f"answer is {answer!r}, not a letter from A")
    return ord(answer) - ord("A")
