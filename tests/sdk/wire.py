"""A server's lines, written by hand, and an httpx client that answers with them."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from radixflow_sdk import RadixFlowClient, RetryPolicy, ScoreRequest
from radixflow_sdk._messages import Plan
from radixflow_sdk._plan import make_plan

Handler = Callable[[httpx.Request], httpx.Response]
USAGE = {"prompt_tokens": 12, "cached_tokens": 8, "computed_tokens": 4}


def started(branches: int = 2, group: str = "g", **change: Any) -> dict[str, Any]:
    return {
        "event": "group.started",
        "v": 1,
        "group_id": group,
        "request_id": "req-1",
        "model": "m",
        "branches": branches,
        "document_tokens": 8,
        "shared_tokens": 8,
        **change,
    }


def completed(index: int, *logprobs: float, **change: Any) -> dict[str, Any]:
    values = logprobs or (-1.0,)
    return {
        "event": "branch.completed",
        "index": index,
        "request_id": f"req-1-{index}",
        "token_ids": list(range(len(values))),
        "token_logprobs": list(values),
        "labels": None,
        "usage": USAGE,
        "rounds": None,
        **change,
    }


def failed(
    index: int, *, retryable: bool, code: str = "engine_error"
) -> dict[str, Any]:
    error = {"code": code, "message": "it broke", "retryable": retryable}
    return {
        "event": "branch.failed",
        "index": index,
        "request_id": f"req-1-{index}",
        "error": error,
    }


def ended(done: int = 2, bad: int = 0, **change: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 12 * done,
        "cached_tokens": 8 * done,
        "computed_tokens": 4 * done,
        "rounds": 3,
    }
    return {
        "event": "group.completed",
        "completed": done,
        "failed": bad,
        "usage": usage,
        **change,
    }


def body(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


GOOD = body(started(), completed(1, -2.0), completed(0, -0.25, -0.25), ended())


class Chunks(httpx.AsyncByteStream):
    """A body in pieces, which may end in an error."""

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.closed = True


class Server:
    """Answers one scripted thing a request, and keeps what it was sent."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def answer(*events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, content=body(*events))


def client(
    handler: Handler, *, retry: RetryPolicy | None = None, **options: Any
) -> RadixFlowClient:
    """A client of the server whose retries do not wait."""
    options.setdefault("model", "m")
    options.setdefault("route", "branches")
    return RadixFlowClient(
        "http://test",
        http_client=httpx.AsyncClient(transport=httpx.MockTransport(handler)),
        retry=retry or RetryPolicy(attempts=3, initial=0.0),
        **options,
    )


def plan(options: Sequence[Any] = ("Oslo", "Rome"), **choices: Any) -> Plan:
    choices = {"group_id": "g", "question": "Where?", "model": "m", **choices}
    document, model = (
        choices.pop("document", "Anna lives in Oslo."),
        choices.pop("model"),
    )
    return make_plan(ScoreRequest(document, options, **choices), model=model)
