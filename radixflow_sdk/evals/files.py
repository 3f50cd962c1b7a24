"""Multiple-choice files, read: our own format, QuALITY's and RACE's as published.

One JSON object a line (RACE: a file). Which format it is shows in its keys:

* ours: ``document`` with ``questions`` (``question``, ``options``, ``gold`` counted
  from 0; ``qid`` if there is one), or one question beside its ``document``;
* QuALITY: ``article`` with ``questions`` of ``gold_label`` counted from 1;
* RACE: ``article`` with ``questions``, ``options`` and ``answers`` A to D side by side,
  or one ``question`` with its ``answer``.

Nothing is repaired: what cannot be read is refused with its file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixflow_sdk.exceptions import InvalidInputError
from radixflow_sdk.types import MAX_BRANCHES

__all__ = ["Question", "read_questions"]

MAX_LINE_BYTES = 64 * 2**20
"""A longer line could not be sent anyway: the server takes bodies of 64 MiB."""
_SUFFIXES = (".jsonl", ".json", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        qid: Names it; unique in a run.
        doc_id: Names its document; empty where the file does not.
        document: Text.
        question: Text.
        options: 2 or more texts.
        gold: Position of the right option.
    """

    qid: str
    doc_id: str
    document: str
    question: str
    options: tuple[str, ...]
    gold: int


def read_questions(path: Path) -> list[Question]:
    """Every question of a file, or of a folder's files in order of their names.

    Raises:
        InvalidInputError: Something cannot be read, has no answer, or is there twice.
    """
    found: dict[str, Question] = {}
    for file in _files(path):
        for place, value in _objects(file):
            try:
                questions = _of_object(value, default=place)
            except (KeyError, TypeError, ValueError) as error:
                told = f"has no {error}" if isinstance(error, KeyError) else str(error)
                raise _refused(place, told) from None
            for question in questions:
                if question.qid in found:
                    raise _refused(place, f"question {question.qid!r} is there twice")
                found[question.qid] = question
    if not found:
        raise _refused(str(path), "holds no question")
    return list(found.values())


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.suffix in _SUFFIXES and file.is_file():
            yield file


def _objects(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each object is, and the object."""
    try:
        with file.open("rb") as lines:
            number = 0
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                place = f"{file}:{number}"
                if len(line) > MAX_LINE_BYTES:
                    raise _refused(place, f"is over {MAX_LINE_BYTES} bytes")
                if line.strip():
                    yield place, _object(line, place)
    except OSError as error:
        raise _refused(str(file), error.strerror or "cannot be read") from None


def _object(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise _refused(place, f"is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise _refused(place, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _refused(place, "is not a JSON object")
    return value


def _of_object(value: Mapping[str, Any], *, default: str) -> list[Question]:
    if "article" not in value:
        return _ours(value, default)
    if "questions" not in value or "answers" in value:
        return _race(value, default)
    return _quality(value)


def _ours(value: Mapping[str, Any], default: str) -> list[Question]:
    doc_id = str(value.get("doc_id", ""))
    asked = value.get("questions", [value])
    return [
        _question(
            qid=item.get("qid", f"{doc_id or default}-{place}"),
            doc_id=doc_id,
            document=value["document"],
            question=item["question"],
            options=item["options"],
            gold=item["gold"],
        )
        for place, item in enumerate(_items("questions", asked, dict))
    ]


def _quality(value: Mapping[str, Any]) -> list[Question]:
    return [
        _question(
            qid=item["question_unique_id"],
            doc_id=str(value["article_id"]),
            document=value["article"],
            question=item["question"],
            options=item["options"],
            gold=_whole("gold_label", item["gold_label"]) - 1,
        )
        for item in _items("questions", value["questions"], dict)
    ]


def _race(value: Mapping[str, Any], default: str) -> list[Question]:
    name = str(value.get("id") or value.get("example_id") or default)
    if "question" in value:
        value = {
            **value,
            "questions": [value["question"]],
            "options": [value["options"]],
            "answers": [value["answer"]],
        }
    columns = [value["questions"], value["options"], value["answers"]]
    rows = zip(*columns, strict=True)
    return [
        _question(
            qid=f"{name}-{place}",
            doc_id=name,
            document=value["article"],
            question=question,
            options=options,
            gold=_letter(answer),
        )
        for place, (question, options, answer) in enumerate(rows)
    ]


def _question(
    *, qid: Any, doc_id: str, document: Any, question: Any, options: Any, gold: Any
) -> Question:
    texts = _items("options", options, str)
    if not 2 <= len(texts) <= MAX_BRANCHES:
        raise ValueError(f"{len(texts)} options: give 2 to {MAX_BRANCHES}")
    for name, value in (("document", document), ("question", question)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is {type(value).__name__}, not text")
    if not 0 <= _whole("gold", gold) < len(texts):
        raise ValueError(f"gold is {gold}: it names none of the {len(texts)} options")
    return Question(
        qid=str(qid),
        doc_id=doc_id,
        document=document,
        question=question,
        options=tuple(texts),
        gold=gold,
    )


def _items(name: str, value: Any, kind: type[Any]) -> Sequence[Any]:
    if not isinstance(value, list) or not all(isinstance(x, kind) for x in value):
        wanted = "texts" if kind is str else "objects"
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


def _refused(place: str, told: str) -> InvalidInputError:
    return InvalidInputError(
        f"{place}: {told}; see the file formats in docs/evaluation.md.",
        field="file",
        value=place,
    )
