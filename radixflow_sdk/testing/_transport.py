"""`FakeTransport`: answers inside the client, without a network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from radixflow_sdk._messages import (
    Branch,
    BranchEvent,
    BranchFailed,
    BranchResult,
    BranchText,
    GroupCompleted,
    GroupRequest,
    GroupStarted,
    Sampling,
)
from radixflow_sdk._results import GroupUsage, Usage
from radixflow_sdk.exceptions import BranchError, RadixFlowError
from radixflow_sdk.testing._scores import Scores, share, token
from radixflow_sdk.testing._texts import Texts

_USAGE = Usage(prompt_tokens=10, cached_tokens=8, computed_tokens=2)


class FakeTransport:
    """Answers from a table, and fails on demand.

    ::

        transport = FakeTransport({"Oslo": -0.1, "Rome": -4.0})
        async with RadixFlowClient(transport=transport) as client:
            result = await client.score_candidates(
                "Anna lives in Oslo.", ["Oslo", "Rome"]
            )

    Args:
        scores: For each option, the log-probability of its one token (with label
            scoring: of the first label), or a `BranchError` that its branch fails with.
            A token of probability 0.5 or more is the most likely (`is_greedy`).
            An option is found by its text, by the text of its branch (with a custom
            template), or by its token ids as a tuple.
        default: For options that are not in the table.
        errors: Raised in this order, one a request, before the first answer.
        model: The name of the served model.
        texts: For each branch of `generate_branches` the generated text, by its text or
            its token ids as a tuple; other branches get made-up words. A token is a
            word.

    Attributes:
        requests: The requests, in order.
        closed: Whether the client has closed the transport.
    """

    def __init__(
        self,
        scores: Mapping[str | tuple[int, ...], float | BranchError] | None = None,
        *,
        default: float = -1.0,
        errors: Sequence[RadixFlowError] = (),
        model: str = "fake",
        texts: Mapping[str | tuple[int, ...], str] | None = None,
    ) -> None:
        self.requests: list[GroupRequest] = []
        self.closed = False
        self._scores = Scores(scores, default=default)
        self._texts = Texts(texts)
        self._errors = list(errors)
        self._model = model

    async def models(self) -> tuple[str, ...]:
        """The one model."""
        return (self._model,)

    async def stats(self) -> Mapping[str, Any]:
        """Statistics of a server that runs no scheduler of ours."""
        return {"v": 1, "version": "fake", "scheduler": "fake"}

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Answer one request from the table.

        Raises:
            RadixFlowError: The next of ``errors``.
        """
        self.requests.append(request)
        if self._errors:
            raise self._errors.pop(0)
        sampling = request.sampling
        yield GroupStarted(
            group_id=request.group_id,
            request_id=request.request_id,
            model=request.model or self._model,
            document_tokens=8,
            shared_tokens=8,
            route="branches" if sampling is None else "completions",
        )
        for branch in request.branches:
            if sampling is None:
                yield self._answer(branch, request)
            else:
                yield self._text(branch, request, sampling)
        count = len(request.branches)
        yield GroupCompleted(
            usage=GroupUsage(
                prompt_tokens=_USAGE.prompt_tokens * count,
                cached_tokens=_USAGE.cached_tokens * count,
                computed_tokens=_USAGE.computed_tokens * count,
                rounds=None,
            )
        )

    async def aclose(self) -> None:
        """Record that the client closed it."""
        self.closed = True

    def _text(
        self, branch: Branch, request: GroupRequest, sampling: Sampling
    ) -> BranchText:
        written = self._texts.after(branch.content, sampling.max_tokens)
        return BranchText(
            index=branch.index,
            request_id=f"{request.request_id}-{branch.index}",
            text=written.text,
            finish_reason=written.finish_reason,
            prompt_tokens=_USAGE.prompt_tokens,
            generated_tokens=written.tokens,
        )

    def _answer(self, branch: Branch, request: GroupRequest) -> BranchEvent:
        score = self._scores.of(branch.content)
        if isinstance(score, BranchError):
            return BranchFailed(
                index=branch.index,
                request_id=score.request_id or f"{request.request_id}-{branch.index}",
                code=score.code or "engine_error",
                message=str(score),
                retryable=score.retryable,
            )
        labels = None if request.labels is None else share(score, request.labels)
        return BranchResult(
            index=branch.index,
            request_id=f"{request.request_id}-{branch.index}",
            tokens=(token(score, labels),),
            labels=labels,
            usage=_USAGE,
        )
