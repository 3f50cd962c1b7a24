"""A server without an engine: the routes on a fake, spoken to over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from server_ext.api import rerank
from server_ext.api.encoders import Encoders
from server_ext.api.group import Load, Route
from server_ext.api.router import router
from server_ext.api.server import Server

VOCABULARY = 0x3000
LIMIT = 200


JSON = {"Content-Type": "application/json"}


class LettersEncoded(dict[str, Any]):
    """What `Letters` answers: an encoding whose every token is a word."""

    @property
    def encodings(self) -> list[LettersEncoded]:
        return [self]

    def token_to_chars(self, index: int) -> tuple[int, int]:
        return index, index + 1

    def token_to_word(self, index: int) -> int:
        return index


class Letters:
    """Every character is a token, whose id is its code point."""

    is_fast = True
    backend_tokenizer = None
    bos_token_id = None

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return LettersEncoded(input_ids=[ord(letter) for letter in text])

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return "".join(f"{turn['role']}: {turn['content']}\n" for turn in conversation)


@dataclass
class Asked:
    """One request as the engine got it."""

    tokens: list[int]
    params: Any
    request_id: str
    cache_salt: str | None
    priority: int
    rank: int | None
    trace_headers: Mapping[str, str] | None
    lora: Any = None

    @property
    def hints(self) -> dict[str, Any]:
        return dict(self.params.extra_args)

    @property
    def name(self) -> str:
        """What comes after the group's request id: the branch's index."""
        return self.request_id.rpartition("-")[2]


def finished(asked: Asked, *, cached: int = 0, round_: int = 1) -> Any:
    """What vLLM answers when all went well; log-probabilities are -token / 1000."""
    params = asked.params
    ids = list(params.logprob_token_ids or ())
    rows = [{token: _logprob(token)} for token in asked.tokens]
    generated = {token: _logprob(token) for token in (*ids, 65)}
    chosen = params.prompt_logprob_token_ids
    return SimpleNamespace(
        finished=True,
        prompt_logprobs=rows if params.prompt_logprobs is not None else None,
        prompt_token_id_logprobs=None
        if chosen is None
        else [[_logprob(token).logprob for token in row] for row in chosen],
        outputs=[
            SimpleNamespace(
                finish_reason="length",
                token_ids=[65],
                logprobs=[generated] if ids else None,
            )
        ],
        num_cached_tokens=cached,
        kv_transfer_params={
            "radixflow": {
                "first": round_,
                "last": round_,
                "blocked": 0,
                "tokens": len(asked.tokens) - cached,
            }
        },
    )


def _logprob(token: int) -> Any:
    return SimpleNamespace(logprob=-token / 1000)


def ended(reason: str) -> Any:
    """What vLLM answers when a request ended another way."""
    return SimpleNamespace(
        finished=True, outputs=[SimpleNamespace(finish_reason=reason)]
    )


@dataclass
class FakeEngine:
    """vLLM's client as far as the routes use it.

    Attributes:
        answer: what a request comes to; an exception is raised, None ends it early.
        gate: holds requests back while it is not set.
        asked: every request, in order.
        running: ids of the unfinished ones.
        aborted: ids of those that were cancelled.
    """

    answer: Callable[[Asked], Any] = finished
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Asked] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    errored: bool = False
    utilities: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()
        self.engine_core = self

    async def generate(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        *,
        trace_headers: Mapping[str, str] | None,
        priority: int,
        data_parallel_rank: int | None,
        lora_request: Any = None,
    ) -> AsyncIterator[Any]:
        asked = Asked(
            tokens=list(prompt["prompt_token_ids"]),
            params=params,
            request_id=request_id,
            cache_salt=prompt.get("cache_salt"),
            priority=priority,
            rank=data_parallel_rank,
            trace_headers=trace_headers,
            lora=lora_request,
        )
        self.asked.append(asked)
        self.running.add(request_id)
        try:
            await self.gate.wait()
            answer = self.answer(asked)
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            yield answer

    async def call_utility_async(self, method: str, *arguments: Any) -> Any:
        answer = self.utilities[method]
        if isinstance(answer, BaseException):
            raise answer
        return answer(*arguments) if callable(answer) else answer


def serve(engine: FakeEngine, **changes: Any) -> FastAPI:
    """vLLM's app with our routes, in front of `engine`."""
    settings: dict[str, Any] = {
        "engine": engine,
        "encoders": Encoders(Letters()),
        "models": ("fake", "other-name"),
        "vocabulary": VOCABULARY,
        "prompt_limit": LIMIT,
        "max_labels": 20,
        "route": Route(ours=True, connector=False),
        "unsupported": None,
        "ranks": 2,
        "startup": {},
        "load": Load(rows=8),
    }
    app = FastAPI()
    app.include_router(router)
    app.include_router(rerank.router)
    app.state.radixflow = Server(**settings | changes)
    return app


class Client:
    """One HTTP exchange over ASGI, in steps: read on, wait, go away.

    Attributes:
        status: the answer's status, 0 before it began.
        headers: the answer's headers.
        body: what has come so far.
    """

    def __init__(
        self,
        app: FastAPI,
        method: str = "POST",
        path: str = "/v1/branches",
        *,
        body: Any = None,
        headers: dict[str, str] | None = None,
        reading: bool = True,
    ) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self._chunks = [raw[at : at + 2**20] for at in range(0, len(raw) or 1, 2**20)]
        self._gone = asyncio.Event()
        self.reading = asyncio.Event()
        if reading:
            self.reading.set()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in (JSON | (headers or {})).items()
            ],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._chunks:
            chunk = self._chunks.pop(0)
            return {
                "type": "http.request",
                "body": chunk,
                "more_body": bool(self._chunks),
            }
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode(): value.decode() for name, value in message["headers"]
            }
        else:
            await self.reading.wait()
            self.body += message["body"]

    def go_away(self) -> None:
        """Close the connection."""
        self._gone.set()
        self.reading.set()

    async def __call__(self) -> Client:
        """Wait for the end of the answer."""
        async with asyncio.timeout(20):
            await self.task
        return self

    @property
    def events(self) -> list[dict[str, Any]]:
        assert not self.body or self.body.endswith(b"\n")
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


async def until(condition: Callable[[], object]) -> None:
    """Let every other task run until `condition` holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (no time passes here, only turns)
            await asyncio.sleep(0)


def group(*branches: str, **fields: Any) -> dict[str, Any]:
    """A request's body: a document of 32 letters, some branches."""
    texts: Sequence[str] = branches or (" Oslo", " Rome")
    return {
        "document": {"text": "Anna lives in Oslo, Tom in Rome."},
        "branches": [{"text": text} for text in texts],
    } | fields
