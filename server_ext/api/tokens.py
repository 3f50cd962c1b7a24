"""From a request's texts to the prompt of each of its branches.

The rule is that of lm-eval's ``_encode_pair`` (0.4.13): blanks at the end of the
context move into the branch, context + branch is encoded jointly, and the branch's
tokens are what follows the context's own token count.  `context` encodes a long
context once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from server_ext.api.context import BranchPrompt, Context, Tokenizer, encode
from server_ext.api.protocol import (
    MAX_BOUNDARIES,
    Branch,
    BranchesRequest,
    RequestRefused,
    context_too_long,
    shortened,
)

__all__ = ["GroupPrompts", "Steps", "group_prompts", "message_ends", "prompt_steps"]

CHARACTERS_A_TOKEN = 8
"""A text with more characters for each token of the limit is first encoded in part."""
SPARE_TOKENS = 256
"""A part may have so many tokens more than it has as the beginning of the whole."""
MARKUP_CHARACTERS = 1000
"""Most that a chat template is expected to write between two messages."""

Steps = Generator[None, None, "GroupPrompts"]


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


class _Start(NamedTuple):
    """What all branches continue.

    Attributes:
        ids: tokens of the context.
        document_tokens: how many of them are the document's.
        inner: token positions inside it at which other groups part.
        follow: encodes a text after the context.
    """

    ids: tuple[int, ...]
    document_tokens: int
    inner: Sequence[int]
    follow: Callable[[str], BranchPrompt]


def group_prompts(
    request: BranchesRequest, tokenizer: Tokenizer, *, vocabulary: int, limit: int
) -> GroupPrompts:
    """`prompt_steps` in one go."""
    steps = prompt_steps(request, tokenizer, vocabulary=vocabulary, limit=limit)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            prompts: GroupPrompts = end.value
            return prompts


def prompt_steps(
    request: BranchesRequest, tokenizer: Tokenizer, *, vocabulary: int, limit: int
) -> Steps:
    """Every prompt of a request, checked against the model.

    Args:
        request: a well-formed request.
        tokenizer: the model's tokenizer.
        vocabulary: number of token ids the model knows.
        limit: maximum tokens of a prompt (the model's length less one generated).

    Yields:
        After the context and after each text that follows it, so that the caller can
        let others go first or give up.

    Returns:
        The prompts.

    Raises:
        RequestRefused: a token id beyond the vocabulary, a branch without a token of
            its own, a label that is not one token, or a prompt over the limit.
    """
    _check_ids(request, vocabulary)
    start = _start(request, tokenizer, limit)
    yield
    branches: list[BranchPrompt] = []
    for index, branch in enumerate(request.branches):
        if branch.text is None:
            ids = tuple(branch.token_ids or ())
            prompt = BranchPrompt(len(start.ids), ids, len(start.ids), ending=())
        else:
            _check_length(f"branches.{index}", branch.text, tokenizer, limit)
            prompt = start.follow(branch.text)
        _check_branch(index, prompt, limit)
        branches.append(prompt)
        yield
    labels = yield from _label_ids(request, tokenizer, start, branches)
    shared = min(branch.keep for branch in branches)
    inside = {at for at in (*start.inner, start.document_tokens) if 0 < at < shared}
    return GroupPrompts(
        context=start.ids,
        document_tokens=start.document_tokens,
        shared_tokens=shared,
        boundaries=(*sorted(inside), shared) if shared else (),
        branches=tuple(branches),
        labels=labels,
    )


def _start(request: BranchesRequest, tokenizer: Tokenizer, limit: int) -> _Start:
    document = request.document
    if document.token_ids is not None:
        question = request.question or ""
        _check_length("question", question, tokenizer, limit)
        ids = (*document.token_ids, *encode(tokenizer, question))
        inner: Sequence[int] = document.boundaries or ()
        follow = partial(_apart, ids, tokenizer)
        start = _Start(ids, len(document.token_ids), inner, follow)
    else:
        text, ends = _context_text(request, tokenizer)
        _check_length("document", text, tokenizer, limit)
        # A chat template writes the BOS where the model wants one.
        bos = () if document.messages is not None else _bos(tokenizer, text)
        context = Context(tokenizer, text, bos)
        end = len(text if document.text is None else document.text)
        start = _Start(
            context.ids,
            context.tokens_before(end),
            context.boundaries(ends),
            context.continued_by,
        )
    if len(start.ids) >= limit:
        what = f"document and question have {len(start.ids)} tokens"
        raise context_too_long("document", what, limit)
    return start


def _context_text(
    request: BranchesRequest, tokenizer: Tokenizer
) -> tuple[str, Sequence[int]]:
    """Document and question, and the characters at which other groups part."""
    document = request.document
    if document.messages is None:
        text = (document.text or "") + (request.question or "")
        return text, document.boundaries or ()
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
    return rendered, message_ends(
        rendered, [turn.content for turn in document.messages]
    )


def _check_length(field: str, text: str, tokenizer: Tokenizer, limit: int) -> None:
    """Refuse a text that is far too long before all of it is encoded."""
    characters = CHARACTERS_A_TOKEN * (limit + SPARE_TOKENS)
    while characters < len(text):
        tokens = len(encode(tokenizer, text[:characters]))
        if tokens > limit + SPARE_TOKENS:
            what = (
                f"the first {characters} of {len(text)} characters have {tokens} tokens"
            )
            raise context_too_long(field, what, limit)
        characters *= 4


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


def _apart(context: tuple[int, ...], tokenizer: Tokenizer, branch: str) -> BranchPrompt:
    tail = tuple(encode(tokenizer, branch))
    return BranchPrompt(len(context), tail, len(context))


def _label_ids(
    request: BranchesRequest,
    tokenizer: Tokenizer,
    start: _Start,
    branches: Sequence[BranchPrompt],
) -> Generator[None, None, tuple[int, ...]]:
    """Token id of each label, the same after every branch or refused."""
    ids: list[int] = []
    for number, label in enumerate(request.labels or ()):
        if isinstance(label, int):
            ids.append(label)
            continue
        # Branches with equal ends continue equally.
        by_ending: dict[tuple[int, ...], tuple[int, ...]] = {}
        found: set[int] = set()
        for branch, prompt in zip(request.branches, branches, strict=True):
            after = by_ending.get(prompt.ending) if prompt.ending is not None else None
            if after is None:
                after = _after(branch, prompt, label, tokenizer, start)
                if prompt.ending is not None:
                    by_ending[prompt.ending] = after
                yield
            found.update(after[:1])
            if len(after) != 1 or len(found) != 1:
                raise _not_one_token(number, label, len(after))
        ids.append(found.pop())
    return tuple(ids)


def _after(
    branch: Branch,
    prompt: BranchPrompt,
    label: str,
    tokenizer: Tokenizer,
    start: _Start,
) -> tuple[int, ...]:
    """The label's tokens after a branch, none where it changes the branch's own."""
    if branch.text is None:
        return tuple(encode(tokenizer, label))
    longer = start.follow(branch.text + label)
    own = len(prompt.tail)
    same = longer.keep == prompt.keep and longer.tail[:own] == prompt.tail
    return longer.tail[own:] if same else ()


def _not_one_token(number: int, label: str, tokens: int) -> RequestRefused:
    return RequestRefused(
        422,
        "label_not_one_token",
        f"labels.{number}: {shortened(label)} is not exactly one token of its own "
        f"after every branch (it gives {tokens}): choose a label that is one token "
        "there, or give its token id",
        f"labels.{number}",
    )


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
