"""Rows in the shapes that publishers ship; the texts are made up."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from radixflow_sdk import InvalidInputError
from radixflow_sdk.evals.files import read_questions
from radixflow_sdk.evals.formats import FORMATS, mapped, read_map
from radixflow_sdk.evals.questions import Question


def read(path: Path, *rows: Any, **options: Any) -> list[Question]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_questions(path, **options)


def stem(name: str, key: str, *labels: str) -> dict[str, Any]:
    """A row of ARC; OpenBookQA's and CommonsenseQA's files have the same shape."""
    choices = [{"text": f"{name} {label}", "label": label} for label in labels]
    return {
        "id": name,
        "question": {"stem": f"{name}?", "choices": choices},
        "answerKey": key,
    }


def columns(name: str, key: str, *labels: str) -> dict[str, Any]:
    texts = [f"{name} {label}" for label in labels]
    choices = {"text": texts, "label": list(labels)}
    return {"id": name, "question": f"{name}?", "choices": choices, "answerKey": key}


def hellaswag(number: int, label: int) -> dict[str, Any]:
    return {
        "ind": number,
        "activity_label": "Roof",
        "ctx_a": "A man.",
        "ctx_b": "he",
        "ctx": "A man. he",
        "endings": ["a.", "b.", "c.", "d."],
        "label": label,
        "split": "val",
    }


def sciq(number: int) -> dict[str, str]:
    wrong = {f"distractor{place}": f"w{place}" for place in (1, 2, 3)}
    asked = {"question": f"Q{number}?", "correct_answer": "r", "support": "S."}
    return {**wrong, **asked}


def agieval(passage: str | None, label: str) -> dict[str, Any]:
    return {
        "passage": passage,
        "question": f"Q{label}?",
        "options": ["(A)one", "(B)two", "(C)three"],
        "label": label,
        "answer": None,
        "other": None,
    }


def winogrande(number: int, answer: str) -> dict[str, str]:
    sentence = f"Sarah was kinder than Maria, so _ helped {number}."
    options = {"option1": "Sarah", "option2": "Maria"}
    return {"qID": f"w{number}", "sentence": sentence, **options, "answer": answer}


def pubmed(name: str, decision: str) -> dict[str, Any]:
    contexts = ["One.", "Two."]
    return {
        "id": name,
        "QUESTION": f"Is {name}?",
        "CONTEXTS": contexts,
        "LABELS": ["BACKGROUND", "RESULTS"],
        "final_decision": decision,
    }


def boolq(number: int, answer: bool) -> dict[str, Any]:
    asked = f"is it {number}"
    return {"question": asked, "title": "T", "answer": answer, "passage": "P."}


def truthful(number: int) -> dict[str, Any]:
    targets = {"right": 1, "wrong": 0, "off": 0}
    return {"question": f"Q{number}?", "mc1_targets": targets, "mc2_targets": targets}


PUBLISHED: dict[str, tuple[list[Any], list[tuple[str, str, str, int]]]] = {
    "arc": (
        [stem("q", "B", *"ABCD"), stem("r", "1", *"1234"), stem("s", "E", *"ABCDE")],
        [("", "q?", "q B", 1), ("", "r?", "r 1", 0), ("", "s?", "s E", 4)],
    ),
    "arc-columns": (
        [columns("q", "B", *"AB"), columns("r", "3", *"123"), columns("s", "A", *"AB")],
        [("", "q?", "q B", 1), ("", "r?", "r 3", 2), ("", "s?", "s A", 0)],
    ),
    "hellaswag": (
        [hellaswag(1, 3), hellaswag(2, 0), {**hellaswag(3, 0), "label": "2"}],
        [("A man. he", "", text, at) for text, at in (("d.", 3), ("a.", 0), ("c.", 2))],
    ),
    "mmlu": (
        [
            {
                "question": f"Q{n}?",
                "subject": "law",
                "choices": list("wxyz"),
                "answer": n,
            }
            for n in range(3)
        ],
        [("", f"Q{n}?", "wxyz"[n], n) for n in range(3)],
    ),
    "truthfulqa-mc": (
        [truthful(1), truthful(2), truthful(3)],
        [("", f"Q{n}?", "right", 0) for n in (1, 2, 3)],
    ),
    "boolq": (
        [boolq(1, True), boolq(2, False), boolq(3, True)],
        [
            ("P.", f"is it {n}", ("no", "yes")[at], at)
            for n, at in ((1, 1), (2, 0), (3, 1))
        ],
    ),
    "agieval": (
        [agieval("P.", "A"), agieval("P.", "C"), agieval(None, "B")],
        [("P.", "QA?", "one", 0), ("P.", "QC?", "three", 2), ("", "QB?", "two", 1)],
    ),
    "sciq": (
        [sciq(1), sciq(2), sciq(3)],
        [("S.", f"Q{n}?", "r", 3) for n in (1, 2, 3)],
    ),
    "pubmedqa": (
        [pubmed("1", "yes"), pubmed("2", "no"), pubmed("3", "maybe")],
        [
            ("One.\nTwo.", f"Is {n}?", text, at)
            for n, text, at in (("1", "yes", 0), ("2", "no", 1), ("3", "maybe", 2))
        ],
    ),
    "winogrande": (
        [winogrande(1, "1"), winogrande(2, "2"), winogrande(3, "1")],
        [
            ("Sarah was kinder than Maria, so", "", f"{who} helped {n}.", at)
            for n, who, at in ((1, "Sarah", 0), (2, "Maria", 1), (3, "Sarah", 0))
        ],
    ),
    "piqa": (
        [
            {"goal": f"G{n}", "sol1": "one", "sol2": "two", "label": label}
            for n, label in ((1, 1), (2, 0), (3, "1"))
        ],
        [
            ("", f"G{n}", text, at)
            for n, text, at in ((1, "two", 1), (2, "one", 0), (3, "two", 1))
        ],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_format(tmp_path: Path, name: str) -> None:
    rows, wanted = PUBLISHED[name]
    found = read(tmp_path / "q.jsonl", *rows)
    assert [
        (one.document, one.question, one.options[one.gold], one.gold) for one in found
    ] == wanted
    assert read(tmp_path / "q.jsonl", *rows, reads=FORMATS[name]) == found


def test_openbookqa_and_superglue_in_columns(tmp_path: Path) -> None:
    row = columns("q", "B", "A", "B")
    row["question_stem"] = row.pop("question")
    [found] = read(tmp_path / "q.jsonl", row)
    assert (found.question, found.gold) == ("q?", 1)
    row = {"passage": "P.", "question": "is it", "idx": 7, "label": 1}
    [found] = read(tmp_path / "q.jsonl", row)
    assert (found.qid, found.options, found.gold) == ("7", ("no", "yes"), 1)


def test_pubmedqa_with_its_context_as_an_object(tmp_path: Path) -> None:
    row = {
        "pubid": 7,
        "question": "Is it?",
        "context": {"contexts": ["One.", "Two."], "labels": ["A", "B"]},
        "final_decision": "no",
    }
    [found] = read(tmp_path / "q.jsonl", row)
    assert (found.qid, found.document, found.gold) == ("7", "One.\nTwo.", 1)


def test_mmlu_is_csv_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "anatomy_test.csv"
    path.write_text('"Q, one?",w,x,y,z,B\nQ two?,1,2,3,4,D\n"Q\nthree?",a,b,c,d,A\n')
    found = read_questions(path)
    assert [one.question for one in found] == ["Q, one?", "Q two?", "Q\nthree?"]
    assert [one.gold for one in found] == [1, 3, 0]
    assert found[1].options == ("1", "2", "3", "4")


def test_truthfulqa_is_csv_with_a_header(tmp_path: Path) -> None:
    path = tmp_path / "TruthfulQA.csv"
    path.write_text(
        "Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source\n"
        "Adversarial,Law,Q one?,Yes,Yes; Sure,No; Never,https://example.org\n"
        'Adversarial,Law,Q two?,"No, not",No,Maybe; Yes;,https://example.org\n'
        "Non-Adversarial,Law,Q three?,A,A,B,https://example.org\n"
    )
    found = read_questions(path)
    assert [one.options for one in found] == [
        ("Yes", "No", "Never"),
        ("No, not", "Maybe", "Yes"),
        ("A", "B"),
    ]
    assert {one.gold for one in found} == {0}


def test_mctest_has_its_answers_beside_it(tmp_path: Path) -> None:
    asked = [f"{kind}: Q{n}?" for n, kind in enumerate(("one", "multiple") * 2)]
    cells = [cell for text in asked for cell in (text, "w", "x", "y", "z")]
    lines = [
        [f"mc.{n}", "Author: x", f"Story {n}.\\newlineEnd.", *cells] for n in (1, 2, 3)
    ]
    path = tmp_path / "mc160.dev.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    (tmp_path / "mc160.dev.ans").write_text("A\tB\tC\tD\n" * 3)
    found = read_questions(path)
    assert len(found) == 12
    assert [one.gold for one in found[:4]] == [0, 1, 2, 3]
    assert (found[1].document, found[1].question) == ("Story 1.\nEnd.", "Q1?")


def test_piqa_has_its_labels_beside_it(tmp_path: Path) -> None:
    (tmp_path / "valid-labels.lst").write_text("1\n0\n1\n")
    rows = [{"goal": f"G{n}", "sol1": "a", "sol2": "b"} for n in range(3)]
    found = read(tmp_path / "valid.jsonl", *rows)
    assert [one.gold for one in found] == [1, 0, 1]


OURS = {"question": "Q?", "options": ["x", "y", "z"], "gold": "C"}


def test_a_document_is_optional_and_gold_may_be_a_letter(tmp_path: Path) -> None:
    [found] = read(tmp_path / "q.jsonl", OURS)
    assert (found.document, found.gold) == ("", 2)
    with pytest.raises(InvalidInputError, match="gold is 'z', not a letter from A"):
        read(tmp_path / "q.jsonl", OURS | {"gold": "z"})


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_ours_as_a_table(tmp_path: Path, delimiter: str) -> None:
    rows = [["question", "option0", "option1", "option2", "gold"]]
    rows += [["Q one?", "x", "y", "", "1"], ["Q two?", "x", "y", "z", "C"]]
    path = tmp_path / ("q.csv" if delimiter == "," else "q.tsv")
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows))
    found = read_questions(path)
    assert [(one.options, one.gold) for one in found] == [
        (("x", "y"), 1),
        (("x", "y", "z"), 2),
    ]
    path.write_text(f"{path.read_text()}Q three?{delimiter}x\n")
    with pytest.raises(InvalidInputError, match=":4: has 2 cells under 5 columns"):
        read_questions(path)


def test_the_containers_of_one_row(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "q.json"
    other = OURS | {"question": "R?"}
    lines = f"{json.dumps(OURS)}\n{json.dumps(other)}\n"
    for text in (
        json.dumps([OURS, other]),
        json.dumps([OURS, other], indent=2),
        json.dumps({"1": OURS, "2": other}, indent=2),
        f"\ufeff{lines}",
    ):
        path.write_text(text)
        assert [one.question for one in read_questions(path)] == ["Q?", "R?"]
    path.write_text(json.dumps(OURS, indent=2))
    assert [one.question for one in read_questions(path)] == ["Q?"]
    packed = tmp_path / "q.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.encode()))
    assert len(read_questions(packed)) == 2
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(InvalidInputError, match=r"q\.jsonl\.gz: .*end"):
        read_questions(packed)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert [one.qid for one in read_questions(Path("-"))] == ["stdin:1-0", "stdin:2-0"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [columns("q", "B", "A", "B"), columns("r", "A", "A", "B")]
    path = tmp_path / "q.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [one.gold for one in read_questions(path)] == [1, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04....", "is a zip archive"),
        (b"BZh91AY", "is compressed with bzip2"),
        ("{}".encode("utf-16"), "is UTF-16; convert it"),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=rf"q\.jsonl: {reason}"):
        read_questions(path)


def test_several_files_are_subsets(tmp_path: Path) -> None:
    first, second = tmp_path / "easy.jsonl", tmp_path / "hard.jsonl"
    row = OURS | {"qid": "a"}
    read(second, row | {"question": "R?"})
    read(first, row)
    found = read_questions([first, second])
    assert [(one.subset, one.qid) for one in found] == [
        ("easy", "a"),
        ("hard", "hard/a"),
    ]
    assert read_questions(tmp_path) == found
    assert read_questions(first)[0].subset == ""


UNKNOWN = {
    "number": 7,
    "stem": "Q?",
    "choices": [{"text": "x"}, {"text": "y"}],
    "key": 1,
}


def test_an_unknown_format_names_its_keys_and_a_map(tmp_path: Path) -> None:
    row = {**UNKNOWN, "answerKey": "B"}
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path / "q.jsonl", row)
    assert "has the keys number, stem, choices, key, answerKey" in str(caught.value)
    tried = "question=stem,options=choices.text,gold=answerKey"
    assert f"try --map {tried}" in str(caught.value)
    [found] = read(tmp_path / "q.jsonl", row, reads=mapped(read_map(tried)))
    assert (found.question, found.options, found.gold) == ("Q?", ("x", "y"), 1)
    with pytest.raises(InvalidInputError, match=r"options=choices\.text,gold=KEY"):
        read(tmp_path / "q.jsonl", UNKNOWN)
    with pytest.raises(InvalidInputError, match="name its keys with --map"):
        read(tmp_path / "q.jsonl", {"a": 1})


@pytest.mark.parametrize("words", ["", "gold", "question=q", "gold=g", "gold=g,x=y"])
def test_a_map_that_is_none(words: str) -> None:
    with pytest.raises(InvalidInputError, match="map is"):
        read_map(words)
