"""A web app with one client: answers, a stream of answers, timeouts, health.

    pip install fastapi uvicorn
    radixflow serve demo &
    uvicorn examples.app:app --port 8080
    curl localhost:8080/answer -H 'Content-Type: application/json' \
        -d '{"document": "Anna lives in Oslo.", "question": "Where?",
             "options": ["Rome", "Oslo"]}'

The client is made when the app starts and closed when it ends: every request shares
its connections and its limit of groups under way. A request whose client goes away is
cancelled, and with it its branches on the server. `tests/docs/test_app.py` tests this
app against `radixflow_sdk.testing.FakeServer`, without a model.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from radixflow_sdk import (
    APIError,
    APITimeoutError,
    InvalidInputError,
    RadixFlowClient,
    RadixFlowError,
)

SECONDS = 20.0
"""For a whole answer; what is slower is no use to this app."""


class Asked(BaseModel):
    """A question with its candidate answers."""

    document: Annotated[str, Field(max_length=100_000)]
    question: str
    options: Annotated[list[str], Field(min_length=2, max_length=64)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the life of the app; RADIXFLOW_BASE_URL says where to."""
    async with RadixFlowClient(timeout=SECONDS) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RadixFlowError)
async def failed(request: Request, error: RadixFlowError) -> Response:
    """One sentence and a status that tells the caller whose fault it is."""
    status = 502
    if isinstance(error, InvalidInputError):
        status = 422
    elif isinstance(error, APITimeoutError):
        status = 504
    return JSONResponse({"error": str(error)}, status)


@app.post("/answer")
async def answer(asked: Asked, request: Request) -> dict[str, object]:
    """The best option, with the probability of each."""
    client: RadixFlowClient = request.app.state.client
    result = await client.score_candidates(
        asked.document, asked.options, question=asked.question
    )
    return {
        "best": result.best.text,
        "probabilities": {c.text: c.probability for c in result.candidates},
    }


@app.post("/stream")
async def stream(asked: Asked, request: Request) -> StreamingResponse:
    """A line of JSON for each option as soon as its score is in."""
    client: RadixFlowClient = request.app.state.client
    candidates = client.stream_candidates(
        asked.document, asked.options, question=asked.question
    )

    async def lines() -> AsyncIterator[str]:
        try:
            async for one in candidates:
                yield json.dumps({"option": one.text, "score": one.score}) + "\n"
        except APIError as error:  # the status is sent already
            yield json.dumps({"error": str(error)}) + "\n"
        finally:
            await candidates.aclose()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@app.get("/health")
async def health(request: Request) -> Response:
    """Whether the model's server answers: 200, else 503."""
    client: RadixFlowClient = request.app.state.client
    try:
        models = await client.with_options(timeout=2.0).models()
    except RadixFlowError as error:
        return JSONResponse({"ok": False, "error": str(error)}, 503)
    return JSONResponse({"ok": True, "models": models})
