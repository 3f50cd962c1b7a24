"""Generated texts of branches: from a table, or derived from a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The text generated after one branch.

    Attributes:
        text: The text.
        tokens: Number of its words, plus one for its end if it was not cut.
        finish_reason: ``stop``, or ``length`` where it was cut.
    """

    text: str
    tokens: int
    finish_reason: str


class Texts:
    """A table from branches to texts.

    Args:
        table: The generated text of each branch, by its text or token ids.
    """

    def __init__(self, table: Mapping[str | tuple[int, ...], str] | None) -> None:
        self._table = dict(table or {})

    def after(self, branch: str | tuple[int, ...], max_tokens: int) -> Written:
        """The text after a branch, in at most ``max_tokens`` tokens."""
        return self._cut(self._table.get(branch, _made_up(branch)), max_tokens)

    def after_prompt(self, prompt: str | tuple[int, ...], max_tokens: int) -> Written:
        """The same for a whole prompt: the longest branch that it ends with counts."""
        keys = [
            key
            for key in self._table
            if type(key) is type(prompt) and prompt[-len(key) :] == key
        ]
        return self.after(max(keys, key=len, default=prompt), max_tokens)

    def _cut(self, text: str, max_tokens: int) -> Written:
        words = text.split(" ")
        if len(words) < max_tokens:
            return Written(text=text, tokens=len(words) + 1, finish_reason="stop")
        cut = " ".join(words[:max_tokens])
        return Written(text=cut, tokens=max_tokens, finish_reason="length")


def _made_up(branch: str | tuple[int, ...]) -> str:
    digest = hashlib.blake2b(str(branch).encode(), digest_size=3).hexdigest()
    return f" words after {digest}"
