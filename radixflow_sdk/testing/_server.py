"""`FakeServer`: an ASGI app that implements the wire, and fails on demand."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    contextmanager,
)
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import anyio
from anyio.from_thread import start_blocking_portal

from radixflow_sdk._requests import MAX_PARTS
from radixflow_sdk.exceptions import BranchError
from radixflow_sdk.testing._scores import Scores, share, token
from radixflow_sdk.testing._socket import listen
from radixflow_sdk.testing._texts import Texts

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_DEFAULTS: Mapping[str, Any] = {
    "model": None,
    "document": {"text": ""},
    "question": None,
    "branches": [],
    "scoring": "likelihood",
    "labels": None,
    "group_id": None,
    "cache_salt": None,
    "priority": 0,
}
_SETTINGS: Mapping[str, Any] = {
    "block_size": 128,
    "match_unit": 16,
    "token_budget": 8192,
    "rows": 256,
    "max_model_len": 32768,
    "async_scheduling": True,
    "mamba_cache_mode": "align",
    "prefix_caching": True,
}
_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in the answer to one request.

    Attributes:
        status: Replaces 200; the group does not start.
        code: The wire's error code for ``status``.
        headers: Sent with ``status``, for example ``{"Retry-After": "7"}``.
        fail: Positions in the request of branches that fail retryably.
        cut_after: Number of branches after which the answer ends.
        delay: Seconds before each branch; ``math.inf`` makes the server hang.
    """

    status: int | None = None
    code: str = "injected"
    headers: Mapping[str, str] = field(default_factory=dict)
    fail: tuple[int, ...] = ()
    cut_after: int | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRequest:
    """One received request for branches or completions.

    Attributes:
        headers: Names in lower case.
        body: The parsed JSON.
    """

    headers: Mapping[str, str]
    body: Mapping[str, Any]


