"""The token boundary: from texts to each branch's prompt, the document encoded once.

The rule is that of lm-eval's ``_encode_pair`` (0.4.13): blanks at the end of the
context move into the branch, context + branch is encoded jointly, and the branch's
tokens are what follows the context's own token count.  Encoding jointly without
encoding a long document again for every branch rests on a *seam*: a word boundary
near the end of the context at which the tokenizer, asked once, gives the same tokens
for the part after it alone.  Where no seam holds, the whole is encoded.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from server_ext.api.protocol import (
    MAX_BOUNDARIES,
    BranchesRequest,
    RequestRefused,
    context_too_long,
    shortened,
)

__all__ = ["BranchPrompt", "Context", "GroupPrompts", "Tokenizer", "group_prompts"]

SEAM_CHARACTERS = 64
"""A seam lies at least this many characters before the end of the context."""
SEAM_TRIES = 8
MARKUP_CHARACTERS = 1000
"""Most that a chat template is expected to write between two messages."""


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
    """

    keep: int
    tail: tuple[int, ...]
    scored_from: int

    def __len__(self) -> int:
        return self.keep + len(self.tail)


@dataclass(frozen=True, slots=True)
class GroupPrompts:
    """All prompts of a group.

    Attributes:
        context: tokens of document + question.
        document_tokens: how many of them are the document's.
        shared_tokens: tokens of the prefix that all branches have in common.
        boundaries: ascending prefix lengths at which prompts are expected to part:
            those of the document, its end, and `shared_tokens`.
        branches: in the order of the request.
        labels: token ids of the labels, in the order of the request.
    """

    context: tuple[int, ...]
    document_tokens: int
    shared_tokens: int
    boundaries: tuple[int, ...]
    branches: tuple[BranchPrompt, ...]
    labels: tuple[int, ...] = ()

    def prompt(self, index: int) -> list[int]:
        """Prompt tokens of one branch."""
        branch = self.branches[index]
        return [*self.context[: branch.keep], *branch.tail]


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
        encoded, self._spans = _encode_with_spans(tokenizer, self.text)
        self.ids = (*self._prefix, *encoded)
        self._seam = self._find_seam(encoded)

    def tokens_before(self, characters: int) -> int:
        """How many tokens lie wholly in the first `characters` of the text."""
        if characters >= len(self.text):
            return len(self.ids)
        if self._spans is None:
            shorter = _encode(self._tokenizer, self.text[:characters].rstrip())
            return len(self._prefix) + _common(self.ids[len(self._prefix) :], shorter)
        whole = bisect_right(self._spans, characters, key=lambda span: span[1])
        return len(self._prefix) + whole

    def boundaries(self, characters: Sequence[int]) -> list[int]:
        """Token positions of places in the text, none for a tokenizer without offsets.

        Each of them would be a text to encode there.
        """
        return [] if self._spans is None else [*map(self.tokens_before, characters)]

    def continued_by(self, branch: str) -> BranchPrompt:
        """Encode context + `branch` jointly.

        Args:
            branch: text that follows the context.

        Returns:
            The branch's prompt.  Where the joint encoding changes tokens of the
            context itself, `BranchPrompt.keep` is smaller than the context.
        """
        if self._seam is None:
            kept, tail = 0, self._whole(branch)
        else:
            token, character = self._seam
            kept = len(self._prefix) + token
            rest = self.text[character:] + self.moved + branch
            tail = tuple(_encode(self._tokenizer, rest))
        agree = _common(self.ids[kept:], tail)
        return BranchPrompt(kept + agree, tail[agree:], len(self.ids))

    def _whole(self, branch: str) -> tuple[int, ...]:
        text = self.text + self.moved + branch
        return (*self._prefix, *_encode(self._tokenizer, text))

    def _find_seam(self, encoded: Sequence[int]) -> tuple[int, int] | None:
        """(token, character) where the rest encodes alone as it does in the whole."""
        last = len(self.text) - SEAM_CHARACTERS
        tries = 0
        for token in range(len(encoded) - 1, 0, -1):
            start = self._spans[token][0] if self._spans else 0
            if start > last:
                continue
            if tries >= SEAM_TRIES:
                break
            for character in _word_starts(self.text, start):
                tries += 1
                rest = _encode(self._tokenizer, self.text[character:])
                if rest == list(encoded[token:]):
                    return token, character
        return None


