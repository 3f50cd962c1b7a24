"""Where the contexts of an evaluation part: the ends of paragraphs that several share.

Few-shot examples, instructions and documents end at a paragraph break in lm-eval's
prompts. A prefix that two contexts have in common is cut back to its last break, so
that questions which merely begin with the same words share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from radixflow_sdk._requests import MAX_PARTS
from radixflow_sdk._transport._rows import common_length

Tokens = tuple[int, ...]

BREAK = "\n\n"
# At the end of a text many tokenizers join line breaks that they otherwise keep apart.
NEXT = "A"


def shared_paragraphs(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """For each text the ends of the prefixes that it shares with others, ascending.

    Sorted, two texts have in common what every pair of neighbors between them has. So
    the prefixes of a text are the running minima over the neighbors on either side.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    common = [_shared_end(texts[one], texts[other]) for one, other in pairwise(order)]
    ends: list[set[int]] = [set() for _ in texts]
    for places, following in ((order, common), (order[::-1], common[::-1])):
        minima: list[int] = []
        for place, end in zip(places, [*following, 0], strict=False):
            ends[place].update(minima[-MAX_PARTS:])
            while minima and minima[-1] >= end:
                minima.pop()
            minima.append(end)
    return [tuple(sorted(own - {0}))[1 - MAX_PARTS :] for own in ends]


def _shared_end(one: str, other: str) -> int:
    """The end of the last paragraph break in what both begin with; 0 for none."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one.startswith(other[least:middle], least):
            least = middle
        else:
            most = middle - 1
    at = one.rfind(BREAK, 0, least)
    return at + len(BREAK) if at >= 0 else 0


def split_contexts(
    texts: Mapping[Tokens, str], encode: Callable[[str], Iterable[int]]
) -> dict[Tokens, list[Tokens]]:
    """Contexts in parts, at the ends of the paragraphs that they share.

    Args:
        texts: For each context, in tokens, its text.
        encode: Token ids of a text. Called once for each distinct shared prefix, of
            which there are fewer than contexts.
    """
    encoded: dict[str, Tokens] = {}
    parts: dict[Tokens, list[Tokens]] = {}
    shared = shared_paragraphs(list(texts.values()))
    for (context, text), ends in zip(texts.items(), shared, strict=True):
        cuts = {0, len(context)}
        for end in ends:
            prefix = text[:end]
            if prefix not in encoded:
                encoded[prefix] = tuple(encode(prefix + NEXT))[:-1]
            # A token may reach over the break, and a long context lacks its beginning.
            cuts.add(common_length([encoded[prefix], context]))
        places = sorted(cuts)
        parts[context] = [context[start:end] for start, end in pairwise(places)]
    return parts
