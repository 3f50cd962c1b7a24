"""A context that is encoded once and continued by many branches.

Context and branch are encoded jointly, as lm-eval does, but a long context is not
encoded again for each branch.  Only a *window* at its end is, together with the branch,
and the result is joined to the context's tokens at a *seam*: a token that both
encodings have and that begins a word (a piece that the pre-tokenizer cuts and the
model encodes by itself).  From a seam on both encodings see the same text, so they go
on alike.  Inside a word a seam is sound for BPE alone: a sequence of tokens is the
encoding of its text exactly if each two neighbors are the encoding of theirs.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = ["BranchPrompt", "Context", "Tokenizer", "encode"]

WINDOWS = (128, 1024)
"""Characters of a window; the longer ones are tried where a shorter one has no seam."""
ENDING_WORDS = 3


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def __call__(self, text: str, **options: Any) -> Any:
        """Encode `text`."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render chat messages."""


@dataclass(frozen=True, slots=True)
class BranchPrompt:
    """One branch: prompt = ``group.context[:keep] + tail``.

    Attributes:
        keep: tokens taken from the group's context.
        tail: the tokens after them.
        scored_from: index, in the prompt, of the branch's first own token.
        ending: the prompt's last words as tokens, or None where they are not known.
            What a text becomes after the prompt depends on nothing before them.
    """

    keep: int
    tail: tuple[int, ...]
    scored_from: int
    ending: tuple[int, ...] | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return self.keep + len(self.tail)


class _Encoded(NamedTuple):
    """An encoded text.

    Attributes:
        ids: its token ids.
        encoding: the ``tokenizers.Encoding``, asked about single tokens (lists of all
            words or spans cost more than the encoding itself); None where the tokenizer
            gives none.
    """

    ids: tuple[int, ...]
    encoding: Any = None

    def word(self, index: int) -> int | None:
        """Number of the word that a token is part of."""
        word: int | None = self.encoding.token_to_word(index)
        return word

    def starts_word(self, index: int) -> bool:
        return index == 0 or self.word(index) != self.word(index - 1)

    def part(self, start: int, length: int) -> list[tuple[int, bool]]:
        """Token ids from `start` on, and which of them begin a word."""
        some = range(start, min(start + length, len(self.ids)))
        return [(self.ids[index], self.starts_word(index)) for index in some]

    def begin(self, index: int) -> int:
        """First character of a token."""
        return self._span(index)[0]

    def end(self, index: int) -> int:
        """Character behind a token."""
        return self._span(index)[1]

    def _span(self, index: int) -> tuple[int, int]:
        return self.encoding.token_to_chars(index) or (0, 0)


class _Seam(NamedTuple):
    """Where a window's encoding joins the context's.

    Attributes:
        window: the window's text.
        skip: tokens of the window's encoding before the seam.
        position: token position of the seam in the context.
        certain: tokens after the seam, and which of them begin a word. Where a branch
            changes one of them, it may change others before the seam.
    """

    window: str
    skip: int
    position: int
    certain: list[tuple[int, bool]]


