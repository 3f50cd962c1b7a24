"""`RadixFlowClient`: the door of the house, and the story of one call.

    plan -> requests -> events -> state -> result

Each step is a room of its own; this one only puts them in order, and must not contain
their decisions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType

import anyio

from radixflow_sdk import _assembly
from radixflow_sdk._config import RetryPolicy, Timeouts, check_number, read_settings
from radixflow_sdk._dispatch import Dispatcher
from radixflow_sdk._plan import make_plan
from radixflow_sdk._prompt import Template
from radixflow_sdk._transport import (
    HTTPClient,
    HTTPTransport,
    RetryingTransport,
    Transport,
)
from radixflow_sdk.exceptions import APIError
from radixflow_sdk.types import (
    BranchEvent,
    BranchResult,
    Document,
    Label,
    Normalize,
    Option,
    Plan,
    ScoredCandidate,
    ScoreResult,
    Scoring,
)


class RadixFlowClient:
    """Scores candidates on a RadixFlow server, under asyncio or trio.

    Use it as ``async with RadixFlowClient(...) as client``, or call `aclose`. One
    client serves any number of concurrent calls in one event loop.

    Args:
        base_url: Where the server is, with or without ``/v1``. None: the environment's
            ``RADIXFLOW_BASE_URL``, else ``http://127.0.0.1:8000``.
        api_key: The server's key. None: the environment's ``RADIXFLOW_API_KEY``, if
            any. It shows in no repr, log or error.
        model: A served model. None: the server's first, asked for once.
        timeout: Limits in seconds; a plain number is `Timeouts.total`.
        retry: How often, and how patiently, a group is sent again.
        max_connections: Groups under way at a time; further calls wait for their turn.
        http_client: An ``httpx.AsyncClient`` to use as it is (proxies, certificates);
            it stays open, and its own timeouts hold in place of ``connect`` and
            ``idle``.
        transport: Carries the requests in place of HTTP, see `radixflow_sdk.testing`.
        cache_salt: Isolates the server's prefix cache, 1 to 256 characters.

    Raises:
        InvalidInputError: A setting is not usable.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: Timeouts | float | None = None,
        retry: RetryPolicy | None = None,
        max_connections: int = 16,
        http_client: HTTPClient | None = None,
        transport: Transport | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self._settings = read_settings(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            retry=retry,
            max_connections=max_connections,
        )
        inner = transport or HTTPTransport(self._settings, http_client=http_client)
        self._dispatcher = Dispatcher(
            RetryingTransport(inner, self._settings.retry), concurrency=max_connections
        )
        self._model = model
        self._asking = anyio.Lock()
        self._cache_salt = cache_salt

    def __repr__(self) -> str:
        return f"<RadixFlowClient {self._settings.base_url} model={self._model!r}>"

    async def __aenter__(self) -> RadixFlowClient:
        self._dispatcher.check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client; calls under way end with `ClientClosedError`."""
        await self._dispatcher.aclose()

    async def score_candidates(
        self,
        document: Document,
        options: Sequence[Option],
        *,
        question: str | None = None,
        scoring: Scoring = "likelihood",
        normalize: Normalize = "sum",
        template: Template | None = None,
        labels: Sequence[Label] | None = None,
        timeout: float | None = None,
        group_id: str | None = None,
        cache_salt: str | None = None,
    ) -> ScoreResult:
        """Given this document: which of these options?

        With ``scoring="likelihood"`` an option's score is the exact log-probability of
        its tokens after document and question. With ``scoring="label"`` the model is
        asked about each option, and the score is the log-probability of the first label
        (``" yes"``). Equal options are scored once and flagged.

        Args:
            document: Text, token ids, or chat messages (``role`` and ``content``).
            options: 1 to 4,096 texts or lists of token ids.
            question: Asked after the document; empty is the same as None. With token
                ids the question is encoded by itself and joined.
            scoring: What is read from the model.
            normalize: ``sum`` of log-probabilities; ``mean`` a token; ``char`` a
                character of the option (lm-evaluation-harness ``acc_norm``); ``byte`` a
                UTF-8 byte (``acc_bytes``). With label scoring: ``sum`` is log P(first
                label), ``label`` is log (P(first label) / sum of P(label)).
            template: The words around question and option; None: the defaults.
            labels: For label scoring, in place of the template's: texts of exactly one
                token, or token ids.
            timeout: Seconds for this group, in place of `Timeouts.total`.
            group_id: An id for log and metrics, 1 to 128 of ``A-Z a-z 0-9 . _ : -``.
            cache_salt: In place of the client's.

        Returns:
            The ranked candidates, with everything that was measured on the way.

        Raises:
            InvalidInputError: An argument is not usable; nothing was sent.
            APIError: The group failed before any branch was in.
            PartialGroupError: Some branches are in and the rest failed.
            ClientClosedError: The client was closed.
        """
        plan = self._plan(
            document,
            options,
            question=question,
            scoring=scoring,
            normalize=normalize,
            template=template,
            labels=labels,
            group_id=group_id,
            cache_salt=cache_salt,
        )
        return await self._run(plan, self._total(timeout))

    def stream_candidates(
        self,
        document: Document,
        options: Sequence[Option],
        *,
        question: str | None = None,
        scoring: Scoring = "likelihood",
        normalize: Normalize = "sum",
        template: Template | None = None,
        labels: Sequence[Label] | None = None,
        timeout: float | None = None,
        group_id: str | None = None,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[ScoredCandidate, None]:
        """Yield each candidate as soon as its branch is in, in any order.

        A `ScoredCandidate` has no probability and no rank: those need all of them. To
        stop early, close the iterator (``contextlib.aclosing``); the server then aborts
        what is unfinished. The arguments are those of `score_candidates`.

        Raises:
            InvalidInputError: An argument is not usable; raised at once, nothing was
                sent.
            APIError: The group failed before any branch was in.
            PartialGroupError: After the last candidate, where some branches failed.
            ClientClosedError: The client was closed.
        """
        plan = self._plan(
            document,
            options,
            question=question,
            scoring=scoring,
            normalize=normalize,
            template=template,
            labels=labels,
            group_id=group_id,
            cache_salt=cache_salt,
        )
        return self._stream(plan, self._total(timeout))

    # --- the story -------------------------------------------------------------------

    async def _run(self, plan: Plan, total: float | None) -> ScoreResult:
        began = anyio.current_time()
        state = _assembly.begin(plan)
        async with aclosing(self._states(state, total)) as states:
            async for _, later in states:
                state = later
        return _assembly.finish(state, elapsed=anyio.current_time() - began)

    async def _stream(
        self, plan: Plan, total: float | None
    ) -> AsyncGenerator[ScoredCandidate, None]:
        state = _assembly.begin(plan)
        async with aclosing(self._states(state, total)) as states:
            async for event, later in states:
                state = later
                if isinstance(event, BranchResult):
                    for candidate in _assembly.candidates_of(plan, event):
                        yield candidate
        _assembly.finish(state, elapsed=0.0)

    async def _states(
        self, state: _assembly.GroupState, total: float | None
    ) -> AsyncGenerator[tuple[BranchEvent, _assembly.GroupState], None]:
        """Each event with the state after it; an error keeps what was in before it."""
        request = state.plan.request
        try:
            request = replace(
                request, model=request.model or await self._ask_model(total)
            )
            events = self._dispatcher.events(request, total=total)
            async with aclosing(events):
                async for event in events:
                    state = _assembly.fold(state, event)
                    yield event, state
        except APIError as error:
            error.group_id = error.group_id or request.group_id
            if state.any_finished:
                raise _assembly.partial(state, error) from error
            raise

    async def _ask_model(self, total: float | None) -> str:
        async with self._asking:
            if self._model is None:
                self._model = (await self._dispatcher.models(total=total))[0]
            return self._model

    def _plan(
        self,
        document: Document,
        options: Sequence[Option],
        *,
        question: str | None,
        scoring: Scoring,
        normalize: Normalize,
        template: Template | None,
        labels: Sequence[Label] | None,
        group_id: str | None,
        cache_salt: str | None,
    ) -> Plan:
        self._dispatcher.check_open()
        return make_plan(
            document,
            options,
            question=question,
            scoring=scoring,
            normalize=normalize,
            template=template,
            labels=labels,
            model=self._model,
            group_id=group_id,
            cache_salt=self._cache_salt if cache_salt is None else cache_salt,
        )

    def _total(self, timeout: float | None) -> float | None:
        if timeout is None:
            return self._settings.timeouts.total
        check_number("timeout", timeout, least=0.0, strictly=True)
        return timeout
