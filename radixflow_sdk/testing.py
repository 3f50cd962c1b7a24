"""`FakeTransport`: a server without a server, for the tests of apps that use the SDK.

    transport = FakeTransport({"Oslo": -0.1, "Rome": -4.0})
    async with RadixFlowClient(transport=transport) as client:
        result = await client.score_candidates("Anna lives in Oslo.", ["Oslo", "Rome"])

Planning, retries, folding and ranking are the real ones. This room must not import a
test framework.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence

from radixflow_sdk._prompt import LABEL, LIKELIHOOD
from radixflow_sdk.exceptions import BranchError, RadixFlowError
from radixflow_sdk.types import (
    Branch,
    BranchEvent,
    BranchFailed,
    BranchRequest,
    BranchResult,
    GroupCompleted,
    GroupStarted,
    GroupUsage,
    Label,
    LabelScore,
    TokenScore,
    Usage,
)

_USAGE = Usage(prompt_tokens=10, cached_tokens=8, computed_tokens=2)


class FakeTransport:
    """Answers from a table, and fails on demand.

    Args:
        scores: For each option, the log-probability of its one token (with label
            scoring: of the first label), or a `BranchError` that its branch fails with.
            An option is found by its text, with a template of your own by the text of
            the branch, and by its token ids as a tuple.
        default: For options that are not in the table.
        errors: Raised in this order, one a request, before the first answer.
        model: The name of the served model.

    Attributes:
        requests: What was sent, in order.
        closed: Whether the client has closed the transport.
    """

    def __init__(
        self,
        scores: Mapping[str | tuple[int, ...], float | BranchError] | None = None,
        *,
        default: float = -1.0,
        errors: Sequence[RadixFlowError] = (),
        model: str = "fake",
    ) -> None:
        self.requests: list[BranchRequest] = []
        self.closed = False
        self._scores = dict(scores or {})
        self._default = default
        self._errors = list(errors)
        self._model = model

    async def models(self) -> tuple[str, ...]:
        """The one model."""
        return (self._model,)

    async def stream(self, request: BranchRequest) -> AsyncGenerator[BranchEvent, None]:
        """Answer one request from the table.

        Raises:
            RadixFlowError: The next of ``errors``.
        """
        self.requests.append(request)
        if self._errors:
            raise self._errors.pop(0)
        yield GroupStarted(
            group_id=request.group_id,
            request_id=request.request_id,
            model=request.model or self._model,
            document_tokens=8,
            shared_tokens=8,
        )
        for branch in request.branches:
            yield self._answer(branch, request)
        count = len(request.branches)
        yield GroupCompleted(
            usage=GroupUsage(
                prompt_tokens=_USAGE.prompt_tokens * count,
                cached_tokens=_USAGE.cached_tokens * count,
                computed_tokens=_USAGE.computed_tokens * count,
                producer_tokens=0,
                rounds=None,
            )
        )

    async def aclose(self) -> None:
        """Note that the client has closed it."""
        self.closed = True

    def _answer(self, branch: Branch, request: BranchRequest) -> BranchEvent:
        score = self._score(branch.content)
        if isinstance(score, BranchError):
            return BranchFailed(
                index=branch.index,
                request_id=score.request_id or f"{request.request_id}-{branch.index}",
                code=score.code or "engine_error",
                message=str(score),
                retryable=score.retryable,
            )
        return BranchResult(
            index=branch.index,
            tokens=(TokenScore(token_id=0, logprob=score),),
            labels=None if request.labels is None else _share(score, request.labels),
            usage=_USAGE,
        )

    def _score(self, content: str | tuple[int, ...]) -> float | BranchError:
        if not isinstance(content, str):
            return self._scores.get(content, self._default)
        inner = content.removeprefix(LABEL.before_option).removesuffix(
            LABEL.after_option
        )
        keys = (content, inner, content.removeprefix(LIKELIHOOD.before_option))
        found = next((key for key in keys if key in self._scores), None)
        return self._default if found is None else self._scores[found]


def _share(first: float, labels: tuple[Label, ...]) -> tuple[LabelScore, ...]:
    """The first label has its log-probability; the others share what is left evenly."""
    rest = math.log(max(-math.expm1(first), 1e-30) / max(len(labels) - 1, 1))
    return tuple(
        LabelScore(label=label, token_id=index, logprob=rest if index else first)
        for index, label in enumerate(labels)
    )
