"""Seven loads whose prompts form trees, and the least that a cache leaves to compute.

A load is a list of groups; the prompts of a load share prefixes at several levels
(system prompt, few-shot examples, document, question). The texts are those of the
bundled held-out documents, sentence by sentence in a seeded order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from server_ext.demo import CHECKPOINT, HELD_OUT

__all__ = ["LOADS", "Group", "Texts", "chats", "encode", "limit16", "make_load"]

SEED = 7
UNIT = 16
"""Tokens of a block in `limit16`: the finest hit that full attention can have."""


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Token ids of a text, without special tokens."""
    return list(_tokenizer().encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class Group:
    """One question with its options.

    Attributes:
        parts: the document; prompts of other groups may part after each piece.
        question: text between the document and each option.
        options: the branches.
    """

    parts: tuple[str, ...]
    question: str
    options: tuple[str, ...]

    @property
    def context(self) -> str:
        """What all branches have in common."""
        return "".join(self.parts) + self.question

    @property
    def prompts(self) -> list[str]:
        """One prompt for each option."""
        return [self.context + option for option in self.options]


class Texts:
    """Seeded passages and questions.

    Args:
        seed: the same seed gives the same texts on every machine.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        documents = json.loads(HELD_OUT.read_text(encoding="utf-8"))["documents"]
        self._sentences = [
            f"{sentence.removesuffix('.')}."
            for document in documents
            for sentence in document["document"].split(". ")
        ]
        self._questions = [
            (asked["question"], tuple(asked["options"]))
            for document in documents
            for asked in document["questions"]
        ]

    def passage(self, tokens: int) -> str:
        """Text of exactly `tokens` tokens."""
        # A sentence has at least four tokens.
        sentences = self.random.choices(self._sentences, k=tokens // 4 + 1)
        return str(_tokenizer().decode(encode(" ".join(sentences))[:tokens]))

    def question(self) -> tuple[str, tuple[str, ...]]:
        """A question as the demo model reads it, and its options."""
        question, options = self.random.choice(self._questions)
        return f"\nQuestion: {question}\nAnswer:", tuple(f" {one}" for one in options)

    def shots(self, count: int) -> str:
        """A header of answered examples."""
        examples = []
        for _ in range(count):
            passage, (question, options) = self.passage(150), self.question()
            examples.append(passage + question + options[0])
        return "\n\n".join(examples) + "\n\n"


# --- the loads ------------------------------------------------------------------------

Count = Callable[[int], int]
"""Scales the number of documents, questions or turns of a load."""


def _documents(texts: Texts, count: Count) -> Iterator[Group]:
    for _ in range(count(6)):
        document = texts.passage(1500)
        for _ in range(4):
            yield Group((document,), *texts.question())


def _few_shot(texts: Texts, count: Count) -> Iterator[Group]:
    header = texts.shots(5)
    for _ in range(count(40)):
        passage, (question, options) = texts.passage(60), texts.question()
        yield Group((header, passage + question), "", options)


def _few_shot_header(texts: Texts, count: Count) -> Iterator[Group]:
    for group in _few_shot(texts, count):
        header, question = group.parts
        yield Group((header,), question, group.options)


def _system_prompt(texts: Texts, count: Count) -> Iterator[Group]:
    system = texts.passage(200) + "\n"
    for _ in range(count(20)):
        yield Group((system, texts.passage(300)), *texts.question())


def _rerank(texts: Texts, count: Count) -> Iterator[Group]:
    for _ in range(count(6)):
        passages = tuple(" " + texts.passage(200) for _ in range(count(20)))
        yield Group((texts.passage(80),), "", passages)


def _sessions(texts: Texts, count: Count) -> Iterator[Group]:
    for _ in range(count(4)):
        turns: tuple[str, ...] = (texts.passage(200),)
        for _ in range(count(5)):
            yield Group(turns, *texts.question())
            turns = (*turns, " " + texts.passage(150))


def _tree(texts: Texts, count: Count) -> Iterator[Group]:
    for _ in range(count(4)):
        document = texts.passage(600)
        for _ in range(3):
            base = " " + texts.passage(120)
            for _ in range(3):
                yield Group((document, base), *texts.question())


LOADS: dict[str, tuple[str, Callable[[Texts, Count], Iterator[Group]]]] = {
    "w1": ("long documents, four questions each", _documents),
    "w2": ("five-shot, context as document", _few_shot),
    "w2b": ("five-shot, header as document", _few_shot_header),
    "w3": ("system prompt, passage, question", _system_prompt),
    "w4": ("rerank: a query, passages as options", _rerank),
    "w5": ("sessions that grow", _sessions),
    "w6": ("document, base, question, options", _tree),
}


def make_load(name: str, *, share: float = 1.0, seed: int = SEED) -> list[Group]:
    """The groups of a load, in the order in which they are sent.

    Args:
        name: a key of `LOADS`.
        share: of the load's size; at least two of everything stay.
        seed: of its texts.
    """
    _, load = LOADS[name]
    return list(load(Texts(seed), lambda full: max(2, round(full * share))))


def chats(*, sessions: int = 6, turns: int = 4, seed: int = SEED) -> list[list[str]]:
    """Chats under one system prompt, each sent once a turn.

    Returns:
        For each request its messages: system, user, assistant, user, ...
    """
    texts = Texts(seed)
    system, made = texts.passage(200), []
    for _ in range(sessions):
        messages = [system]
        for _ in range(turns):
            question, options = texts.question()
            asked = question.removeprefix("\n").removesuffix("\nAnswer:")
            messages = [*messages, f"{texts.passage(100)}\n{asked}"]
            made.append(messages)
            messages = [*messages, options[0].strip()]
    return made


# --- the limit ------------------------------------------------------------------------


def limit16(prompts: Iterable[Sequence[int]]) -> int:
    """Tokens that full attention with 16-token blocks computes for these prompts.

    Args:
        prompts: token ids, in the order in which they are sent. A prompt's last token
            is always computed.
    """
    seen: set[int] = set()
    computed = 0
    for prompt in prompts:
        keys, key = [], 0
        for end in range(UNIT, len(prompt) + 1, UNIT):
            key = hash((key, tuple(prompt[end - UNIT : end])))
            keys.append(key)
        hits = 0
        for key in keys[: (len(prompt) - 1) // UNIT]:
            if key not in seen:
                break
            hits += 1
        seen.update(keys)
        computed += len(prompt) - hits * UNIT
    return computed
