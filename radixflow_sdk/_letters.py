"""Options listed behind letters, in every rotation, and the mean over the rotations.

The model sees all options at once and answers with a letter. It also prefers some
letters and positions, whatever the option. So each option is listed once at each
position, and its probability is the mean over the rotations
(Zheng et al., "Large Language Models Are Not Robust Multiple Choice Selectors", arXiv
2309.03882, cyclic permutation). With p_k the softmax over the letters in order k:

    P(option) = mean over orders k of p_k(letter of the option in order k)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_uppercase

from radixflow_sdk import _scoring
from radixflow_sdk._prompt import Template
from radixflow_sdk._results import LetterChoice, LetterResult, ScoreResult
from radixflow_sdk._validate import refuse
from radixflow_sdk.exceptions import InvalidInputError

Order = tuple[int, ...]


def read_orders(options: Sequence[str], *, rotate: bool) -> tuple[Order, ...]:
    """The orders in which the options are listed: as given, and rotated.

    Raises:
        InvalidInputError: There are not 2 to 26 texts, each once.
    """
    given: object = options
    texts = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    good = all(isinstance(text, str) and text for text in texts)
    if not good or not 2 <= len(texts) <= len(ascii_uppercase):
        raise refuse("options", options, "give a list of 2 to 26 texts")
    if len(set(options)) < len(options):
        raise InvalidInputError(
            "options has an option twice; give each once, since each gets its letter.",
            field="options",
            value=options,
        )
    count = len(options)
    starts = range(count if rotate else 1)
    return tuple(
        tuple((start + place) % count for place in range(count)) for start in starts
    )


def listing(options: Sequence[str], order: Order) -> str:
    r"""``"\nA. Oslo\nB. Rome\nAnswer:"``."""
    lines = (
        f"\n{letter}. {options[index]}"
        for letter, index in zip(ascii_uppercase, order, strict=False)
    )
    return f"{''.join(lines)}\nAnswer:"


def template(count: int) -> Template:
    """The template of listings: the question's text, and the letters as labels."""
    return Template(
        after_question="",
        before_option="",
        labels=tuple(f" {letter}" for letter in ascii_uppercase[:count]),
    )


def choose(
    options: Sequence[str], orders: Sequence[Order], group: ScoreResult
) -> LetterResult:
    """The probabilities of the options, from a scored group of listings."""
    by_order = sorted(group.candidates, key=lambda candidate: candidate.index)
    shares_of: list[list[float]] = [[] for _ in options]
    masses: list[float] = []
    for order, candidate in zip(orders, by_order, strict=True):
        labels = candidate.labels or ()
        shares = _scoring.softmax([label.logprob for label in labels])
        masses.append(_scoring.label_mass(labels))
        for index, share in zip(order, shares, strict=True):
            shares_of[index].append(share)
    means = [math.fsum(shares) / len(shares) for shares in shares_of]
    best_first = sorted(range(len(options)), key=lambda index: -means[index])
    return LetterResult(
        choices=tuple(
            LetterChoice(
                index=index,
                text=options[index],
                probability=means[index],
                by_order=tuple(shares_of[index]),
                tied=means.count(means[index]) > 1,
            )
            for index in best_first
        ),
        label_mass=math.fsum(masses) / len(masses),
        group=group,
    )
