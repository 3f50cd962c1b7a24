"""Retrieval, reranking and answers: BM25, then the model, with exact scores throughout.

    pip install 'radixflow-sdk[examples]'
    radixflow serve $(python examples/smollm2.py) --served-model-name smollm2 &
    python examples/rag_fanout.py passages.jsonl

The file holds one document a line with its questions: ``{"document": text,
"questions": [{"question": text, "options": [text, ...], "gold": 0}]}``. Every document
is a passage that can be retrieved. For each question:

1. BM25 retrieves a few passages.
2. `rerank` orders them. With ``query_likelihood`` a passage is the shared prefix: it is
   computed once, for every question that retrieves it and for the answers in step 3.
3. The candidate answers are scored after each passage, a group a passage.
4. The answers' probabilities are combined, weighted by the passages' relevance:
   P(answer) = sum over passages of P(passage | question) * P(answer | passage).

Compare the last lines: reading the first passage alone stakes everything on its rank.
"""

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s

from radixflow_sdk import RadixFlowClient, ScoreRequest

RETRIEVED = 5
DATA = Path(__file__).parents[1] / "tests" / "evals" / "data" / "xquad.jsonl"


@dataclass(frozen=True)
class Question:
    """A question, its candidate answers, and the passage that it is about."""

    text: str
    options: list[str]
    gold: int
    passage: int


@dataclass(frozen=True)
class Answered:
    """What one question came to; the first passages are those of each order."""

    retrieved: bool
    first_by_bm25: bool
    first_by_model: bool
    right_alone: bool
    right_combined: bool


def read(file: Path) -> tuple[list[str], list[Question]]:
    """Passages and questions of a file."""
    passages, questions = [], []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        questions += [
            Question(one["question"], one["options"], one["gold"], len(passages))
            for one in row["questions"]
        ]
        passages.append(row["document"])
    return passages, questions


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities in proportion to exp(score)."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


async def answer(
    client: RadixFlowClient, question: Question, found: list[int], passages: list[str]
) -> Answered:
    """Rerank what was retrieved, score the answers after each passage, combine."""
    texts = [passages[place] for place in found]
    ranked = await client.rerank(question.text, texts, mode="query_likelihood")
    # The score is the mean of the query's tokens; a passage's weight needs their sum.
    tokens = len(ranked.groups[0].best.tokens)
    weights = softmax([passage.score * tokens for passage in ranked.passages])
    outcomes = await client.score_all(
        [
            ScoreRequest(passage.text, question.options, question=question.text)
            for passage in ranked.passages
        ],
        errors="raise",
    )
    combined = [0.0] * len(question.options)
    for weight, outcome in zip(weights, outcomes, strict=True):
        for candidate in outcome.unwrap().candidates:
            combined[candidate.index] += weight * candidate.probability
    first = ranked.passages[0].index
    return Answered(
        retrieved=question.passage in found,
        first_by_bm25=found[0] == question.passage,
        first_by_model=found[first] == question.passage,
        right_alone=outcomes[0].unwrap().best.index == question.gold,
        right_combined=combined.index(max(combined)) == question.gold,
    )


async def main() -> None:
    """Answer every question of the file, and count."""
    passages, questions = read(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, show_progress=False), show_progress=False)
    asked = bm25s.tokenize([one.text for one in questions], show_progress=False)
    count = min(RETRIEVED, len(passages))
    found, _ = index.retrieve(asked, k=count, show_progress=False)
    async with RadixFlowClient() as client:
        answers = [
            await answer(client, question, list(map(int, own)), passages)
            for question, own in zip(questions, found, strict=True)
        ]
    print(f"{len(questions)} questions, {len(passages)} passages, {count} retrieved")
    for name in Answered.__dataclass_fields__:
        right = sum(getattr(one, name) for one in answers)
        print(f"{name.replace('_', ' ')}: {right}")


if __name__ == "__main__":
    asyncio.run(main())