class FakeServer:
    """Implements the wire: an ASGI app, or a server on a socket with `listen`.

    ::

        server = FakeServer({"Oslo": -0.1}, faults=[Fault(status=503)])
        async with server.listen() as url, RadixFlowClient(url) as client:
            result = await client.score_candidates(document, ["Oslo", "Rome"])
        assert len(server.requests) == 2

    A token is a word. A repeated document with the same salt is cached up to the last
    multiple of the match unit, as on a real server.

    Args:
        scores: For each option, the log-probability of its one token (with label
            scoring: of the first label), or a `BranchError` that its branch fails with.
            A token of probability 0.5 or more is the most likely (`is_greedy`).
        default: For options that are not in the table; None derives a number from
            document, question and option, the same in every run.
        faults: One for each request, in order; None for a request without a fault. More
            can be appended at any time.
        model: The name of the served model.
        texts: For each branch of `generate_branches` the generated text; other branches
            get made-up words. The longest branch that a prompt ends with counts.
        api_key: Required, if given.
        delay: Seconds before each branch.
        scheduler: The scheduler that ``/v1/radixflow/stats`` names.
        settings: Overrides settings there, such as ``prefix_caching`` and
            ``match_unit``, which the server applies, and ``rows``: with few of them,
            concurrent groups are a backlog, and the client sends fewer at a time.

    Attributes:
        requests: The last 1,000 requests for branches and completions.
        faults: The faults of future requests.
        running: Groups in progress.
        aborted: Groups that ended because their client disconnected.
    """

    def __init__(
        self,
        scores: Mapping[str | tuple[int, ...], float | BranchError] | None = None,
        *,
        default: float | None = None,
        faults: Sequence[Fault | None] = (),
        model: str = "fake",
        texts: Mapping[str | tuple[int, ...], str] | None = None,
        api_key: str | None = None,
        delay: float = 0.0,
        scheduler: str = "RadixFlowScheduler",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.requests: deque[FakeRequest] = deque(maxlen=_KEPT)
        self.faults: deque[Fault | None] = deque(faults)
        self.running = 0
        self.aborted = 0
        self._unfinished = 0
        self._scores = Scores(scores, default=default)
        self._texts = Texts(texts)
        self._model = model
        self._api_key = api_key
        self._delay = delay
        self._scheduler = scheduler
        self._settings = {**_SETTINGS, **(settings or {})}
        self._cached: OrderedDict[bytes, None] = OrderedDict()

    def listen(self, *, port: int = 0) -> AbstractAsyncContextManager[str]:
        """Serve on a socket of 127.0.0.1 during a block.

        Leaving the block breaks open connections, as a killed server does.

        Args:
            port: The port; 0 selects a free one.

        Returns:
            A context manager that gives the server's URL.
        """
        return listen(self, port=port)

    @contextmanager
    def listen_in_thread(self, *, port: int = 0) -> Iterator[str]:
        """`listen`, for tests without an event loop."""
        with start_blocking_portal(name="radixflow-fake") as portal:
            manager: AbstractContextManager[str] = portal.wrap_async_context_manager(
                self.listen(port=port)
            )
            with manager as url:
                yield url

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request: the ASGI application.

        Raises:
            NotImplementedError: It is not an HTTP request.
        """
        if scope["type"] != "http":
            raise NotImplementedError(f"FakeServer does not support {scope['type']}")
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        body = await _read(receive)
        if self._api_key and headers.get("authorization") != f"Bearer {self._api_key}":
            await _refuse(send, 401, "unauthorized", "the key is missing or wrong")
            return
        match scope["method"], scope["path"]:
            case "GET", "/v1/models":
                await _answer(send, 200, {"data": [{"id": self._model}]})
            case "GET", "/v1/radixflow/stats":
                await _answer(send, 200, self._stats())
            case "POST", "/v1/branches":
                await self._branches(headers, body, send)
            case "POST", "/v1/completions":
                await self._completions(headers, body, send)
            case "POST", "/tokenize":
                await _answer(send, 200, {"tokens": _encode(json.loads(body))})
            case _:
                await _refuse(send, 404, "not_found", "no such path")

    async def _branches(
        self, headers: Mapping[str, str], raw: bytes, send: _Send
    ) -> None:
        body = {**_DEFAULTS, **json.loads(raw)}
        fault = await self._note(headers, body, send)
        if fault is None:
            return
        if unknown := body.keys() - _DEFAULTS.keys():
            name = min(unknown)
            await _refuse(send, 422, "invalid_request", "unknown field", field=name)
            return
        if body["model"] not in (None, self._model):
            await _refuse(send, 404, "model_not_found", f"served is {self._model}")
            return
        if not _boundaries_fit(body["document"]):
            name = "document.boundaries"
            await _refuse(send, 422, "invalid_request", "wrong", field=name)
            return
        lines = self._lines(body, headers.get("x-request-id", "req-fake"), fault)
        await self._say(send, "application/x-ndjson", b"%s\n", lines)

    async def _completions(
        self, headers: Mapping[str, str], raw: bytes, send: _Send
    ) -> None:
        body = json.loads(raw)
        fault = await self._note(headers, body, send)
        if fault is None:
            return
        if not body.get("stream") or not isinstance(body.get("prompt"), list):
            await _refuse(send, 400, "fake", "here completions generate, as a stream")
        else:
            name = f"cmpl-{headers.get('x-request-id', 'fake')}"
            chunks = self._chunks(body, name, fault)
            await self._say(send, "text/event-stream", b"data: %s\n\n", chunks)

    async def _note(
        self, headers: Mapping[str, str], body: Mapping[str, Any], send: _Send
    ) -> Fault | None:
        """The fault of a request; None where the request has been refused."""
        self.requests.append(FakeRequest(headers=headers, body=body))
        fault = (self.faults.popleft() if self.faults else None) or Fault()
        if fault.status is None:
            return fault
        await _refuse(send, fault.status, fault.code, "as told", headers=fault.headers)
        return None

    async def _say(
        self,
        send: _Send,
        kind: str,
        frame: bytes,
        lines: AsyncGenerator[dict[str, Any] | str, None],
    ) -> None:
        await _start(send, 200, kind)
        self.running += 1
        finished = False
        try:
            async with aclosing(lines):
                async for line in lines:
                    text = line if isinstance(line, str) else json.dumps(line)
                    await _write(send, frame % text.encode())
            await _end(send)
            finished = True
        finally:
            self.running -= 1
            self.aborted += not finished

    async def _chunks(
        self, body: Mapping[str, Any], name: str, fault: Fault
    ) -> AsyncGenerator[dict[str, Any] | str, None]:
        """A streamed completion: each prompt's text in two pieces."""
        for index, prompt in enumerate(body["prompt"]):
            if index == fault.cut_after:
                return
            if delay := fault.delay or self._delay:
                await anyio.sleep(delay)
            if index in fault.fail:
                yield {"error": {"message": "as told", "code": 500}}
                break
            key = prompt if isinstance(prompt, str) else tuple(prompt)
            written = self._texts.after_prompt(key, body["max_tokens"])
            words = prompt.split() if isinstance(prompt, str) else prompt
            half = len(written.text) // 2
            for text, reason, tokens in (
                (written.text[:half], None, written.tokens // 2),
                (written.text[half:], written.finish_reason, written.tokens),
            ):
                choice = {"index": index, "text": text, "finish_reason": reason}
                usage = {"prompt_tokens": len(words), "completion_tokens": tokens}
                yield {"id": name, "choices": [choice], "usage": usage}
        yield "[DONE]"

    async def _lines(
        self, body: Mapping[str, Any], request_id: str, fault: Fault
    ) -> AsyncGenerator[dict[str, Any] | str, None]:
        context = _text(body["document"]) + (body.get("question") or "")
        tokens = len(context.split())
        unit = self._settings["match_unit"]
        cached = tokens // unit * unit if self._seen(body, context) else 0
        spent = {"prompt_tokens": 0, "cached_tokens": 0, "computed_tokens": 0}
        failed = 0
        yield {
            "event": "group.started",
            "v": 1,
            "group_id": body["group_id"] or f"g-{request_id}",
            "request_id": request_id,
            "model": self._model,
            "branches": len(body["branches"]),
            "document_tokens": tokens,
            "shared_tokens": tokens,
        }
        for index, branch in enumerate(body["branches"]):
            if index == fault.cut_after:
                return
            with self._unfinished_from(len(body["branches"]) - index):
                if delay := fault.delay or self._delay:
                    await anyio.sleep(delay)
            prompt = tokens + len(branch.get("token_ids") or [0])
            usage = {
                "prompt_tokens": prompt,
                "cached_tokens": cached,
                "computed_tokens": prompt - cached,
            }
            line = self._branch(branch, body["labels"], context, index in fault.fail)
            if "error" in line:
                failed += 1
            else:
                line |= {"usage": usage, "rounds": None}
                spent = {name: spent[name] + usage[name] for name in spent}
            yield {**line, "index": index, "request_id": f"{request_id}-{index}"}
        if fault.cut_after is not None:
            return
        yield {
            "event": "group.completed",
            "completed": len(body["branches"]) - failed,
            "failed": failed,
            "usage": {**spent, "rounds": None},
            "load": {"requests": self._unfinished, "rows": self._settings["rows"]},
        }

    @contextmanager
    def _unfinished_from(self, branches: int) -> Iterator[None]:
        """Count a group's unfinished branches while it waits for the next one."""
        self._unfinished += branches
        try:
            yield
        finally:
            self._unfinished -= branches

    def _branch(
        self,
        branch: Mapping[str, Any],
        labels: Sequence[str | int] | None,
        context: str,
        fail: bool,
    ) -> dict[str, Any]:
        content = branch.get("text") or tuple(branch["token_ids"])
        score = self._scores.of(content, context=context)
        if fail:
            score = BranchError("as told", code="engine_error", retryable=True)
        if isinstance(score, BranchError):
            error = {
                "code": score.code or "engine_error",
                "message": str(score),
                "retryable": score.retryable,
            }
            return {"event": "branch.failed", "error": error}
        shares = None if labels is None else share(score, labels)
        own = token(score, shares)
        given = shares is None and not isinstance(content, str)
        ids = list(content) if given else [own.token_id]
        return {
            "event": "branch.completed",
            "token_ids": ids,
            "token_logprobs": [own.logprob, *[0.0] * (len(ids) - 1)],
            "token_is_top": [own.is_top, *[True] * (len(ids) - 1)],
            "labels": shares and [asdict(label) for label in shares],
        }

    def _seen(self, body: Mapping[str, Any], context: str) -> bool:
        """Whether this context was seen before; add it."""
        key = hashlib.blake2b(f"{body['cache_salt']}\0{context}".encode()).digest()
        seen = key in self._cached
        self._cached[key] = None
        self._cached.move_to_end(key)
        if len(self._cached) > _KEPT:
            self._cached.popitem(last=False)
        return seen and bool(self._settings["prefix_caching"])

    def _stats(self) -> dict[str, Any]:
        ours = self._scheduler == "RadixFlowScheduler"
        return {
            "v": 1,
            "version": "fake",
            "vllm_version": "fake",
            "scheduler": self._scheduler,
            "policy": {"name": "radixflow"} if ours else None,
            "settings": self._settings if ours else None,
            "counters": None,
            "gauges": {"running": self.running, "waiting": 0} if ours else None,
        }


def _text(document: Mapping[str, Any]) -> str:
    if "text" in document:
        return str(document["text"])
    if "token_ids" in document:
        return " ".join(map(str, document["token_ids"]))
    return " ".join(f"{m['role']}: {m['content']}" for m in document["messages"])


def _boundaries_fit(document: Mapping[str, Any]) -> bool:
    """Whether a document's boundaries are valid on the wire."""
    if "boundaries" not in document:
        return True
    ends, content = document["boundaries"], document.get("text")
    if content is None:
        content = document.get("token_ids", ())
    return (
        isinstance(ends, list)
        and len(ends) <= MAX_PARTS
        and all(type(end) is int and 1 <= end <= len(content) for end in ends)
        and all(before < end for before, end in pairwise(ends))
    )


def _encode(body: Mapping[str, Any]) -> list[int]:
    """Words as token ids."""
    text = body["prompt"] if "prompt" in body else _text(body)
    digests = (hashlib.blake2b(w.encode(), digest_size=3) for w in text.split())
    return [int.from_bytes(digest.digest()) for digest in digests]


async def _read(receive: _Receive) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


async def _start(
    send: _Send, status: int, kind: str, headers: Mapping[str, str] | None = None
) -> None:
    pairs = {"content-type": kind, **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _write(send: _Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _end(send: _Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(
    send: _Send, status: int, value: object, headers: Mapping[str, str] | None = None
) -> None:
    await _start(send, status, "application/json", headers)
    await _write(send, json.dumps(value).encode())
    await _end(send)


async def _refuse(
    send: _Send,
    status: int,
    code: str,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    error = {"code": code, "message": message, "field": field}
    await _answer(
        send, status, {"error": {**error, "type": "radixflow_error"}}, headers
    )
