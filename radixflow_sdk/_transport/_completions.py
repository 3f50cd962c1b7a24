"""Exact scores through ``/v1/completions``, on a server without the plug-in.

There are two routes, and neither reads a logits row that a cache could falsify.
``trie``: one completion of one token for each distinct prefix of an option; vLLM always
computes the logits row of a generated token, while the document comes from the prefix
cache. ``echo``: every logits row of the whole prompt, for which vLLM does not read its
cache. Both are much slower than the plug-in; the result names the route.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any, Literal, TypeVar

from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
    Message,
)
from radixflow_sdk._requests import RouteChoice
from radixflow_sdk._results import GroupUsage, LabelScore, TokenScore, Usage
from radixflow_sdk._transport._boundary import Encoded, Encoder, Ids, encode_group
from radixflow_sdk._transport._http import Answer, HTTPSession
from radixflow_sdk._transport._rows import (
    NotALogProbability,
    Prompt,
    Row,
    Trie,
    read_echoed,
    read_generated,
    read_tokens,
)
from radixflow_sdk.exceptions import InvalidResponseError

T = TypeVar("T")

# Overrides the server's generation config, which could change the logits.
_PLAIN: Mapping[str, Any] = {
    "max_tokens": 1,
    "temperature": 0,
    "top_p": 1,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": 1,
    "return_tokens_as_token_ids": True,
}


class CompletionsScorer:
    """Scores through the routes that every vLLM server has.

    Args:
        http: The server.
        route: ``trie`` or ``echo``; otherwise ``trie``, and ``echo`` where the server
            does not return the log-probabilities of chosen tokens.
    """

    def __init__(self, http: HTTPSession, *, route: RouteChoice = "auto") -> None:
        self._http = http
        self._route: Literal["trie", "echo"] | None = (
            route if route in ("trie", "echo") else None
        )
        self._tokenizers: dict[str | None, tuple[Ids, int | None]] = {}

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Score one group; yield its events as its requests end.

        Raises:
            APIError: A request failed.
        """
        call = Call(self._http, request)
        encoder = await self._encoder(call)
        route = self._route or await self._probe(call, encoder)
        encoded = await encode_group(request, encoder)
        trie = Trie(encoded.prompts, encoded.labels)
        yield GroupStarted(
            group_id=request.group_id,
            request_id=request.request_id,
            model=request.model or "",
            document_tokens=encoded.document_tokens,
            shared_tokens=len(trie.shared),
            route="trie" if encoded.labels else route,
        )
        if route == "echo" and not encoded.labels:
            answers = _echoed(call, encoded.prompts)
        else:
            answers = _read(call, trie, len(encoded.prompts))
        tokens = 0
        async with aclosing(answers) as branches:
            async for index, rows in branches:
                tokens += len(encoded.prompts[index].tokens)
                yield _event(request, encoded, index, rows)
        yield GroupCompleted(usage=GroupUsage(**_usage(tokens), rounds=None))

    async def _encoder(self, call: Call) -> Encoder:
        model = call.request.model
        if model not in self._tokenizers:
            plain, max_length = await call.tokens("a")
            special, _ = await call.tokens("a", special=True)
            at = next(
                (
                    i
                    for i in range(len(special))
                    if special[i : i + len(plain)] == plain
                ),
                0,
            )
            self._tokenizers[model] = special[:at], max_length
        prefix, max_length = self._tokenizers[model]
        return Encoder(call.encode, prefix, max_length)

    async def _probe(self, call: Call, encoder: Encoder) -> Literal["trie", "echo"]:
        """Whether the server returns the values of chosen tokens; requested once."""
        wanted = [0, 1]
        prompt = (await encoder.whole("a"))[-1:]
        found: Literal["trie", "echo"] = "echo"
        with suppress(InvalidResponseError):
            [row] = await call.complete([prompt], wanted)
            if row.logprobs.keys() >= set(wanted):
                found = "trie"
        self._route = found
        return found


