"""Multiple-choice files as people have them."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixflow_sdk import InvalidInputError
from radixflow_sdk.evals import containers
from radixflow_sdk.evals.files import Question, read_questions

DATA = Path(__file__).parent / "data"
OURS = {
    "doc_id": "d",
    "document": "Anna lives in Oslo.",
    "questions": [
        {"qid": "a", "question": "Where?", "options": ["Rome", "Oslo"], "gold": 1},
        {"question": "Who?", "options": ["Anna", "Ben", "Cy"], "gold": 0},
    ],
}
ASKED = {
    "question": "Why?",
    "question_unique_id": "30029_X_1",
    "options": ["a", "b", "c", "d"],
    "writer_label": 2,
    "gold_label": 4,
    "validation": [],
}
QUALITY = {
    "article_id": "30029",
    "set_unique_id": "30029_X",
    "title": "A title",
    "article": "Text.",
    "questions": [ASKED],
}
RACE = {
    "id": "high19088.txt",
    "article": "Text.",
    "questions": ["The best title is _ .", "Who?"],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    "answers": ["C", "A"],
}
RACE_FLAT = {
    "example_id": "middle1.txt",
    "article": "Text.",
    "question": "Who?",
    "options": ["a", "b", "c", "d"],
    "answer": "D",
}


def write(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_our_own_format(tmp_path: Path) -> None:
    first, second = read_questions(write(tmp_path / "q.jsonl", OURS))
    assert first == Question(
        qid="a",
        doc_id="d",
        document="Anna lives in Oslo.",
        question="Where?",
        options=("Rome", "Oslo"),
        gold=1,
    )
    assert (second.qid, second.gold) == ("d-1", 0)


def test_one_question_a_line(tmp_path: Path) -> None:
    flat = {"document": "D.", "question": "Q?", "options": ["x", "y"], "gold": 1}
    first, second = read_questions(write(tmp_path / "q.jsonl", flat, flat))
    assert first.qid != second.qid
    assert first.gold == second.gold == 1


def test_quality_counts_from_one(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path / "QuALITY.dev", QUALITY))
    assert (question.qid, question.doc_id, question.gold) == ("30029_X_1", "30029", 3)


def test_race_as_a_folder_of_files(tmp_path: Path) -> None:
    for place in ("high", "middle"):
        (tmp_path / place).mkdir()
    write(tmp_path / "high" / "19088.txt", RACE)
    write(tmp_path / "middle" / "1.txt", RACE_FLAT)
    (tmp_path / "readme.md").write_text("Not one of them.")
    found = read_questions(tmp_path)
    assert [q.qid for q in found] == [
        "high19088.txt-0",
        "high19088.txt-1",
        "middle/1.txt:1-0",
    ]
    assert [q.gold for q in found] == [2, 0, 3]
    assert found[1].options == ("e", "f", "g", "h")


@pytest.mark.parametrize("name", ["musr", "pubmedqa", "xquad"])
def test_the_excerpts(name: str) -> None:
    assert len(read_questions(DATA / f"{name}.jsonl")) >= 12


def changed(value: dict[str, Any], **changes: Any) -> dict[str, Any]:
    kept = {key: value[key] for key in value if key not in changes}
    return kept | {key: new for key, new in changes.items() if new is not ...}


def test_a_document_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    whole, parts = FLAT | {"document": "a b"}, FLAT | {"document": ["a ", "b"]}
    path.write_text(json.dumps(parts) + "\n" + json.dumps(whole) + "\n")
    odd: list[str] = []
    first, second = read_questions(path, warn=odd.append)
    assert (first.document, second.document) == (("a ", "b"), "a b")
    assert len(odd) == 1
    assert "the same as question" in odd[0]


FLAT = {"document": "D.", "question": "Q?", "options": ["x", "y"], "gold": 1}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1], "is not a JSON object"),
        (changed(FLAT, gold=...), "has no 'gold'"),
        (changed(FLAT, gold=2), "gold is 2: it names none of the 2 options"),
        (changed(FLAT, gold=True), "gold is True, not a whole number"),
        (changed(FLAT, gold=-1), "gold is -1"),
        (changed(FLAT, options=["x"]), "1 options: give 2 to 4096"),
        (changed(FLAT, options="xy"), "options is not a list of texts"),
        (changed(FLAT, options=["x", 1]), "options is not a list of texts"),
        (changed(FLAT, question=7), "question is int, not text"),
        (changed(FLAT, document=7), "document is int, not text or parts"),
        (changed(FLAT, document=["a", 7]), "document is not a list of texts"),
        (changed(FLAT, document=["a", ""]), r"document\[1\] is ''; it is empty"),
        (changed(OURS, questions={}), "questions is not a list of objects"),
        (changed(RACE, answers=["C", "AB"]), "answer is 'AB', not a letter"),
        (changed(RACE, answers=["C"]), "differ in number"),
        (
            changed(
                QUALITY, questions=[changed(QUALITY["questions"][0], gold_label=...)]
            ),
            "has no 'gold_label'",
        ),
        (
            changed(
                QUALITY, questions=[changed(QUALITY["questions"][0], gold_label=0)]
            ),
            "gold_label is 0: QuALITY counts from 1",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, value: Any, told: str
) -> None:
    path = write(tmp_path / "q.jsonl", FLAT, value)
    with pytest.raises(InvalidInputError, match=f"q.jsonl:2.*: .*{told}"):
        read_questions(path)


def test_files_that_hold_nothing_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.jsonl"
    with pytest.raises(InvalidInputError, match="No such file"):
        read_questions(path)
    path.write_text("\n")
    with pytest.raises(InvalidInputError, match="holds no question"):
        read_questions(path)
    path.write_text("{")
    with pytest.raises(InvalidInputError, match=r"q\.jsonl:1: is not JSON at column 2"):
        read_questions(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidInputError, match="is not UTF-8 at byte 7"):
        read_questions(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidInputError, match="is not JSON"):
        read_questions(path)
    monkeypatch.setattr(containers, "MAX_LINE_BYTES", 20)
    with pytest.raises(InvalidInputError, match="is over 20 bytes"):
        read_questions(write(path, OURS))


def test_a_name_may_stand_once(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", QUALITY, QUALITY)
    with pytest.raises(InvalidInputError, match="'30029_X_1' is there twice"):
        read_questions(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"options": ["x", ""], "gold": 0}, r"options\[1\] is ''; it is empty"),
        ({"document": "", "question": ""}, "document and question are both empty"),
        ({"options": ["x", "\ud800"]}, "lone surrogate"),
        ({"question": "a\0"}, "NUL"),
        ({"qid": None}, "id is None"),
        ({"qid": ""}, "id is ''"),
        ({"gold": ...}, r"has no 'gold'; a row of ours holds question.*from 0"),
    ],
)
def test_what_cannot_be_scored_is_refused_at_reading(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    path = write(tmp_path / "q.jsonl", changed(FLAT, **changes))
    with pytest.raises(InvalidInputError, match=told):
        read_questions(path)


def test_what_is_odd_is_told(tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.jsonl",
        FLAT,
        changed(FLAT, options=["a ", "b", "a"]),
        changed(FLAT, options=["a", " "]),
        FLAT,
        changed(FLAT, document=""),
        changed(FLAT, document="Text", question=""),
    )
    told: list[str] = []
    assert len(read_questions(path, warn=told.append)) == 6
    places = [words.partition("q.jsonl:")[2] for words in told]
    assert places == [
        "2: option 'a' is there twice, blanks around it apart",
        "3: an option is blank",
        "4: the same as question 'q.jsonl:1-0', and counts twice",
    ]


def test_of_equal_options_any_is_right(tmp_path: Path) -> None:
    twice = changed(FLAT, options=["x", "y", "y"], gold=2)
    [question] = read_questions(write(tmp_path / "q.jsonl", twice), warn=lambda _: None)
    assert question.gold == 1  # the one that is picked of the two


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    bad = changed(FLAT, gold=7)
    both = changed(OURS, questions=[changed(FLAT, gold=...), changed(FLAT, gold=3)])
    path = write(tmp_path / "q.jsonl", FLAT, bad, FLAT, both)
    path.write_text(path.read_text() + "no JSON\n")
    with pytest.raises(InvalidInputError) as caught:
        read_questions(path)
    first, *lines = str(caught.value).split("\n")
    assert first == "4 mistakes:"
    assert [line.rpartition("q.jsonl:")[2].partition(": ")[0] for line in lines] == [
        "2",
        "4, question 1",
        "4, question 2",
        "5",
    ]
    write(path, *[FLAT | {"gold": 7 + number} for number in range(50)])
    with pytest.raises(InvalidInputError, match=r"^20 mistakes; the rest was not read"):
        read_questions(path)


def test_equal_mistakes_are_one_line(tmp_path: Path) -> None:
    bad = changed(FLAT, gold=7)
    path = write(tmp_path / "q.jsonl", *[bad] * 50, changed(FLAT, options=[]))
    with pytest.raises(InvalidInputError) as caught:
        read_questions(path)
    first, equal, other = str(caught.value).split("\n")
    assert first == "51 mistakes:"
    assert f"{path}:1 to 50 (50 times): gold is 7" in equal
    assert f"{path}:51: 0 options" in other


def test_another_kind_of_file_is_one_mistake(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text("document,question\nD.,Q?\n")
    with pytest.raises(InvalidInputError, match=r"q\.txt:1: is not JSON.*CSV"):
        read_questions(path)
    path.write_text('{"radixflow_eval": 1}\n')
    with pytest.raises(InvalidInputError, match="an evaluation's results"):
        read_questions(path)


def test_ids_are_the_same_from_wherever_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in" / "q.jsonl", FLAT, changed(FLAT, doc_id="d", gold=0))
    ids = [question.qid for question in read_questions(path)]
    assert ids == ["q.jsonl:1-0", "q.jsonl:2-0"]
    monkeypatch.chdir(path.parent)
    for here in (Path("q.jsonl"), Path()):
        assert [question.qid for question in read_questions(here)] == ids


def test_quality_without_its_ids(tmp_path: Path) -> None:
    question = changed(QUALITY["questions"][0], question_unique_id=...)
    path = write(tmp_path / "q.jsonl", changed(QUALITY, questions=[question]))
    assert read_questions(path)[0].qid == "30029-0"
