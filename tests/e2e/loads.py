"""What the tests ask about: documents of every size, with options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from examples.reading import make_document
from server_ext.demo import HELD_OUT

# (facts, sentences of filler a fact); a block of the cache (128 tokens) holds about
# twelve sentences.
SIZES = ((1, 0), (1, 2), (2, 2), (4, 2), (6, 1), (8, 2), (16, 3), (24, 6))


@dataclass(frozen=True)
class Load:
    """One question on one document."""

    document: str
    question: str
    options: tuple[str, ...]

    @property
    def branches(self) -> list[str]:
        return [f" {option}" for option in self.options]

    @property
    def text_question(self) -> str:
        return f"\n\nQuestion: {self.question}\nAnswer:"


@cache
def loads(seed: int = 0) -> tuple[Load, ...]:
    """Eight documents of four options: shorter than a block to some blocks long."""
    made = [
        make_document(
            seed=7_000 + 100 * seed + number,
            facts=facts,
            questions=1,
            filler=filler,
            held_out=True,
        )
        for number, (facts, filler) in enumerate(SIZES)
    ]
    return tuple(
        Load(one.text, one.questions[0].question, one.questions[0].options)
        for one in made
    )


@cache
def held_out() -> list[dict[str, Any]]:
    """The demo's own set: documents of some facts, questions, right answers."""
    documents: list[dict[str, Any]] = json.loads(HELD_OUT.read_text("utf-8"))[
        "documents"
    ]
    return documents