def group_prompts(
    request: BranchesRequest,
    tokenizer: Tokenizer,
    *,
    vocabulary: int,
    limit: int,
) -> GroupPrompts:
    """Every prompt of a request, checked against the model.

    Args:
        request: a well-formed request.
        tokenizer: the model's tokenizer.
        vocabulary: number of token ids the model knows.
        limit: most tokens a prompt may have (the model's length less one generated).

    Raises:
        RequestRefused: a token id beyond the vocabulary, a branch without a token of
            its own, a label that is not one token, or a prompt over the limit.
    """
    _check_ids(request, vocabulary)
    document = request.document
    question = request.question or ""
    if document.token_ids is not None:
        context = [*document.token_ids, *_encode(tokenizer, question)]
        follow = _apart(tuple(context), tokenizer)
        ids, document_tokens = tuple(context), len(document.token_ids)
        inner = document.boundaries or []
    else:
        joint, ends = _joint_context(request, tokenizer)
        follow, ids = joint.continued_by, joint.ids
        inner = joint.boundaries(ends)
        text_end = len(joint.text) if document.text is None else len(document.text)
        document_tokens = joint.tokens_before(text_end)
    branches = tuple(
        follow(branch.text)
        if branch.text is not None
        else BranchPrompt(len(ids), tuple(branch.token_ids or ()), len(ids))
        for branch in request.branches
    )
    for index, branch in enumerate(branches):
        _check_branch(index, branch, limit)
    shared = min(branch.keep for branch in branches)
    inside = {at for at in (*inner, document_tokens) if 0 < at < shared}
    return GroupPrompts(
        context=ids,
        document_tokens=document_tokens,
        shared_tokens=shared,
        boundaries=(*sorted(inside), shared) if shared else (),
        branches=branches,
        labels=_label_ids(request, tokenizer, follow, branches),
    )


def _joint_context(
    request: BranchesRequest, tokenizer: Tokenizer
) -> tuple[Context, Sequence[int]]:
    """Document and question, and where in their text other groups are to part."""
    document = request.document
    if document.messages is not None:
        messages = [message.model_dump() for message in document.messages]
        try:
            rendered = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            raise RequestRefused(
                422,
                "invalid_request",
                "document.messages: the model's chat template refused them: "
                f"{str(error)[:200]}",
                "document.messages",
            ) from error
        # The template speaks for itself: it writes the BOS where the model wants one.
        ends = message_ends(rendered, [turn.content for turn in document.messages])
        return Context(tokenizer, rendered), ends
    text = (document.text or "") + (request.question or "")
    return Context(tokenizer, text, _bos(tokenizer, text)), document.boundaries or ()


def message_ends(rendered: str, contents: Sequence[str]) -> list[int]:
    """Where each message but the last ends: the next one's content begins there.

    Found in one pass. A content that the template changed or left out has no end.

    Args:
        rendered: what the chat template made of the messages.
        contents: their contents.

    Returns:
        Ascending characters of `rendered`, at most `MAX_BOUNDARIES` of them: the first,
        which ends a system prompt, and the last ones.
    """
    ends: list[int] = []
    end = 0
    for content in map(str.strip, contents):
        at = rendered.find(content, end, end + MARKUP_CHARACTERS + len(content))
        if not content or at < 0:
            continue
        if end:
            ends.append(at)
        end = at + len(content)
    return [*ends[:1], *ends[1:][1 - MAX_BOUNDARIES :]]


