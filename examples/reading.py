"""Seeded reading comprehension: documents of facts, questions with four options.

Writes the texts that the bundled demo checkpoint is trained and measured on, with the
standard library alone. The same arguments give the same text on every machine.

What "held out" means. A fact is a triple of entity, relation and value ("Clara", where
she lives, "Port Alma"). A checksum of the triple puts it into one of five classes.
Training documents state facts of four classes only and held-out documents state facts
of the fifth only, so no fact of a held-out document was ever stated in a training
document: its answer can be read from the text and cannot be remembered from the
weights. The two kinds also draw from random streams that never meet, whatever their
seeds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "MOST_FACTS",
    "OPTIONS",
    "ReadingDocument",
    "ReadingQuestion",
    "held_out_set",
    "label_prompt",
    "likelihood_prompt",
    "make_document",
    "sample_text",
]

OPTIONS: Final = 4
MOST_FACTS: Final = 60
_CROWDED: Final = 8
_LIKELIHOOD_LINES: Final = 0.5
# The bundled held_out.json: seed, facts, questions of each document.
_FIXED_SET: Final = (
    *((1_000_000 + i, 3, 3) for i in range(4)),
    *((1_000_100 + i, 4, 3) for i in range(4)),
    *((1_000_200 + i, 8, 4) for i in range(7)),
    *((1_000_300 + i, 16, 4) for i in range(7)),
    *((1_000_400 + i, 40, 4) for i in range(2)),
)
_CLASSES: Final = 5
_HELD_OUT_CLASS: Final = 0

Kind = Literal["person", "thing", "town"]


@dataclass(frozen=True, slots=True)
class ReadingQuestion:
    """One question, its options in a shuffled order and the index of the right one."""

    question: str
    options: tuple[str, ...]
    gold: int


@dataclass(frozen=True, slots=True)
class ReadingDocument:
    """One text and the questions that it answers, each about another fact."""

    text: str
    questions: tuple[ReadingQuestion, ...]


@dataclass(frozen=True, slots=True)
class _Relation:
    name: str
    kind: Kind
    values: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fact:
    entity: str
    relation: _Relation
    value: str


def _pairs(first: Iterable[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{a} {b}" for a in first for b in second)


_PEOPLE: Final = (
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene",
    "Jonas", "Karen", "Louis", "Maria", "Nadia", "Oscar", "Paula", "Quinn", "Rosa",
    "Simon", "Tessa", "Victor", "Wanda", "Yusuf", "Zelda", "Amir", "Bella", "Carlos",
    "Daria", "Emil", "Fatima", "George", "Hana", "Ivan", "Julia", "Kenji", "Laura",
    "Marco", "Nora", "Omar", "Petra",
)  # fmt: skip
_THINGS: Final = (
    "lamp", "clock", "ladder", "kettle", "basket", "mirror", "trunk", "anchor",
    "violin", "compass", "barrel", "carpet", "wagon", "statue", "lantern", "bell",
    "chair", "map", "globe", "bicycle", "kite", "drum", "sledge", "rope", "vase",
    "tent", "canoe", "bench",
)  # fmt: skip
_TOWNS: Final = (
    *_pairs(("Port", "Lake"), ("Alma", "Benton", "Cedar", "Dover", "Elgin", "Foster")),
    "Ashford", "Brimley", "Calder", "Dunmore", "Eastley", "Fenwick", "Granby",
    "Holloway", "Kelso", "Lowell", "Marston", "Norwood",
)  # fmt: skip
_COLOURS: Final = (
    *_pairs(
        ("dark", "pale", "bright"), ("green", "blue", "red", "brown", "yellow", "grey")
    ),
    "black", "white", "orange", "purple", "silver", "pink",
)  # fmt: skip
_DATES: Final = _pairs(
    ("early", "late"),
    (
        "January", "February", "March", "April", "May", "June", "July", "August",
        "September", "October", "November", "December",
    ),
)  # fmt: skip
_PETS: Final = _pairs(
    ("small", "spotted"),
    ("cats", "dogs", "parrots", "rabbits", "ponies", "goats", "sheep", "geese"),
)
_DRINKS: Final = (
    *_pairs(("mint", "lemon", "ginger"), ("tea", "water", "juice", "syrup")),
    "milk", "cider", "coffee", "cocoa",
)  # fmt: skip
_PLACES: Final = _pairs(
    ("upstairs", "downstairs", "outside"),
    ("left", "right", "north", "south", "east", "west"),
)
_GOODS: Final = (
    *_pairs(("wool", "silk"), ("hats", "coats", "gloves", "carpets")),
    *_pairs(("apple", "plum"), ("pies", "jam", "wine", "cakes")),
    "honey", "cheese", "bread", "pottery", "glass", "salt", "knives", "roses",
)  # fmt: skip

# One word stands between an entity and its value, and the entity stands at the end of
# its question: a short convolution then sees both, and recall is what is left to learn.
_RELATIONS: Final = (
    _Relation(
        "home",
        "person",
        _TOWNS,
        ("{e} left {v}.", "{e} loves {v}.", "The home of {e} is {v}."),
        ("What is the home of {e}?", "Which town is home to {e}?"),
    ),
    _Relation(
        "taste",
        "person",
        _COLOURS,
        ("{e} likes {v}.", "{e} wears {v}.", "The favourite colour of {e} is {v}."),
        ("What is the favourite colour of {e}?", "Which colour suits {e}?"),
    ),
    _Relation(
        "arrival",
        "person",
        _DATES,
        ("{e} arrives {v}.", "The arrival of {e} is {v}."),
        ("When is the arrival of {e}?", "When will they meet {e}?"),
    ),
    _Relation(
        "pets",
        "person",
        _PETS,
        ("{e} keeps {v}.", "{e} owns {v}."),
        ("Which animals belong to {e}?", "What are the pets of {e}?"),
    ),
    _Relation(
        "drink",
        "person",
        _DRINKS,
        ("{e} drinks {v} at breakfast.", "{e} orders {v}.", "The drink of {e} is {v}."),
        ("What is the drink of {e}?", "Which drink pleases {e}?"),
    ),
    _Relation(
        "place",
        "thing",
        _PLACES,
        ("The {e} stands {v}.", "The place of the {e} is {v}."),
        ("Where is the {e}?", "Where can you find the {e}?"),
    ),
    _Relation(
        "paint",
        "thing",
        _COLOURS,
        ("The {e} looks {v}.", "The colour of the {e} is {v}."),
        ("What is the colour of the {e}?", "How did they paint the {e}?"),
    ),
    _Relation(
        "owner",
        "thing",
        _PEOPLE,
        ("The owner of the {e} is {v}.", "The {e} serves {v}."),
        ("Who owns the {e}?", "Who is the owner of the {e}?"),
    ),
    _Relation(
        "fair",
        "town",
        _DATES,
        ("The fair of {e} is {v}.", "{e} celebrates {v}."),
        ("When is the fair of {e}?", "When do people visit {e}?"),
    ),
    _Relation(
        "goods",
        "town",
        _GOODS,
        ("{e} sells {v}.", "People in {e} make {v}."),
        ("What can you buy in {e}?", "Which goods come from {e}?"),
    ),
    _Relation(
        "mayor",
        "town",
        _PEOPLE,
        ("The mayor of {e} is {v}.", "{e} elected {v}."),
        ("Who is the mayor of {e}?", "Who leads {e}?"),
    ),
)
_ENTITIES: Final[dict[Kind, tuple[str, ...]]] = {
    "person": _PEOPLE,
    "thing": _THINGS,
    "town": tuple(town for town in _TOWNS if " " not in town),
}

_FILLER_OPENINGS: Final = (
    "In the evening", "At noon", "After the rain", "On most days", "Before sunrise",
    "During the week", "Once in a while", "Not long ago", "As usual", "In those years",
)  # fmt: skip
_FILLER_SUBJECTS: Final = (
    "the streets", "the children", "a few visitors", "the old trees", "the neighbours",
    "some birds", "the boats", "the shops", "two travellers", "the clouds",
)  # fmt: skip
_FILLER_ENDINGS: Final = (
    "were quiet for an hour", "moved slowly along the shore",
    "could be seen from the hill", "stayed close to the bridge", "waited near the gate",
    "seemed ready for winter", "came back without a sound", "stood still in the wind",
    "made everybody smile", "went on as before",
)  # fmt: skip


def likelihood_prompt(document: str, question: str) -> str:
    """The context whose continuation `" " + option` is scored."""
    return f"{document}\n\nQuestion: {question}\nAnswer:"


def label_prompt(document: str, question: str, option: str) -> str:
    """The prompt of one option; its score is the log-probability of `" yes"`."""
    return f"{document}\n\nQuestion: {question}\nCandidate: {option}\nCorrect:"


def make_document(
    *,
    seed: int,
    facts: int,
    questions: int,
    filler: float = 1.0,
    relations: int | None = None,
    held_out: bool = False,
) -> ReadingDocument:
    """Write one document of `facts` facts and ask `questions` of them.

    `filler` is the number of sentences that state nothing, per fact. `relations`
    limits how many kinds of fact the document states: the fewer, the more its facts are
    told apart by their entities alone. `held_out` chooses between the two disjoint sets
    of facts that the module docstring describes.
    """
    if facts < 1:
        raise ValueError(f"a document needs at least one fact, not {facts}")
    if facts > MOST_FACTS:
        raise ValueError(
            f"a document has at most {MOST_FACTS} facts, each about somebody or "
            f"something else, not {facts}: lengthen it with filler"
        )
    if not 0 <= questions <= facts:
        raise ValueError(
            f"{questions} questions cannot each ask for another of {facts} facts"
        )
    if filler < 0:
        raise ValueError(f"filler cannot be negative: {filler}")
    rng = random.Random(
        f"radixflow reading {'held out' if held_out else 'training'} {seed}"
    )
    told = _RELATIONS if relations is None else rng.sample(_RELATIONS, relations)
    stated = _draw_facts(rng, facts, told, held_out)
    sentences = [_state(rng, fact) for fact in stated]
    for _ in range(round(filler * facts)):
        sentences.insert(rng.randrange(len(sentences) + 1), _filler(rng))
    asked = rng.sample(stated, questions)
    return ReadingDocument(
        text=" ".join(sentences),
        questions=tuple(_ask(rng, fact, stated) for fact in asked),
    )


def held_out_set() -> dict[str, object]:
    """The fixed set that `held_out.json` holds, as a value that `json` can write."""
    documents = []
    for seed, facts, questions in _FIXED_SET:
        made = make_document(seed=seed, facts=facts, questions=questions, held_out=True)
        asked = [
            {"question": q.question, "options": list(q.options), "gold": q.gold}
            for q in made.questions
        ]
        documents.append({"document": made.text, "facts": facts, "questions": asked})
    return {"documents": documents}


def sample_text(*, seed: int, lines: int) -> Iterable[str]:
    """Text that uses every name, value and phrase, for a tokenizer to be trained on."""
    rng = random.Random(f"radixflow reading tokenizer {seed}")
    for _ in range(lines):
        relation = rng.choice(_RELATIONS)
        entity = rng.choice(_ENTITIES[relation.kind])
        value = rng.choice(relation.values)
        question = rng.choice(relation.questions).format(e=entity)
        statement = _state(rng, _Fact(entity, relation, value))
        context = f"{statement} {_filler(rng)}"
        if rng.random() < _LIKELIHOOD_LINES:
            yield f"{likelihood_prompt(context, question)} {value}\n\n"
        else:
            label = rng.choice(("yes", "no"))
            yield f"{label_prompt(context, question, value)} {label}\n\n"


def _draw_facts(
    rng: random.Random, count: int, told: Sequence[_Relation], held_out: bool
) -> list[_Fact]:
    facts: list[_Fact] = []
    taken: set[str] = set()
    while len(facts) < count:
        relation = rng.choice(told)
        entity = rng.choice(_ENTITIES[relation.kind])
        if entity in taken:
            # A document that runs out of entities of one kind turns to the others.
            told = [*told, *_RELATIONS] if len(taken) > _CROWDED else told
            continue
        values = [
            value
            for value in relation.values
            if value != entity
            and _is_held_out(entity, relation.name, value) == held_out
        ]
        if values:
            taken.add(entity)
            facts.append(_Fact(entity, relation, rng.choice(values)))
    return facts


def _is_held_out(entity: str, relation: str, value: str) -> bool:
    checksum = zlib.crc32(f"{entity}|{relation}|{value}".encode())
    return checksum % _CLASSES == _HELD_OUT_CLASS


def _state(rng: random.Random, fact: _Fact) -> str:
    return rng.choice(fact.relation.statements).format(e=fact.entity, v=fact.value)


def _filler(rng: random.Random) -> str:
    opening, subject, ending = map(
        rng.choice, (_FILLER_OPENINGS, _FILLER_SUBJECTS, _FILLER_ENDINGS)
    )
    return f"{opening} {subject} {ending}."


def _ask(rng: random.Random, fact: _Fact, stated: Sequence[_Fact]) -> ReadingQuestion:
    pool = fact.relation.values
    elsewhere = sorted({f.value for f in stated if f.value in pool} - {fact.value})
    rng.shuffle(elsewhere)
    first_word = fact.value.split()[0]
    alike = [v for v in pool if v.split()[0] == first_word and v != fact.value]
    rng.shuffle(alike)
    rest = [v for v in pool if v != fact.value]
    rng.shuffle(rest)
    ranked = dict.fromkeys([*elsewhere[:2], *alike[:1], *rest])
    options = [fact.value, *list(ranked)[: OPTIONS - 1]]
    rng.shuffle(options)
    return ReadingQuestion(
        question=rng.choice(fact.relation.questions).format(e=fact.entity),
        options=tuple(options),
        gold=options.index(fact.value),
    )
