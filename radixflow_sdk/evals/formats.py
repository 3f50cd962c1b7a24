"""The formats of multiple-choice files: ours, and those that publishers ship.

A format is a name, the keys that identify it, and a function from one row of a file
to its questions. Each function reads one published shape and changes no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from radixflow_sdk.evals.questions import (
    Question,
    items,
    make_question,
    position,
    whole,
)
from radixflow_sdk.exceptions import InvalidInputError

__all__ = [
    "FORMATS",
    "OURS",
    "Format",
    "Makers",
    "choose",
    "describe_unknown",
    "mapped",
    "read_format",
    "read_map",
]

Row = Mapping[str, Any]
Makers = Sequence[Callable[[], Question]]
"""Called one by one, so that one question's mistake does not hide the next one's."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: how its rows are recognized and read.

    Attributes:
        name: As ``--format`` takes it.
        keys: The keys that every row has.
        holds: What a row holds, in words.
        read: From a row and a default id to its questions.
    """

    name: str
    keys: frozenset[str]
    holds: str
    read: Callable[[Row, str], Makers]


def choose(row: Row) -> Format | None:
    """The format of a row, by its keys; None where no format has these."""
    return next(
        (one for one in FORMATS.values() if one.keys <= row.keys() and _fits(one, row)),
        None,
    )


def _fits(one: Format, row: Row) -> bool:
    """Tell apart formats that share keys, by the shape of a value."""
    if one.name == "arc":
        return isinstance(row["question"], dict)
    if one.name == "quality":
        return "answers" not in row
    if one.name == "boolq":
        return isinstance(row["answer"], bool)
    if one.name == "race":
        return "answers" in row or "answer" in row
    return True


# --- ours -----------------------------------------------------------------------------


def _ours(row: Row, default: str) -> Makers:
    doc_id = str(row.get("doc_id", ""))
    together = "questions" in row
    base = doc_id if together and doc_id else default
    asked = items("questions", row["questions"], dict) if together else [row]
    return [
        partial(_our_question, row.get("document", ""), item, doc_id, f"{base}-{place}")
        for place, item in enumerate(asked)
    ]


def _our_question(document: Any, item: Row, doc_id: str, default: str) -> Question:
    options = item["options"] if "options" in item else _columns(item)
    return make_question(
        qid=item.get("qid", default),
        doc_id=doc_id,
        document=document,
        question=item.get("question", ""),
        options=options,
        gold=position("gold", _number(item["gold"])),
    )


def _columns(row: Row) -> list[str]:
    """Options in columns of their own, as a CSV file has them; empty ones left out."""
    names = [name for name in row if re.fullmatch(r"option_?\d+|[A-Z]", name)]
    if not names:
        raise KeyError("options")
    return [row[name] for name in names if row[name] != ""]


def _number(value: Any) -> Any:
    """A cell of a CSV file that holds digits, as a number."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


# --- with a passage -------------------------------------------------------------------


def _quality(row: Row, default: str) -> Makers:
    doc_id = str(row.get("article_id", ""))
    return [
        partial(
            _quality_question, row["article"], item, doc_id, f"{doc_id or default}-{n}"
        )
        for n, item in enumerate(items("questions", row["questions"], dict))
    ]


def _quality_question(article: Any, item: Row, doc_id: str, default: str) -> Question:
    label = whole("gold_label", item["gold_label"])
    if label < 1:
        raise ValueError(f"gold_label is {label}: QuALITY counts from 1")
    return make_question(
        qid=item.get("question_unique_id", default),
        doc_id=doc_id,
        document=article,
        question=item["question"],
        options=item["options"],
        gold=label - 1,
    )