class Call:
    """The requests of one group.

    Attributes:
        request: The group.
    """

    def __init__(self, http: HTTPSession, request: GroupRequest) -> None:
        self.request = request
        self._http = http
        self._sent = 0

    async def complete(self, prompts: Sequence[Ids], ids: Sequence[int]) -> list[Row]:
        """The row after each prompt, with the log-probabilities of some tokens."""
        body = {"prompt": [list(p) for p in prompts], "logprob_token_ids": list(ids)}
        return await self._post_completions(
            body, lambda answer: read_generated(answer, len(prompts))
        )

    async def echo(self, prompt: Ids) -> list[Row]:
        """The rows of a prompt's tokens but the first, and the one after it."""
        body = {"prompt": [list(prompt)], "echo": True}
        return await self._post_completions(
            body, lambda answer: read_echoed(answer, prompt)
        )

    async def encode(self, text: str) -> Ids:
        """Token ids of a text, without special tokens."""
        return (await self.tokens(text))[0]

    async def tokens(
        self, text: str, *, special: bool = False
    ) -> tuple[Ids, int | None]:
        """Token ids of a text, and the model's length."""
        body = {"prompt": text, "add_special_tokens": special}
        return await self._post("/tokenize", body, read_tokens)

    async def rendered(self, messages: Sequence[Message]) -> Ids:
        """Token ids of a chat, with the prompt for its next message."""
        spelled = [{"role": m.role, "content": m.content} for m in messages]
        return (await self._post("/tokenize", {"messages": spelled}, read_tokens))[0]

    def completing(
        self, body: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[Answer]:
        """A completion whose answer is streamed."""
        content, headers = self._encode_body(self._salted(body))
        return self._http.open(
            "POST",
            "/v1/completions",
            headers={"Accept": "text/event-stream", **headers},
            content=content,
            group_id=self.request.group_id,
            on_response=self.request.on_response,
        )

    async def _post_completions(
        self, body: Mapping[str, Any], read: Callable[[bytes], T]
    ) -> T:
        whole = self._salted({**_PLAIN, **body})
        return await self._post("/v1/completions", whole, read)

    async def _post(
        self, path: str, body: Mapping[str, Any], read: Callable[[bytes], T]
    ) -> T:
        return await self._http.post(
            path,
            *self._encode_body(body),
            read=read,
            group_id=self.request.group_id,
            on_response=self.request.on_response,
        )

    def _salted(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        salt = self.request.cache_salt
        salted = {} if salt is None else {"cache_salt": salt}
        return {**salted, **body, **self.request.extra_body}

    def _encode_body(self, body: Mapping[str, Any]) -> tuple[bytes, Mapping[str, str]]:
        request = self.request
        headers = {
            # vLLM's engine takes concurrent requests of one id for the same request.
            "X-Request-ID": f"{request.request_id}-{self._sent}",
            "X-Session-ID": request.session_id,
            **request.extra_headers,
        }
        self._sent += 1
        whole = {"model": request.model, **body}
        content = json.dumps(whole, ensure_ascii=False, allow_nan=False).encode()
        return content, headers


async def _read(
    call: Call, trie: Trie, count: int
) -> AsyncGenerator[tuple[int, list[Row]], None]:
    """Each branch with its logits rows, as soon as they have arrived."""
    remaining = list(range(count))
    for pack in trie.packs():
        prompts = [(*trie.shared, *end) for end in pack.ends]
        trie.add(pack, await call.complete(prompts, list(pack.ids)))
        done = [index for index in remaining if trie.complete(index)]
        remaining = [index for index in remaining if index not in done]
        for index in done:
            yield index, trie.rows(index)
    if remaining:
        raise InvalidResponseError(
            "The server's rows lack tokens that were asked for; serve with vLLM 0.32 "
            "or newer, or better with `radixflow serve`."
        )


async def _echoed(
    call: Call, prompts: Sequence[Prompt]
) -> AsyncGenerator[tuple[int, list[Row]], None]:
    for index, prompt in enumerate(prompts):
        rows = await call.echo(prompt.tokens)
        yield index, rows[prompt.scored_from - 1 : len(prompt.tokens) - 1]


def _event(
    request: GroupRequest, encoded: Encoded, index: int, rows: Sequence[Row]
) -> BranchResult | BranchFailed:
    """A branch's rows as its answer, or as its failure."""
    request_id = f"{request.request_id}-{index}"
    branch, prompt = request.branches[index], encoded.prompts[index]
    own = (rows[0].top,) if encoded.labels else prompt.own
    try:
        tokens = tuple(
            TokenScore(token_id=token, logprob=row.of(token), is_top=row.is_top(token))
            for token, row in zip(own, rows, strict=True)
        )
        pairs = zip(request.labels or (), encoded.labels, strict=True)
        labels = tuple(
            LabelScore(label=label, token_id=token, logprob=rows[0].of(token))
            for label, token in pairs
        )
    except NotALogProbability as error:
        return BranchFailed(
            index=branch.index,
            request_id=request_id,
            code="non_finite_logprob",
            message=str(error),
            retryable=False,
        )
    return BranchResult(
        index=branch.index,
        request_id=request_id,
        tokens=tokens,
        labels=labels or None,
        usage=Usage(**_usage(len(prompt.tokens))),
    )


def _usage(prompt: int) -> dict[str, int]:
    """Such a server does not report what it read from its cache."""
    return {"prompt_tokens": prompt, "cached_tokens": 0, "computed_tokens": prompt}
