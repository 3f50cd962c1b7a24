"""Generated text after the branches of one document, through ``/v1/completions``.

``POST /v1/branches`` generates nothing, so these groups use vLLM's own endpoint: one
streamed request for many prompts, with the ordinary prefix cache, and hints that name
the group and its boundaries. A server without RadixFlow ignores the hints.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from radixflow_sdk._hints import write_hints
from radixflow_sdk._messages import (
    BranchEvent,
    BranchText,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
    Message,
    Sampling,
)
from radixflow_sdk._results import GroupUsage
from radixflow_sdk._transport._boundary import Ids
from radixflow_sdk._transport._completions import Call
from radixflow_sdk._transport._http import Answer, HTTPSession
from radixflow_sdk._transport._rows import MAX_ROWS, common_length, invalid_answer
from radixflow_sdk.exceptions import (
    APIStatusError,
    InvalidResponseError,
    StreamBrokenError,
)

Prompt = str | Ids

_PATH = "/v1/completions"

_MAX_SIZE = 4 * 2**20
"""Characters, or token ids, of prompts in one request; one prompt may have more."""
_MAX_TEXT = 16 * 2**20
"""Characters that one branch may be answered with."""


async def stream_texts(
    http: HTTPSession, request: GroupRequest
) -> AsyncGenerator[BranchEvent, None]:
    """Generate one group; yield each branch as it finishes.

    Raises:
        APIError: A request failed.
    """
    call = Call(http, request)
    prompts, boundaries = await _encode(call)
    shared = boundaries[-1] if boundaries else 0
    yield GroupStarted(
        group_id=request.group_id,
        request_id=request.request_id,
        model=request.model or "",
        document_tokens=shared,
        shared_tokens=shared,
        route="completions",
    )
    tokens = 0
    for first, pack in _packs(prompts):
        async with aclosing(_generate(call, pack, boundaries)) as texts:
            async for place, text in texts:
                index = request.branches[first + place].index
                tokens += text.prompt_tokens
                yield BranchText(
                    index=index,
                    request_id=f"{text.request_id}-{place}",
                    text=text.text,
                    finish_reason=text.finish_reason,
                    prompt_tokens=text.prompt_tokens,
                    generated_tokens=text.tokens,
                )
    yield GroupCompleted(
        usage=GroupUsage(
            prompt_tokens=tokens,
            cached_tokens=0,
            computed_tokens=tokens,
            rounds=None,
        )
    )


# --- prompts ----------------------------------------------------------------------


async def _encode(call: Call) -> tuple[list[Prompt], Ids]:
    """Each branch's prompt, and the prefix lengths at which prompts diverge.

    The last length is the prefix that all branches share; no lengths: not known.
    """
    request = call.request
    document, contents = request.document, [b.content for b in request.branches]
    if isinstance(document, str):
        texts = [text for text in contents if isinstance(text, str)]
        if len(texts) == len(contents):
            return [document + t for t in texts], await _lengths(call, document)
        ids, _ = await call.tokens(document, special=True)
        ends = await _ends(call, document, ids)
    elif document and isinstance(document[0], Message):
        chats = [
            await call.rendered([*document, Message(role="user", content=str(content))])
            for content in contents
        ]
        return list(chats), (common_length(chats),)
    else:
        ids = tuple(token for token in document if isinstance(token, int))
        ends = request.boundaries
    joined: list[Prompt] = []
    for content in contents:
        own = await call.encode(content) if isinstance(content, str) else content
        joined.append((*ids, *own))
    return joined, (*ends, len(ids))


async def _lengths(call: Call, document: str) -> Ids:
    """Tokens of each prefix. These are only hints, so a failure is ignored."""
    with suppress(APIStatusError, InvalidResponseError):
        if len(call.request.branches) > 1 or call.request.boundaries:
            ids, _ = await call.tokens(document, special=True)
            return (*await _ends(call, document, ids), len(ids))
    return ()


async def _ends(call: Call, document: str, ids: Ids) -> Ids:
    """Number of document tokens that end at or before the end of each part."""
    prefixes = [document[:end] for end in call.request.boundaries]
    encoded = [(await call.tokens(text, special=True))[0] for text in prefixes]
    return tuple(common_length([ids, prefix]) for prefix in encoded)


def _packs(prompts: Sequence[Prompt]) -> Iterator[tuple[int, list[Prompt]]]:
    """The prompts of each request, with the position of the first one."""
    first, pack, size = 0, list[Prompt](), 0
    for place, prompt in enumerate(prompts):
        if pack and (len(pack) == MAX_ROWS or size + len(prompt) > _MAX_SIZE):
            yield first, pack
            first, pack, size = place, [], 0
        pack.append(prompt)
        size += len(prompt)
    yield first, pack


def _body(call: Call, pack: Sequence[Prompt], boundaries: Ids) -> Mapping[str, Any]:
    request, sampling = call.request, call.request.sampling or Sampling()
    hints = write_hints(
        request.group_id,
        role="consumer",
        branches=len(request.branches),
        boundaries=boundaries,
    )
    return {
        "prompt": list(pack),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop),
        "seed": sampling.seed,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "vllm_xargs": hints,
    }


# --- the stream, parsed -----------------------------------------------------------


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Choice(_Model):
    index: Annotated[int, Field(ge=0)]
    text: str
    finish_reason: str | None = None


class _Usage(_Model):
    prompt_tokens: Annotated[int, Field(ge=0, lt=2**63)] = 0
    completion_tokens: Annotated[int, Field(ge=0, lt=2**63)] = 0


class _Failure(_Model):
    message: str = "no reason given"


class _Chunk(_Model):
    id: str = ""
    choices: list[_Choice] = Field(default_factory=list)
    usage: _Usage | None = None
    error: _Failure | None = None


@dataclass(slots=True)
class _Text:
    """One branch so far."""

    request_id: str = ""
    text: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    tokens: int = 0

    def add(self, choice: _Choice, chunk: _Chunk) -> bool:
        """Add one piece; return whether it was the last."""
        if self.finish_reason:
            raise invalid_answer(_PATH, "text after finish_reason")
        self.text += choice.text
        if len(self.text) > _MAX_TEXT:
            raise invalid_answer(
                _PATH, f"more than {_MAX_TEXT} characters for one branch"
            )
        self.request_id = chunk.id
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.tokens = chunk.usage.completion_tokens
        self.finish_reason = choice.finish_reason or ""
        return bool(self.finish_reason)


async def _generate(
    call: Call, pack: Sequence[Prompt], boundaries: Ids
) -> AsyncGenerator[tuple[int, _Text], None]:
    """Each prompt of one request with its text, as soon as it finishes."""
    texts = [_Text() for _ in pack]
    max_tokens = (call.request.sampling or Sampling()).max_tokens
    done = False
    async with call.completing(_body(call, pack, boundaries)) as answer:
        async with aclosing(_chunks(answer)) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    if choice.index >= len(texts):
                        raise invalid_answer(
                            _PATH, f"choice {choice.index} of {len(texts)}"
                        )
                    text = texts[choice.index]
                    if text.add(choice, chunk):
                        if text.tokens > max_tokens:
                            raise invalid_answer(
                                _PATH,
                                f"{text.tokens} tokens where {max_tokens} were allowed",
                            )
                        text.request_id = answer.secrets.redact(text.request_id)
                        text.finish_reason = answer.secrets.redact(text.finish_reason)
                        yield choice.index, text
        done = all(text.finish_reason for text in texts)
    if not done:
        raise StreamBrokenError(
            "The server's answer ended before every branch was finished; try again."
        )


async def _chunks(answer: Answer) -> AsyncGenerator[_Chunk, None]:
    """Server-sent events up to ``[DONE]``; the body is read to its end."""
    done = False
    async with aclosing(answer.lines()) as lines:
        async for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if done or not data or data.startswith(b":"):
                continue
            if data == b"[DONE]":
                done = True
                continue
            try:
                chunk = _Chunk.model_validate_json(data)
            except ValidationError as error:
                raise invalid_answer(_PATH, error) from None
            if chunk.error is not None:
                raise StreamBrokenError(
                    f"The server ended its answer: {chunk.error.message[:300]}; try "
                    "again."
                )
            yield chunk