def _race(row: Row, default: str) -> Makers:
    # With one question a row, the row's name is the article's, for all its questions.
    name = str(row.get("id") or row.get("example_id") or default)
    base = name
    if "question" in row:
        base = default
        columns = [[row[key]] for key in ("question", "options", "answer")]
    else:
        keys = ("questions", "options", "answers")
        columns = [list(items(key, row[key], object)) for key in keys]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("questions, options and answers differ in number")
    return [
        partial(
            _race_question,
            row["article"],
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
    if not isinstance(answer, str):
        raise ValueError(f"answer is {answer!r}, not a letter from A")
    return make_question(
        qid=qid,
        doc_id=name,
        document=article,
        question=question,
        options=options,
        gold=position("answer", answer),
    )


def _boolq(row: Row, default: str) -> Question:
    answer = row["answer"] if "answer" in row else bool(row["label"])
    return make_question(
        qid=row.get("idx", default),
        document=row["passage"],
        question=row["question"],
        options=["no", "yes"],
        gold=int(answer),
    )


def _agieval(row: Row, default: str) -> Question:
    texts = items("options", row["options"], str)
    return make_question(
        qid=default,
        document=row["passage"] or "",
        question=row["question"],
        options=[re.sub(r"^\([A-Z]\)\s*", "", text) for text in texts],
        gold=position("label", row["label"]),
    )


def _sciq(row: Row, default: str) -> Question:
    wrong = [row[f"distractor{number}"] for number in (1, 2, 3)]
    return make_question(
        qid=default,
        document=row.get("support") or "",
        question=row["question"],
        options=[*wrong, row["correct_answer"]],
        gold=3,
    )


def _pubmedqa(row: Row, default: str) -> Question:
    options = ["yes", "no", "maybe"]
    contexts = row["CONTEXTS"] if "CONTEXTS" in row else row["context"]["contexts"]
    return make_question(
        qid=row.get("pubid", row.get("id", default)),
        document="\n".join(items("contexts", contexts, str)),
        question=row["QUESTION"] if "QUESTION" in row else row["question"],
        options=options,
        gold=position("final_decision", row["final_decision"], options),
    )


def _mctest(row: Row, default: str) -> Makers:
    asked = items("questions", row["mctest"], dict)
    return [
        partial(
            make_question,
            qid=f"{row['id']}-{place}",
            doc_id=row["id"],
            # MCTest writes line breaks and tabs of a story as \newline and \tab.
            document=row["story"].replace("\\newline", "\n").replace("\\tab", "\t"),
            question=re.sub(r"^(one|multiple): ", "", item["question"]),
            options=item["options"],
            gold=position("answer", item["answer"]),
        )
        for place, item in enumerate(asked)
    ]


# --- without a passage ----------------------------------------------------------------


def _arc(row: Row, default: str) -> Question:
    choices = items("question.choices", row["question"]["choices"], dict)
    return make_question(
        qid=row.get("id", default),
        question=row["question"]["stem"],
        options=[choice["text"] for choice in choices],
        gold=position("answerKey", row["answerKey"], [c["label"] for c in choices]),
    )


def _arc_columns(row: Row, default: str) -> Question:
    choices = row["choices"]
    return make_question(
        qid=row.get("id", default),
        question=row["question"] if "question" in row else row["question_stem"],
        options=choices["text"],
        gold=position("answerKey", row["answerKey"], choices["label"]),
    )


def _hellaswag(row: Row, default: str) -> Question:
    return make_question(
        qid=row.get("ind", default),
        document=row["ctx"],
        options=row["endings"],
        gold=position("label", _number(row["label"])),
    )


def _mmlu(row: Row, default: str) -> Question:
    return make_question(
        qid=row.get("id", default),
        question=row["question"],
        options=row["choices"],
        gold=position("answer", row["answer"]),
    )


def _letters(row: Row, default: str) -> Question:
    return make_question(
        qid=row.get("id", default),
        question=row["question"],
        options=[row[letter] for letter in "ABCD"],
        gold=position("answer", row["answer"]),
    )


def _truthfulqa(row: Row, default: str) -> Question:
    wrong = [text.strip() for text in row["Incorrect Answers"].split(";")]
    return make_question(
        qid=default,
        question=row["Question"],
        options=[row["Best Answer"].strip(), *filter(None, wrong)],
        gold=0,
    )


def _truthfulqa_mc(row: Row, default: str) -> Question:
    targets = row["mc1_targets"]
    if "choices" in targets:
        targets = dict(zip(targets["choices"], targets["labels"], strict=True))
    return make_question(
        qid=default,
        question=row["question"],
        options=list(targets),
        gold=list(targets.values()).index(1),
    )


def _winogrande(row: Row, default: str) -> Question:
    before, blank, after = row["sentence"].partition("_")
    if not blank:
        raise ValueError("sentence has no blank (_)")
    return make_question(
        qid=row.get("qID", default),
        document=before.rstrip(),
        options=[row["option1"] + after, row["option2"] + after],
        gold=position("answer", row["answer"], ("1", "2")),
    )


def _piqa(row: Row, default: str) -> Question:
    return make_question(
        qid=row.get("id", default),
        question=row["goal"],
        options=[row["sol1"], row["sol2"]],
        gold=whole("label", _number(row["label"])),
    )


# --- the list -------------------------------------------------------------------------


def _one(read: Callable[[Row, str], Question]) -> Callable[[Row, str], Makers]:
    return lambda row, default: [partial(read, row, f"{default}-0")]


def _format(
    name: str, keys: str, read: Callable[[Row, str], Makers], holds: str = ""
) -> Format:
    names = keys.split("|")
    return Format(name, frozenset(names), holds or ", ".join(names), read)


_ALL = (
    _format(
        "quality",
        "article|questions",
        _quality,
        "article, and questions with question, options and gold_label (from 1)",
    ),
    _format(
        "race",
        "article|options",
        _race,
        "article, and questions, options and answers (letters) side by side, or one "
        "question, options and answer",
    ),
    _format("mctest", "mctest|story", _mctest),
    _format(
        "arc",
        "question|answerKey",
        _one(_arc),
        "question with stem and choices, and answerKey",
    ),
    _format("arc-columns", "question|choices|answerKey", _one(_arc_columns)),
    _format("openbookqa", "question_stem|choices|answerKey", _one(_arc_columns)),
    _format("hellaswag", "ctx|endings|label", _one(_hellaswag)),
    _format("truthfulqa-mc", "question|mc1_targets", _one(_truthfulqa_mc)),
    _format(
        "truthfulqa",
        "Question|Best Answer|Incorrect Answers",
        _one(_truthfulqa),
    ),
    _format("agieval", "passage|question|options|label", _one(_agieval)),
    _format("boolq", "passage|question|answer", _one(_boolq)),
    _format("boolq-superglue", "passage|question|label", _one(_boolq)),
    _format(
        "sciq",
        "question|distractor1|distractor2|distractor3|correct_answer",
        _one(_sciq),
    ),
    _format("pubmedqa", "QUESTION|CONTEXTS|final_decision", _one(_pubmedqa)),
    _format("pubmedqa-columns", "question|context|final_decision", _one(_pubmedqa)),
    _format("winogrande", "sentence|option1|option2|answer", _one(_winogrande)),
    _format("piqa", "goal|sol1|sol2|label", _one(_piqa)),
    _format("mmlu", "question|choices|answer", _one(_mmlu)),
    _format("letters", "question|A|B|C|D|answer", _one(_letters)),
    _format(
        "ours",
        "gold",
        _ours,
        "question, options and gold (from 0, or a letter), or questions with these, "
        "and document where there is one",
    ),
)
FORMATS: Mapping[str, Format] = {one.name: one for one in _ALL}
OURS = FORMATS["ours"]


# --- other files, by a map of keys ----------------------------------------------------

_NAMES = {
    "question": ("question", "stem", "query", "prompt", "goal", "input", "sentence"),
    "options": ("options", "choices", "endings", "candidates", "answers", "choice"),
    "gold": ("gold", "answerKey", "answer", "label", "target", "correct", "answer_idx"),
    "document": ("document", "passage", "article", "context", "story", "text"),
}
"""Keys that other files use for ours; the first that a row has is suggested."""


def read_map(words: str) -> dict[str, str]:
    """A map such as ``question=stem,options=choices.text,gold=answerKey``.

    Raises:
        InvalidInputError: It is none.
    """
    pairs = [pair.partition("=") for pair in words.split(",")]
    found = {name.strip(): path.strip() for name, _, path in pairs}
    known = {*_NAMES, "qid", "labels"}
    if not found.keys() <= known or not all(found.values()) or "gold" not in found:
        raise InvalidInputError(
            f"map is {words!r}; write NAME=KEY,..., with the names question, options, "
            "gold, document, qid and labels; options and gold are needed.",
            field="map",
            value=words,
        )
    if "options" not in found:
        raise InvalidInputError(
            f"map is {words!r}; it has no options=KEY.", field="map", value=words
        )
    return found


def read_format(name: str | None, words: str | None) -> Format | None:
    """The format that ``--format`` or ``--map`` names; None where neither is given.

    Raises:
        InvalidInputError: There is no such format, or the map is none.
    """
    if words is not None:
        return mapped(read_map(words))
    if name is not None and name not in FORMATS:
        raise InvalidInputError(
            f"format is {name!r}; there are {', '.join(FORMATS)}.",
            field="format",
            value=name,
        )
    return None if name is None else FORMATS[name]


def mapped(paths: Mapping[str, str]) -> Format:
    """The format that a map of keys describes."""

    def read(row: Row, default: str) -> Question:
        found = {name: _at(row, path) for name, path in paths.items()}
        labels = found.get("labels") or ()
        gold = found["gold"]
        return make_question(
            qid=found.get("qid", default),
            document=found.get("document", ""),
            question=found.get("question", ""),
            options=found["options"],
            gold=position("gold", gold if labels else _number(gold), labels),
        )

    return Format("map", frozenset(), ", ".join(paths.values()), _one(read))


def _at(value: Any, path: str) -> Any:
    """The value at a dotted path; a list of objects gives the list of their values."""
    for key in path.split("."):
        is_list = isinstance(value, list)
        value = [item[key] for item in value] if is_list else value[key]
    return value


def describe_unknown(row: Row) -> str:
    """What a row of no known format has, the nearest format, and a map to try."""
    keys = ", ".join(map(str, row)) or "none"
    nearest = max(
        FORMATS.values(),
        key=lambda one: (len(one.keys & row.keys()) / len(one.keys), one is OURS),
    )
    lacks = ", ".join(sorted(nearest.keys - row.keys()))
    found = {}
    for name, known in _NAMES.items():
        key = next((key for key in known if key in row), None)
        if key is not None:
            found[name] = key
    options = row.get(found.get("options", ""))
    if isinstance(options, dict) and "text" in options:
        found["options"] += ".text"
    elif isinstance(options, list) and options and isinstance(options[0], dict):
        inner = next((key for key in ("text", "choice") if key in options[0]), None)
        found["options"] += f".{inner or next(iter(options[0]), '')}"
    advice = ""
    if "options" in found:
        found.setdefault("gold", "KEY")
        tried = ",".join(f"{name}={key}" for name, key in found.items())
        advice = f"; try --map {tried}"
    return (
        f"has the keys {keys}, which is no format that is known; the nearest is "
        f"{nearest.name}, without {lacks}{advice or '; name its keys with --map'}"
    )