def _bos(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The BOS that the tokenizer puts before a text, unless the text brings it."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None or text.startswith(getattr(tokenizer, "bos_token", None) or "\0"):
        return ()
    probe = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    return (bos,) if probe[:1] == [bos] else ()


def _apart(
    context: tuple[int, ...], tokenizer: Tokenizer
) -> Callable[[str], BranchPrompt]:
    def follow(branch: str) -> BranchPrompt:
        tail = tuple(_encode(tokenizer, branch))
        return BranchPrompt(len(context), tail, len(context))

    return follow


def _label_ids(
    request: BranchesRequest,
    tokenizer: Tokenizer,
    follow: Callable[[str], BranchPrompt],
    branches: Sequence[BranchPrompt],
) -> tuple[int, ...]:
    """Token id of each label, the same after every branch or refused."""
    return tuple(
        label
        if isinstance(label, int)
        else _label_id(number, label, request, tokenizer, follow, branches)
        for number, label in enumerate(request.labels or ())
    )


def _label_id(
    number: int,
    label: str,
    request: BranchesRequest,
    tokenizer: Tokenizer,
    follow: Callable[[str], BranchPrompt],
    branches: Sequence[BranchPrompt],
) -> int:
    found: set[int] = set()
    for branch, prompt in zip(request.branches, branches, strict=True):
        if branch.text is None:
            after = tuple(_encode(tokenizer, label))
        else:
            longer = follow(branch.text + label)
            same = longer.keep == prompt.keep
            same = same and longer.tail[: len(prompt.tail)] == prompt.tail
            after = longer.tail[len(prompt.tail) :] if same else ()
        if len(after) != 1 or len(found | {after[0]}) != 1:
            raise RequestRefused(
                422,
                "label_not_one_token",
                f"labels.{number}: {shortened(label)} is not exactly one token of its "
                f"own after every branch (it gives {len(after)}): choose a label that "
                "is one token there, or give its token id",
                f"labels.{number}",
            )
        found.add(after[0])
    return found.pop()


def _check_ids(request: BranchesRequest, vocabulary: int) -> None:
    given = [("document.token_ids", request.document.token_ids or [])]
    given += [
        (f"branches.{index}.token_ids", branch.token_ids or [])
        for index, branch in enumerate(request.branches)
    ]
    given.append(("labels", [x for x in request.labels or () if isinstance(x, int)]))
    for field, ids in given:
        worst = max(ids, default=0)
        if worst >= vocabulary:
            raise RequestRefused(
                422,
                "token_out_of_range",
                f"{field}: token id {worst} is beyond the model's vocabulary of "
                f"{vocabulary} tokens",
                field,
            )


def _check_branch(index: int, branch: BranchPrompt, limit: int) -> None:
    field = f"branches.{index}"
    if len(branch) <= branch.scored_from:
        raise RequestRefused(
            422,
            "empty_branch",
            f"{field}: encoded together with the context it has no token of its own: "
            "let it begin at a word boundary",
            field,
        )
    if branch.scored_from < 1:
        raise RequestRefused(
            422,
            "invalid_request",
            "document: it has no token, so nothing comes before the branch: "
            "give a document or a question",
            "document",
        )
    if len(branch) > limit:
        raise context_too_long(field, f"the prompt has {len(branch)} tokens", limit)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _encode_with_spans(
    tokenizer: Tokenizer, text: str
) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Token ids and their character spans (None: a tokenizer without offsets)."""
    if not getattr(tokenizer, "is_fast", False):
        return _encode(tokenizer, text), None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), list(encoded["offset_mapping"])


def _word_starts(text: str, start: int) -> Iterator[int]:
    """Where the word of a token that starts at `start` may begin a text of its own.

    Some tokenizers count the blank before a word to its span, some do not, and some
    (SentencePiece) write a blank before every text by themselves.
    """
    for character in (start, start - 1):
        if _splits(text, character):
            yield character
            if text[character] == " ":
                yield character + 1


def _splits(text: str, character: int) -> bool:
    """A blank or a mark between two letters: every pre-tokenizer splits before it."""
    return (
        0 < character < len(text) - 1
        and (text[character] == " " or unicodedata.category(text[character])[0] in "PS")
        and text[character - 1].isalpha()
        and text[character + 1].isalpha()
    )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
