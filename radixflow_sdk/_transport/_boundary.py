"""The token boundary on a server without the plug-in, through ``/tokenize``.

The rule is that of the plug-in and of lm-evaluation-harness's ``_encode_pair``: spaces
at the end of the context move into the branch, context and branch are encoded together,
and the branch starts after the number of tokens that the context has alone. Every
branch is encoded whole.
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
        prefix: The special tokens that the tokenizer puts before a text, such as BOS.
        max_length: The model's length in tokens; None where it is not reported.
    """

    encode: Callable[[str], Awaitable[Ids]]
    prefix: Ids
    max_length: int | None

    async def whole(self, text: str) -> Ids:
        """A text that starts a prompt: with the prefix, exactly once."""
        ids = await self.encode(text) if text else ()
        has_prefix = bool(self.prefix) and ids[: len(self.prefix)] == self.prefix
        return ids if has_prefix else (*self.prefix, *ids)


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
    """Every prompt of a group, with the plug-in's error codes for what is refused.

    Raises:
        APIStatusError: A branch without a token of its own, a label that is not one
            token, a prompt over the model's length, or chat messages.
        APIError: A request failed.
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
    """Document and question: their ids, and how to encode a branch behind them."""

    ids: Ids
    document_tokens: int
    encode_branch: Callable[[str], Awaitable[Ids]]


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
        await context.encode_branch(content)
        if isinstance(content, str)
        else (*context.ids, *content)
    )
    prompt = Prompt(ids, len(context.ids))
    if not prompt.own:
        raise _refused(
            "empty_branch",
            f"branches.{place}",
            "encoded together with the context it has no token of its own; start it "
            "at a word boundary",
        )
    if prompt.scored_from < 1:
        raise _refused(
            "invalid_request",
            "document",
            "it has no token, so nothing precedes the branch; give a document or a "
            "question",
        )
    if encoder.max_length is not None and len(ids) > encoder.max_length - 1:
        raise _refused(
            "context_too_long",
            f"branches.{place}",
            f"the prompt has {len(ids)} tokens and the model takes "
            f"{encoder.max_length - 1} and one that it generates; shorten the document "
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
    """A label's token, which must be one token and the same after every branch."""
    if isinstance(label, int):
        return label
    found: set[Ids] = set()
    for branch, prompt in zip(request.branches, prompts, strict=True):
        if isinstance(branch.content, str):
            longer = await context.encode_branch(branch.content + label)
        else:
            longer = (*prompt.tokens, *await encoder.encode(label))
        same = longer[: len(prompt.tokens)] == prompt.tokens
        found.add(longer[len(prompt.tokens) :] if same else ())
    after = found.pop()
    if found or len(after) != 1:
        raise _refused(
            "label_not_one_token",
            f"labels.{number}",
            f"{label!r} is not exactly one token after every branch; choose a "
            "label that is one token there, or give its token id",
        )
    return after[0]


def _refused(
    code: str, field: str, what: str, kind: type[APIStatusError] = InvalidRequestError
) -> APIStatusError:
    return kind(f"{field}: {what}.", status=422, code=code, field=field)
