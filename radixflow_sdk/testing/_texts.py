"""What is written after a branch: looked up in a table, or made up, always alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of one branch.

    Attributes:
        text: The text.
        tokens: Its words, and its end where it was reached.
        finish_reason: ``stop``, or ``length`` where it was cut.
    """

    text: str
    tokens: int
    finish_reason: str


class Texts:
    """A table from branches to texts.

    Args:
        table: For each branch, by its text or token ids, what is written after it.
    """

    def __init__(self, table: Mapping[str | tuple[int, ...], str] | None) -> None:
        self._table = dict(table or {})

    def after(self, branch: str | tuple[int, ...], most: int) -> Written:
        """What is written after a branch, in at most ``most`` tokens."""
        return self._cut(self._table.get(branch, _made_up(branch)), most)

    def after_prompt(self, prompt: str | tuple[int, ...], most: int) -> Written:
        """The same for a whole prompt: the longest branch that it ends with counts."""
        keys = [
            key
            for key in self._table
            if type(key) is type(prompt) and prompt[-len(key) :] == key
        ]
        return self.after(max(keys, key=len, default=prompt), most)

    def _cut(self, text: str, most: int) -> Written:
        words = text.split(" ")
        if len(words) < most:
            return Written(text=text, tokens=len(words) + 1, finish_reason="stop")
        cut = " ".join(words[:most])
        return Written(text=cut, tokens=most, finish_reason="length")


def _made_up(branch: str | tuple[int, ...]) -> str:
    digest = hashlib.blake2b(str(branch).encode(), digest_size=3).hexdigest()
    return f" words after {digest}"
