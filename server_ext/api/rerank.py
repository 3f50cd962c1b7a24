"""``POST /rerank``, ``/v1/rerank`` and ``/v2/rerank``: Jina's and Cohere's shape.

A rerank request is one group with label scoring: instruction and query are its
document, every passage is a branch, and a passage's relevance is the probability of a
yes among yes and no. No passage is ever cut: one that does not fit is refused.
"""

from __future__ import annotations

import functools
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from server_ext.api.body import read_body
from server_ext.api.group import Group
from server_ext.api.progress import Groups
from server_ext.api.protocol import MAX_BRANCHES, RequestRefused, dotted, parse_request
from server_ext.api.router import BODY_SECONDS, MAX_BODY, make_group, while_connected
from server_ext.api.server import Server

__all__ = ["TEMPLATES", "router"]

INSTRUCTION = (
    "Given a web search query, retrieve relevant passages that answer the query"
)

router = APIRouter(tags=["radixflow"])


@dataclass(frozen=True, slots=True)
class Template:
    """The words around query and passage, as `radixflow_sdk` has them.

    Attributes:
        before: stands first.
        after: stands behind a passage.
        labels: yes and no.
    """

    before: str
    after: str
    labels: tuple[str, str]

    def group(self, request: RerankRequest) -> dict[str, Any]:
        """The group that a request asks for, as `/v1/branches` takes it."""
        head = f"<Instruct>: {request.instruction}\n<Query>: {request.query}"
        return {
            "model": request.model,
            "document": {"text": f"{self.before}{head}\n<Document>:"},
            "branches": [{"text": f" {text}{self.after}"} for text in request.texts],
            "scoring": "label",
            "labels": list(self.labels),
        }


TEMPLATES = {
    "qwen3-reranker": Template(
        "<|im_start|>system\nJudge whether the Document meets the requirements based "
        "on the Query and the Instruct provided. Note that the answer can only be "
        '"yes" or "no".<|im_end|>\n<|im_start|>user\n',
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ("yes", "no"),
    ),
    "plain": Template(
        "Does the document answer the query? Answer yes or no.\n\n",
        "\n\nAnswer:",
        (" yes", " no"),
    ),
}
"""``qwen3-reranker`` is the published prompt of those models."""


class _Text(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    text: Annotated[str, Field(min_length=1)]


class RerankRequest(BaseModel):
    """The body, as Jina's and Cohere's clients write it.

    Limits on a passage's length (``max_tokens_per_doc``, ``max_chunks_per_doc``) are
    accepted and have no effect: a passage is scored whole.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[Annotated[str, Field(min_length=1)] | _Text],
        Field(min_length=1, max_length=MAX_BRANCHES),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    instruction: str = INSTRUCTION

    @property
    def texts(self) -> list[str]:
        """The passages."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


def _in_their_shape(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Answer an error with the keys that these clients read."""

    @functools.wraps(handler)
    async def answer(http: Request) -> Response:
        try:
            return await handler(http)
        except RequestRefused as refusal:
            said = {"message": str(refusal), "detail": str(refusal)}
            return JSONResponse({**said, **refusal.body()}, refusal.status)

    return answer


@router.post("/rerank", response_model=None)
@router.post("/v1/rerank", response_model=None)
@router.post("/v2/rerank", response_model=None)
@_in_their_shape
async def rerank(http: Request) -> Response:
    """Order documents by their relevance to a query."""
    server: Server = http.app.state.radixflow
    version = "2" if http.url.path.endswith("/v2/rerank") else "1"
    if not http.url.path.endswith(("/v1/rerank", "/v2/rerank")) and _has_key(http):
        raise RequestRefused(
            404,
            "not_found",
            "vLLM's API key does not guard /rerank: use /v1/rerank or /v2/rerank",
        )
    body = await read_body(http, max_bytes=MAX_BODY, seconds=BODY_SECONDS)
    request = _parse(body)
    served = server.models[0] if request.model is None else request.model
    name = "qwen3-reranker" if "qwen3-reranker" in served.lower() else "plain"
    asked = json.dumps(TEMPLATES[name].group(request)).encode()
    group = await make_group(
        server, parse_request(asked, limit=server.prompt_limit), http
    )
    events = await while_connected(http, lambda: _run(group, server.groups))
    answer = _answer(request, group.model, events, version)
    return JSONResponse(answer, headers={"X-Request-ID": group.request_id})


def _has_key(http: Request) -> bool:
    """Whether vLLM's app was made with an API key; its middleware reads paths."""
    args = getattr(http.app.state, "args", None)
    return bool(getattr(args, "api_key", None) or os.environ.get("VLLM_API_KEY"))


def _parse(body: bytes) -> RerankRequest:
    try:
        return RerankRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = dotted(first["loc"])
        status = 400 if first["type"] == "json_invalid" else 422
        code = "invalid_json" if status == 400 else "invalid_request"
        raise RequestRefused(
            status, code, f"{field or 'body'}: {first['msg']}", field or None
        ) from None


async def _run(group: Group, groups: Groups) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []

    async def keep(event: dict[str, Any]) -> None:
        events.append(event)

    with groups.under_way(group):
        await group.run(keep)
    return events


def _answer(
    request: RerankRequest, model: str, events: list[dict[str, Any]], version: str
) -> dict[str, Any]:
    """What the events of a group come to.

    Raises:
        RequestRefused: A passage has no score.
    """
    scores: dict[int, float] = {}
    for event in events:
        if event["event"] == "branch.failed":
            error = event["error"]
            raise RequestRefused(
                503 if error["retryable"] else 500,
                error["code"],
                f"documents.{event['index']}: {error['message']}",
                f"documents.{event['index']}",
            )
        if event["event"] == "branch.completed":
            yes, no = (label["logprob"] for label in event["labels"])
            scores[event["index"]] = _share(yes, no)
    order = sorted(scores, key=lambda index: (-scores[index], index))[: request.top_n]
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": scores[index]} for index in order
    ]
    # Jina's and Cohere's first API give the documents back unless told not to.
    if request.return_documents or (
        request.return_documents is None and version == "1"
    ):
        for result in results:
            result["document"] = {"text": request.texts[result["index"]]}
    tokens = events[-1]["usage"]["prompt_tokens"]
    return {
        "id": f"rerank-{secrets.token_hex(8)}",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens, "output_tokens": 0},
        },
    }


def _share(yes: float, no: float) -> float:
    """The probability of the first of two labels, of which each may be -inf."""
    top = max(yes, no)
    if top == -math.inf:
        return 0.5
    first, second = math.exp(yes - top), math.exp(no - top)
    return first / (first + second)
