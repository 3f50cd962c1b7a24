"""The token boundary on a server without the plug-in, by its own ``/tokenize``.

The rule is the plug-in's, lm-evaluation-harness's ``_encode_pair``: blanks at the end
of the context move into the branch, context and branch are encoded together, the branch
is what follows the context's own token count. Every branch is encoded whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from radixflow_sdk._messages import GroupRequest, Message
from radixflow_sdk._requests import Label
from radixflow_sdk._transport._rows import Prompt, common_length
from radixflow_sdk.exceptions import (
    APIStatusError,
    ContextTooLongError,
    InvalidRequestError,
    PluginMissingError,
)

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A server's tokenizer.

    Attributes:
        encode: Token ids of a text, without special tokens.
        prefix: What the tokenizer puts before a text: its BOS, or nothing.
        longest: The model's length in tokens; None where the server does not tell.
    """

    encode: Callable[[str], Awaitable[Ids]]
    prefix: Ids
    longest: int | None

    async def whole(self, text: str) -> Ids:
        """A text from its beginning, with the BOS exactly once."""
        ids = await self.encode(text) if text else ()
        own = bool(self.prefix) and ids[: len(self.prefix)] == self.prefix
        return ids if own else (*self.prefix, *ids)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A group in tokens.

    Attributes:
        document_tokens: Tokens of the document.
        prompts: The branches.
        labels: Token ids of the labels.
    """

    document_tokens: int
    prompts: tuple[Prompt, ...]
    labels: Ids


async def encode_group(request: GroupRequest, encoder: Encoder) -> Encoded:
    """Every prompt of a group, refused by the plug-in's names where it is refused.

    Raises:
        APIStatusError: A branch without a token of its own, a label that is not one
            token, a prompt over the model's length, or chat messages.
        APIError: The server could not be asked.
    """
    context = await _read_context(request, encoder)
    prompts = tuple(
        [
            await _prompt(context, branch.content, place, encoder)
            for place, branch in enumerate(request.branches)
        ]
    )
    labels = [
        await _label_id(number, label, request, prompts, context, encoder)
        for number, label in enumerate(request.labels or ())
    ]
    return Encoded(context.document_tokens, prompts, tuple(labels))


@dataclass(frozen=True, slots=True)
class _Context:
    """Document and question: ids, and how text goes on from them."""

    ids: Ids
    document_tokens: int
    follow: Callable[[str], Awaitable[Ids]]


async def _read_context(request: GroupRequest, encoder: Encoder) -> _Context:
    document, question = request.document, request.question or ""
    if isinstance(document, str):
        text = (document + question).rstrip()
        moved = (document + question)[len(text) :]
        ids = await encoder.whole(text)
        alone = await encoder.whole(document.rstrip()) if question else ids

        async def joint(branch: str) -> Ids:
            return await encoder.whole(text + moved + branch)

        return _Context(ids, common_length([ids, alone]), joint)
    if any(isinstance(part, Message) for part in document):
        raise PluginMissingError(
            "The server has no RadixFlow plug-in, and without it chat messages have no "
            "exact token boundary; serve with `radixflow serve MODEL` or give text.",
            status=404,
        )
    given = tuple(token for token in document if isinstance(token, int))
    before = (*given, *(await encoder.encode(question) if question else ()))

    async def apart(branch: str) -> Ids:
        return (*before, *await encoder.encode(branch))

    return _Context(before, len(given), apart)


async def _prompt(
    context: _Context, content: str | Ids, place: int, encoder: Encoder
) -> Prompt:
    ids = (
        await context.follow(content)
        if isinstance(content, str)
        else (*context.ids, *content)
    )
    prompt = Prompt(ids, len(context.ids))
    if not prompt.own:
        raise _refused(
            "empty_branch",
            f"branches.{place}",
            "encoded together with the context it has no token of its own: let it "
            "begin at a word boundary",
        )
    if prompt.scored_from < 1:
        raise _refused(
            "invalid_request",
            "document",
            "it has no token, so nothing comes before the branch: give a document or a "
            "question",
        )
    if encoder.longest is not None and len(ids) > encoder.longest - 1:
        raise _refused(
            "context_too_long",
            f"branches.{place}",
            f"the prompt has {len(ids)} tokens and the model takes "
            f"{encoder.longest - 1} beside the one it generates: shorten the document "
            "or the branch",
            ContextTooLongError,
        )
    return prompt


async def _label_id(
    number: int,
    label: Label,
    request: GroupRequest,
    prompts: tuple[Prompt, ...],
    context: _Context,
    encoder: Encoder,
) -> int:
    """The one token of a label, the same after every branch."""
    if isinstance(label, int):
        return label
    found: set[Ids] = set()
    for branch, prompt in zip(request.branches, prompts, strict=True):
        if isinstance(branch.content, str):
            longer = await context.follow(branch.content + label)
        else:
            longer = (*prompt.tokens, *await encoder.encode(label))
        same = longer[: len(prompt.tokens)] == prompt.tokens
        found.add(longer[len(prompt.tokens) :] if same else ())
    after = found.pop()
    if found or len(after) != 1:
        raise _refused(
            "label_not_one_token",
            f"labels.{number}",
            f"{label!r} is not exactly one token of its own after every branch: choose "
            "a label that is one token there, or give its token id",
        )
    return after[0]


def _refused(
    code: str, field: str, what: str, kind: type[APIStatusError] = InvalidRequestError
) -> APIStatusError:
    return kind(f"{field}: {what}.", status=422, code=code, field=field)
