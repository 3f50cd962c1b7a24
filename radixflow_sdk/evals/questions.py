"""One multiple-choice question, checked when it is made.

Nothing is repaired: what cannot be scored, or would give a wrong accuracy, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixflow_sdk._plan import make_plan
from radixflow_sdk._requests import MAX_BRANCHES, ScoreRequest

__all__ = ["Question", "items", "make_question", "oddities", "position", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        qid: Its name, unique in a run.
        doc_id: The name of its document; empty where the file has none.
        document: Text, or the texts of its parts; empty where there is none.
        question: Text.
        options: 2 or more texts.
        gold: Position of the right option.
        subset: The file it comes from, where several are read; else empty.
        row: The row of the file that it comes from.
    """

    qid: str
    doc_id: str
    document: str | tuple[str, ...]
    question: str
    options: tuple[str, ...]
    gold: int
    subset: str = ""
    row: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def make_question(
    *,
    qid: Any,
    options: Any,
    gold: int,
    question: Any = "",
    document: Any = "",
    doc_id: str = "",
) -> Question:
    """Check the parts of a question.

    Raises:
        TypeError: A part is of a wrong type.
        ValueError: A part cannot be sent or scored.
    """
    texts = items("options", options, str)
    if not 2 <= len(texts) <= MAX_BRANCHES:
        raise ValueError(f"{len(texts)} options: give 2 to {MAX_BRANCHES}")
    if isinstance(document, list):
        document = tuple(items("document", document, str))
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
    # The plan refuses what the server would refuse.
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


def oddities(question: Question) -> Iterator[str]:
    """A sentence for each property that is allowed and probably a mistake."""
    seen: set[str] = set()
    for option in question.options:
        text = option.strip()
        if text in seen:
            yield f"option {_short(text)} is there twice, blanks around it apart"
        elif not text:
            yield "an option is blank"
        seen.add(text)


def items(name: str, value: Any, kind: type[Any]) -> Sequence[Any]:
    """A list of one kind of value.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, list) or not all(isinstance(x, kind) for x in value):
        wanted = "texts" if kind is str else "objects" if kind is dict else "values"
        raise TypeError(f"{name} is not a list of {wanted}")
    return value


def whole(name: str, value: Any) -> int:
    """A whole number.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    return value


def position(name: str, value: Any, labels: Sequence[str] = ()) -> int:
    """The position that a number from 0, a label or a letter from A names.

    Args:
        name: The key, for messages.
        value: The number, the label or the letter.
        labels: The options' labels where the file has them; else the letters.

    Raises:
        TypeError: It is none of these.
        ValueError: The text names no option.
    """
    if not isinstance(value, str):
        return whole(name, value)
    label = value.strip()
    if labels:
        if label not in labels:
            raise ValueError(f"{name} is {value!r}, none of {', '.join(labels)}")
        return list(labels).index(label)
    if len(label) != 1 or not "A" <= label <= "Z":
        raise ValueError(f"{name} is {value!r}, not a letter from A")
    return ord(label) - ord("A")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