class Context:
    """Document + question, encoded once, ready to be continued.

    Args:
        tokenizer: a Hugging Face tokenizer.
        text: the context's text.
        prefix: token ids before the text (a BOS), part of the context.
    """

    def __init__(
        self, tokenizer: Tokenizer, text: str, prefix: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self.text = text.rstrip()
        self.moved = text[len(self.text) :]
        self._prefix = tuple(prefix)
        self._encoded = _encoded(tokenizer, self.text)
        self.ids = (*self._prefix, *self._encoded.ids)
        self._seam = self._find_seam()

    def tokens_before(self, characters: int) -> int:
        """How many tokens lie wholly in the first `characters` of the text."""
        if characters >= len(self.text):
            return len(self.ids)
        encoded = self._encoded
        if encoded.encoding is None:
            shorter = encode(self._tokenizer, self.text[:characters].rstrip())
            return len(self._prefix) + _common(encoded.ids, shorter)
        tokens = range(len(encoded.ids))
        return len(self._prefix) + bisect_right(tokens, characters, key=encoded.end)

    def boundaries(self, characters: Sequence[int]) -> list[int]:
        """Token positions of places in the text, none for a tokenizer without offsets.

        Each of them would be a text to encode there.
        """
        if self._encoded.encoding is None:
            return []
        return [self.tokens_before(place) for place in characters]

    def continued_by(self, branch: str) -> BranchPrompt:
        """Encode context + `branch` jointly.

        Args:
            branch: text that follows the context.

        Returns:
            The branch's prompt.  Where the joint encoding changes tokens of the
            context itself, `BranchPrompt.keep` is smaller than the context.
        """
        seam = self._seam
        if seam is not None:
            joint = _encoded(self._tokenizer, seam.window + self.moved + branch)
            if joint.part(seam.skip, len(seam.certain)) == seam.certain:
                tail = joint.ids[seam.skip :]
                return self._prompt(seam.position, tail, _ending(joint, seam.skip))
        joint = _encoded(self._tokenizer, self.text + self.moved + branch)
        return self._prompt(0, (*self._prefix, *joint.ids), _ending(joint, 0))

    def _prompt(
        self, position: int, tail: tuple[int, ...], ending: tuple[int, ...] | None
    ) -> BranchPrompt:
        agree = _common(self.ids[position:], tail)
        return BranchPrompt(position + agree, tail[agree:], len(self.ids), ending)

    def _find_seam(self) -> _Seam | None:
        whole = self._encoded
        for characters in WINDOWS:
            if len(self.text) <= characters or whole.encoding is None:
                return None
            text = self.text[-characters:]
            window = _encoded(self._tokenizer, text)
            common = _common(whole.ids[::-1][: len(window.ids)], window.ids[::-1])
            at, skip = len(whole.ids) - common, len(window.ids) - common
            for step in range(common // 2):
                if whole.starts_word(at + step) and window.starts_word(skip + step):
                    break
            else:
                step = 0
                if common < 2 or not self._is_sound_inside_words(at):
                    continue
            certain = window.part(skip + step, (common - step) // 2)
            return _Seam(text, skip + step, len(self._prefix) + at + step, certain)
        return None

    def _is_sound_inside_words(self, token: int) -> bool:
        """Whether BPE alone decides how the word of `token` is encoded.

        The window must also end that word where the whole text does.  Pre-tokenizers
        cut by kinds of characters, so it does where the word has one kind alone.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or type(backend.model).__name__ != "BPE":
            return False
        if backend.pre_tokenizer is None:
            return True
        whole = self._encoded
        word = whole.word(token)
        if word is None:
            return False
        first, last = whole.encoding.word_to_tokens(word)
        begin = whole.begin(first) + 1  # a blank or a mark may come before the rest
        signs = set(self.text[begin : whole.end(last - 1)])
        return len({_kind(sign) for sign in signs}) == 1


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`, without special tokens."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _encoded(tokenizer: Tokenizer, text: str) -> _Encoded:
    has_backend = hasattr(tokenizer, "backend_tokenizer")
    if not (text and has_backend and getattr(tokenizer, "is_fast", False)):
        return _Encoded(tuple(encode(tokenizer, text)))
    encoded = tokenizer(text, add_special_tokens=False, return_attention_mask=False)
    return _Encoded(tuple(encoded["input_ids"]), encoded.encodings[0])


def _ending(encoded: _Encoded, seam: int) -> tuple[int, ...] | None:
    """The last words, where as many begin behind the seam."""
    if encoded.encoding is None:
        return None
    left = ENDING_WORDS
    for index in range(len(encoded.ids) - 1, seam, -1):
        left -= encoded.starts_word(index)
        if not left:
            return encoded.ids[index:]
    return None


def _kind(sign: str) -> str:
    category = unicodedata.category(sign)
    return "letter" if category in ("Lo", "Lm", "Mn", "Mc", "Me") else category


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
