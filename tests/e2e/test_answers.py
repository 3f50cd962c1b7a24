"""The right answers: what shows a wrong boundary, a wrong row or a wrong cache."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.loads import held_out
from tests.e2e.served import Answer, Served

pytestmark = pytest.mark.server

# What the bundled checkpoint must reach at least, by facts in the document.
LIKELIHOOD = {8: 0.95, 16: 0.90}
LABEL = 0.85


def questions(facts: int) -> Iterable[tuple[str, dict[str, Any]]]:
    for document in held_out():
        if document["facts"] == facts:
            for question in document["questions"]:
                yield document["document"], question


def right(answer: list[float], question: dict[str, Any]) -> bool:
    return answer.index(max(answer)) == question["gold"]


def by_likelihood(server: Served, document: str, question: dict[str, Any]) -> bool:
    answer = server.group(
        document,
        [f" {option}" for option in question["options"]],
        question=f"\n\nQuestion: {question['question']}\nAnswer:",
    )
    return right(answer.sums, question)


def by_label(server: Served, document: str, question: dict[str, Any]) -> bool:
    answer: Answer = server.group(
        document,
        [f"\nCandidate: {option}\nCorrect:" for option in question["options"]],
        question=f"\n\nQuestion: {question['question']}",
        scoring="label",
        labels=[" yes"],
    )
    return right([label for [label] in answer.labels], question)


def accuracy(ask: Any, server: Served, facts: int) -> float:
    with ThreadPoolExecutor(8) as pool:
        marks = list(pool.map(lambda asked: ask(server, *asked), questions(facts)))
    return sum(marks) / len(marks)


@pytest.mark.parametrize("facts", LIKELIHOOD)
def test_by_likelihood(server: Served, facts: int) -> None:
    assert accuracy(by_likelihood, server, facts) >= LIKELIHOOD[facts]


def test_by_label(server: Served) -> None:
    assert accuracy(by_label, server, 8) >= LABEL
