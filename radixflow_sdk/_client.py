"""`RadixFlowClient`: the steps of one call, in order.

    plan -> requests -> events -> state -> result

Each step is a module of its own.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

import anyio

from radixflow_sdk import _assembly, _letters, _rerank
from radixflow_sdk._assembly import Finish, finish, finish_texts
from radixflow_sdk._config import CallSettings, RetryPolicy, Timeouts, read_settings
from radixflow_sdk._dispatch import Dispatcher
from radixflow_sdk._events import ClientEvent, GroupEnded, RawResponse
from radixflow_sdk._hints import session_id
from radixflow_sdk._many import Outcomes, gathered
from radixflow_sdk._messages import BranchEvent, BranchResult, GroupRequest, Plan
from radixflow_sdk._plan import make_generation_plan, make_plan, unconditional_plan
from radixflow_sdk._requests import (
    Document,
    GenerationRequest,
    Partial,
    RerankMode,
    RerankTemplate,
    RouteChoice,
    ScoreRequest,
)
from radixflow_sdk._results import (
    GenerationResult,
    LetterResult,
    Outcome,
    Progress,
    RequestT,
    RerankResult,
    ResultT,
    ScoredCandidate,
    ScoreResult,
)
from radixflow_sdk._tracing import GroupSpan, Tracing
from radixflow_sdk._transport import HTTPClient, Transport, connect
from radixflow_sdk._unconditional import Unconditional
from radixflow_sdk._validate import (
    check_callable,
    check_choice,
    check_count,
    check_kind,
    check_number,
    refuse,
)
from radixflow_sdk.exceptions import APIError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")
E = TypeVar("E")

AnyRequest: TypeAlias = ScoreRequest | GenerationRequest

logger = logging.getLogger("radixflow")


def _arguments_of(
    make: Callable[P, R],
) -> Callable[[Callable[[C, R], T]], Callable[Concatenate[C, P], T]]:
    """Let a method that takes a request be called with the request's own fields."""

    def decorate(method: Callable[[C, R], T]) -> Callable[Concatenate[C, P], T]:
        @functools.wraps(method)
        def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return method(self, make(*args, **kwargs))

        own, fields = inspect.signature(method), inspect.signature(make)
        parameters = [own.parameters["self"], *fields.parameters.values()]
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate


class RadixFlowClient:
    """Scores candidates on a RadixFlow server, under asyncio or trio.

    Use it as ``async with RadixFlowClient(...) as client``, or call `aclose`. One
    client serves any number of concurrent calls in one event loop.

    Args:
        base_url: The server's URL, with or without ``/v1``. With several URLs every
            document has its own server (rendezvous hashing of ``X-Session-ID``), and
            uses the next one while that server cannot be reached. None: the
            environment's ``RADIXFLOW_BASE_URL``, else ``http://127.0.0.1:8000``.
        api_key: The server's key. None: the environment's ``RADIXFLOW_API_KEY``, if
            set. It never appears in a repr, a log or an error.
        model: A served model. None: the server's first, requested once.
        timeout: Limits in seconds; a plain number is `Timeouts.total`.
        retry: Number of attempts for a group, and the waits between them.
        max_connections: Maximum concurrent groups; further calls wait.
        http_client: An ``httpx.AsyncClient`` to use as it is (proxies, certificates).
            It stays open, and its own timeouts replace ``connect``, ``read`` and
            ``write``.
        transport: Replaces HTTP, see `radixflow_sdk.testing`.
        cache_salt: Isolates the server's prefix cache, 1 to 256 characters.
        route: ``branches`` uses the server's RadixFlow plug-in only; ``trie`` and
            ``echo`` work without it, see `ScoreResult.route`; ``auto`` uses the plug-in
            where the server has one.

    Raises:
        InvalidInputError: A setting is not usable.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: Timeouts | float | None = None,
        retry: RetryPolicy | None = None,
        max_connections: int = 16,
        http_client: HTTPClient | None = None,
        transport: Transport | None = None,
        cache_salt: str | None = None,
        route: RouteChoice = "auto",
    ) -> None:
        self._settings = read_settings(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            retry=retry,
            max_connections=max_connections,
            route=route,
        )
        if transport is not None and not hasattr(transport, "stream"):
            raise refuse("transport", transport, "give a Transport")
        self._dispatcher = Dispatcher(
            transport or connect(self._settings, http_client=http_client),
            concurrency=max_connections,
            pool=self._settings.timeouts.pool,
        )
        self._call_settings = CallSettings(
            model=model,
            cache_salt=cache_salt,
            total=self._settings.timeouts.total,
            retry=self._settings.retry,
        )
        self._model_lock: anyio.Lock | None = None
        self._model_error: APIError | None = None
        self._unconditional = Unconditional()

    def __repr__(self) -> str:
        urls = ",".join(self._settings.base_urls)
        return f"<RadixFlowClient {urls} model={self._call_settings.model!r}>"

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
        """Close the client; calls in progress end with `ClientClosedError`."""
        await self._dispatcher.aclose()

    def with_options(
        self,
        *,
        model: str | None = None,
        cache_salt: str | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        on_response: Callable[[RawResponse], None] | None = None,
        tracing: TracerProvider | bool | None = None,
    ) -> Self:
        """The same client with other settings; omitted ones stay unchanged.

        Connections, the limit on concurrent groups, and closing are shared.

        Args:
            model: A served model.
            cache_salt: Isolates the server's prefix cache.
            timeout: Replaces `Timeouts.total`.
            retry: Number of attempts for a group, and the waits between them.
            extra_headers: Sent with every group; they override the client's own.
            extra_body: Fields added to every group's body, such as ``priority``.
            on_event: Called with an event for every request and group, in the event
                loop, so it must be fast. An exception in it is logged and ignored.
            on_response: Called with every HTTP answer to a group once it has ended,
                also errors and broken ones: status, headers, request id, the bytes read.
                ``on_response=answers.append`` collects them. Must be fast.
            tracing: True, or a ``TracerProvider``: an OpenTelemetry span for each
                group with a child for each branch, and ``traceparent`` on every
                request; needs the extra ``otel``. False: none.

        Raises:
            InvalidInputError: An option is not usable.
        """
        given: dict[str, Any] = {
            "model": model,
            "cache_salt": cache_salt,
            "total": timeout,
            "retry": retry,
            "extra_headers": extra_headers,
            "extra_body": extra_body,
            "on_event": on_event,
            "on_response": on_response,
            "tracing": Tracing(tracing) if tracing else None,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if tracing is False:
            changes["tracing"] = None
        view = copy.copy(self)
        view._call_settings = replace(self._call_settings, **changes)
        return view

    @_arguments_of(ScoreRequest)
    async def score_candidates(self, request: ScoreRequest) -> ScoreResult:
        """Given this document: which of these options?

        With ``scoring="likelihood"`` an option's score is the exact log-probability of
        its tokens after document and question. With ``scoring="label"`` the model is
        asked about each option, and the score is the log-probability of the first label
        (``" yes"``). Equal options are scored once and flagged.

        Args:
            document: Text, token ids, chat messages (``role`` and ``content``), or 1 to
                62 parts: texts, or lists of token ids, concatenated. The end of a part
                is a likely branch point with other documents.
            options: 1 to 4,096 texts or lists of token ids.
            question: Text after the document; empty is the same as None. With token
                ids the question is encoded separately and appended.
            scoring: What is read from the model.
            normalize: ``sum`` of log-probabilities; ``mean`` a token; ``char`` a
                character of the option (lm-evaluation-harness ``acc_norm``); ``byte`` a
                UTF-8 byte (``acc_bytes``); ``pmi`` less the sum after ``unconditional``
                (``acc_mutual_info``). With label scoring: ``sum`` is log P(first
                label), ``label`` is log (P(first label) / sum of P(label)). The others
                are in `ScoredCandidate.scores`; `ScoreResult.under` ranks by them.
            template: The text around question and option; None: the defaults.
            labels: For label scoring, replace the template's: texts of exactly one
                token, or token ids.
            unconditional: For ``pmi``, the context of an option without the document,
                such as ``"Answer:"`` or the id of the end-of-text token. The client
                scores each option there once, in a group of its own that runs first
                with the same limits, and keeps 65,536 sums.
            timeout: Seconds for this group; replaces `Timeouts.total`.
            group_id: An id for log and metrics, 1 to 128 of ``A-Z a-z 0-9 . _ : -``.
            cache_salt: Replaces the client's.
            partial: ``raise`` a `PartialGroupError` when some branches failed, or
                ``return`` a result of the others, with `ScoreResult.failures`.

        Returns:
            The ranked candidates with their log-probabilities and usage.

        Raises:
            InvalidInputError: An argument is not usable; nothing was sent.
            APIError: The group failed before any branch finished.
            PartialGroupError: Some branches finished and the rest failed.
            ClientClosedError: The client was closed.
        """
        return await self.run(request)

    async def score_letters(
        self,
        document: Document,
        options: Sequence[str],
        *,
        question: str | None = None,
        rotate: bool = True,
        timeout: float | None = None,
        group_id: str | None = None,
        cache_salt: str | None = None,
    ) -> LetterResult:
        r"""List all options behind letters, and score the letters.

        One group with a branch for each order of the options, each ``"\nA. …\nB. …\n
        Answer:"`` with the letters as labels. With ``rotate`` every option appears once
        at every position, and the mean over the orders removes the model's bias toward
        a letter.

        Args:
            document: Text, token ids, a list of parts of either, or chat messages.
            options: 2 to 26 texts, each once.
            question: Text between document and options.
            rotate: Whether to list the options in every rotation, or as given.
            timeout: Seconds for this group; replaces `Timeouts.total`.
            group_id: An id for log and metrics.
            cache_salt: Replaces the client's.

        Raises:
            InvalidInputError: An argument is not usable; nothing was sent.
            APIError: The group failed before any branch finished.
            PartialGroupError: Some orders finished and the rest failed.
            ClientClosedError: The client was closed.
        """
        orders = _letters.read_orders(options, rotate=rotate)
        request = ScoreRequest(
            document=document,
            options=[_letters.listing(options, order) for order in orders],
            question=question,
            scoring="label",
            template=_letters.template(len(options)),
            timeout=timeout,
            group_id=group_id,
            cache_salt=cache_salt,
        )
        return _letters.choose(options, orders, await self.run(request))

    async def rerank(
        self,
        query: str,
        passages: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        mode: RerankMode = "label",
        template: RerankTemplate = "auto",
    ) -> RerankResult:
        """Order passages by their relevance to a query.

        Args:
            query: Text.
            passages: 1 to 4,096 texts.
            top_n: How many to return; None: all.
            instruction: What counts as relevant; None: the template's own.
            mode: ``label`` asks for a yes or a no behind each passage, in one group
                that computes instruction and query once. ``query_likelihood`` scores
                the query behind each passage, in a group for each: for passages that
                the server has in its cache.
            template: The words for ``label``. ``qwen3-reranker`` is the published
                prompt of those models; ``auto`` chooses by the model's name.

        Raises:
            InvalidInputError: An argument is not usable; nothing was sent.
            APIError: A group failed before any branch was in.
            PartialGroupError: Some passages are in and the rest failed.
            ClientClosedError: The client was closed.
        """
        texts = _rerank.read_passages(passages)
        _rerank.check(query, top_n=top_n, mode=mode, template=template)
        if mode == "label":
            model = self._call_settings.model or await self._first_model()
            request = _rerank.label_request(
                query,
                texts,
                instruction=instruction,
                template=_rerank.template_for(model, template),
            )
            groups: Sequence[ScoreResult] = [await self.run(request)]
        else:
            requests = [
                _rerank.likelihood_request(query, text, instruction=instruction)
                for text in texts
            ]
            outcomes = await self.score_all(requests, errors="raise")
            groups = [outcome.unwrap() for outcome in outcomes]
        return _rerank.ranked(texts, groups, top_n=top_n)

    @_arguments_of(ScoreRequest)
    def stream_candidates(
        self, request: ScoreRequest
    ) -> AsyncGenerator[ScoredCandidate, None]:
        """Yield each candidate as soon as its branch finishes, in any order.

        A `ScoredCandidate` has no probability and no rank: those need all candidates.
        To stop early, close the iterator (``contextlib.aclosing``); the server then
        aborts the unfinished branches. The arguments are those of `score_candidates`.

        Raises:
            InvalidInputError: An argument is not usable; raised at once, nothing was
                sent.
            APIError: The group failed before any branch finished.
            PartialGroupError: After the last candidate, where some branches failed.
                With ``partial="return"`` the iterator ends without an error.
            ClientClosedError: The client was closed.
        """
        return self._stream(request, self._make_plan(request))

    @_arguments_of(GenerationRequest)
    async def generate_branches(self, request: GenerationRequest) -> GenerationResult:
        """Generate text after each of many branches of one document.

        Each prompt is the document followed by a branch, verbatim; after chat messages
        a branch is the user's next message. The prompts share the document in the
        prefix cache of one replica. Missing branches are retried as for
        `score_candidates`. Any vLLM server works: this uses ``/v1/completions``, with
        hints for the RadixFlow scheduler.

        Args:
            document: Text, token ids, chat messages (``role`` and ``content``), or 1 to
                62 parts: texts, or lists of token ids, concatenated. The end of a part
                is a likely branch point with other documents.
            branches: 1 to 4,096 texts or lists of token ids. Equal ones are generated
                separately. Text next to token ids is encoded separately.
            max_tokens: Maximum number of tokens to generate after each branch.
            temperature: 0 selects the most likely token.
            top_p: Sample from the most likely tokens with that total probability.
            stop: At most 16 texts that end a branch; they are not part of its text.
            seed: For reproducible sampling; every branch uses the same seed.
            timeout: Seconds for this group; replaces `Timeouts.total`.
            group_id: An id for log and metrics, 1 to 128 of ``A-Z a-z 0-9 . _ : -``.
            cache_salt: Replaces the client's.
            partial: ``raise`` a `PartialGroupError` when some branches failed, or
                ``return`` a result of the others, with `GenerationResult.failures`.

        Raises:
            InvalidInputError: An argument is not usable; nothing was sent.
            APIError: The group failed before any branch finished.
            PartialGroupError: Some branches finished and the rest failed.
            ClientClosedError: The client was closed.
        """
        return await self.run(request)

    @overload
    async def run(self, request: ScoreRequest) -> ScoreResult: ...

    @overload
    async def run(self, request: GenerationRequest) -> GenerationResult: ...

    async def run(
        self, request: ScoreRequest | GenerationRequest
    ) -> ScoreResult | GenerationResult:
        """Run one group: `score_candidates` or `generate_branches`, as a value.

        Raises:
            InvalidInputError: The request is not usable; nothing was sent.
            APIError: The group failed before any branch finished.
            PartialGroupError: Some branches finished and the rest failed.
            ClientClosedError: The client was closed.
        """
        if isinstance(request, GenerationRequest):
            return await self._run_generation(request)
        return await self._run_scoring(request)

    def score_many(
        self,
        requests: Iterable[ScoreRequest] | AsyncIterable[ScoreRequest],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
        errors: Literal["return", "raise"] = "return",
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcomes[ScoreRequest, ScoreResult]:
        """Score many groups, a few at a time, and yield each as it ends.

        ::

            async with client.score_many(requests) as outcomes:
                async for outcome in outcomes:
                    ...

        Requests are read as needed. At most four times ``concurrency`` of them run or
        wait for the reader, so there can be any number. Leaving the block cancels the
        running groups, on the server too.

        Args:
            requests: Any iterable, asynchronous or not.
            concurrency: Maximum concurrent groups. None: ``max_connections``. Fewer run
                while the server is overloaded (429, 503).
            ordered: Whether outcomes arrive in the order of the requests; otherwise as
                they end.
            errors: ``return`` a failed group as an outcome like the others, or
                ``raise`` its error in its place.
            progress: Called with a `Progress` after each outcome.

        Raises:
            InvalidInputError: An argument is not usable.
            ClientClosedError: The client was closed.
        """
        return self._many(
            self._run_scoring, requests, concurrency, ordered, errors, progress
        )

    async def score_all(
        self,
        requests: Iterable[ScoreRequest] | AsyncIterable[ScoreRequest],
        *,
        concurrency: int | None = None,
        errors: Literal["return", "raise"] = "return",
        progress: Callable[[Progress], None] | None = None,
    ) -> tuple[Outcome[ScoreRequest, ScoreResult], ...]:
        """All outcomes of `score_many`, in the order of the requests.

        Raises:
            InvalidInputError: An argument is not usable.
            RadixFlowError: With ``errors="raise"``, the first error in that order.
            ClientClosedError: The client was closed.
        """
        return await gathered(
            self.score_many(
                requests,
                concurrency=concurrency,
                ordered=True,
                errors=errors,
                progress=progress,
            )
        )

    def generate_many(
        self,
        requests: Iterable[GenerationRequest] | AsyncIterable[GenerationRequest],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
        errors: Literal["return", "raise"] = "return",
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcomes[GenerationRequest, GenerationResult]:
        """`score_many` for generated text; the arguments are the same.

        Raises:
            InvalidInputError: An argument is not usable.
            ClientClosedError: The client was closed.
        """
        return self._many(
            self._run_generation, requests, concurrency, ordered, errors, progress
        )

    async def generate_all(
        self,
        requests: Iterable[GenerationRequest] | AsyncIterable[GenerationRequest],
        *,
        concurrency: int | None = None,
        errors: Literal["return", "raise"] = "return",
        progress: Callable[[Progress], None] | None = None,
    ) -> tuple[Outcome[GenerationRequest, GenerationResult], ...]:
        """All outcomes of `generate_many`, in the order of the requests.

        Raises:
            InvalidInputError: An argument is not usable.
            RadixFlowError: With ``errors="raise"``, the first error in that order.
            ClientClosedError: The client was closed.
        """
        return await gathered(
            self.generate_many(
                requests,
                concurrency=concurrency,
                ordered=True,
                errors=errors,
                progress=progress,
            )
        )

    async def models(self) -> tuple[str, ...]:
        """Names of the served models, the default one first.

        Raises:
            APIError: The request failed.
            ClientClosedError: The client was closed.
        """
        return await self._query(lambda transport: transport.models())

    async def stats(self) -> Mapping[str, Any]:
        """The scheduler's statistics: settings, policy, counters and gauges.

        The fields are those of ``GET /v1/radixflow/stats``. Of several servers, they
        are those of the first that can be reached.

        Raises:
            APIError: The request failed, or the server has no plug-in.
            ClientClosedError: The client was closed.
        """
        return await self._query(lambda transport: transport.stats())

    # --- one call, step by step ------------------------------------------------------

    def _many(
        self,
        run: Callable[[RequestT], Awaitable[ResultT]],
        requests: Iterable[RequestT] | AsyncIterable[RequestT],
        concurrency: int | None,
        ordered: bool,
        errors: Literal["return", "raise"],
        progress: Callable[[Progress], None] | None,
    ) -> Outcomes[RequestT, ResultT]:
        self._dispatcher.check_open()
        if concurrency is None:
            concurrency = self._settings.max_connections
        check_count("concurrency", concurrency)
        check_choice("errors", errors, ("return", "raise"))
        check_callable("progress", progress)
        if not isinstance(requests, Iterable | AsyncIterable):
            raise refuse("requests", requests, "give an iterable of requests")
        return Outcomes(
            run,
            requests,
            concurrency=concurrency,
            ordered=ordered,
            raise_errors=errors == "raise",
            progress=progress,
        )

    async def _run_scoring(self, request: ScoreRequest) -> ScoreResult:
        plan = self._make_plan(request)
        sums = await self._sums_without_document(request, plan)
        return await self._score(request, plan, sums)

    async def _run_generation(self, request: GenerationRequest) -> GenerationResult:
        self._check(request, GenerationRequest)
        plan = make_generation_plan(
            request,
            model=self._call_settings.model,
            cache_salt=self._call_settings.cache_salt,
        )
        return await self._perform(request, self._call(plan), finish_texts)

    async def _score(
        self, request: ScoreRequest, plan: Plan, sums: Sequence[float] = ()
    ) -> ScoreResult:
        return await self._perform(request, self._call(plan, sums), finish)

    async def _perform(self, request: AnyRequest, call: _Call, finish: Finish[T]) -> T:
        keep_partial = request.partial == "return"
        with call.reported():
            try:
                await self._dispatcher.run(
                    await self._complete(request, call),
                    total=self._total(request),
                    retry=self._call_settings.retry,
                    emit=call.emit,
                    on_event=call.add,
                )
            except APIError as error:
                return call.end(finish, error, keep_partial=keep_partial)
            return call.end(finish, None, keep_partial=keep_partial)

    async def _sums_without_document(
        self, request: ScoreRequest, plan: Plan
    ) -> tuple[float, ...]:
        """Each branch's sum after the unconditional context; scores unknown ones."""
        if plan.unconditional is None:
            return ()
        model = plan.request.model or await self._first_model()
        sums = self._unconditional.known(plan, model)
        indexes = range(len(plan.request.branches))
        if wanted := [index for index in indexes if index not in sums]:
            whole = replace(request, document=plan.unconditional, partial="raise")
            result = await self._score(whole, unconditional_plan(plan, wanted))
            by_option = {c.index: c.score for c in result.candidates}
            new = {index: by_option[plan.members[index][0]] for index in wanted}
            self._unconditional.remember(plan, model, new)
            sums |= new
        return tuple(sums[index] for index in indexes)

    async def _stream(
        self, request: ScoreRequest, plan: Plan
    ) -> AsyncGenerator[ScoredCandidate, None]:
        sums = await self._sums_without_document(request, plan)
        call = self._call(plan, sums)
        keep_partial = request.partial == "return"
        with call.reported():
            try:
                events = self._dispatcher.events(
                    await self._complete(request, call),
                    total=self._total(request),
                    retry=self._call_settings.retry,
                    emit=call.emit,
                )
                async with aclosing(events):
                    async for event in events:
                        call.add(event)
                        if isinstance(event, BranchResult):
                            for candidate in call.candidates_of(event):
                                yield candidate
            except APIError as error:
                call.end(finish, error, keep_partial=keep_partial)
                return
            call.end(finish, None, keep_partial=keep_partial)

    def _call(self, plan: Plan, sums: Sequence[float] = ()) -> _Call:
        tracing = self._call_settings.tracing
        span = None if tracing is None else tracing.group(plan)
        return _Call(plan, self._emit, sums, span)

    async def _complete(self, request: AnyRequest, call: _Call) -> GroupRequest:
        """The plan's request, completed with the client's settings."""
        planned = call.plan.request
        model = planned.model or await self._first_model()
        hook = self._call_settings.on_response
        return replace(
            planned,
            model=model,
            session_id=session_id(planned.cache_salt, model, request.document),
            extra_headers={**call.headers, **self._call_settings.extra_headers},
            extra_body=self._call_settings.extra_body,
            on_response=hook and partial(_notify, "on_response", hook),
        )

    async def _query(self, query: Callable[[Transport], Awaitable[T]]) -> T:
        return await self._dispatcher.query(
            query, total=self._call_settings.total, retry=self._call_settings.retry
        )

    async def _first_model(self) -> str:
        """The server's first model; concurrent calls share one request or failure."""
        self._dispatcher.check_loop()
        if self._model_lock is None:  # created late: it belongs to the event loop
            self._model_lock = anyio.Lock()
        before = self._model_error
        async with self._model_lock:
            if self._call_settings.model is not None:
                return self._call_settings.model
            if self._model_error is not None and self._model_error is not before:
                raise copy.copy(
                    self._model_error
                )  # a copy: each call sets its own group id
            try:
                [model, *_] = await self.models()
            except APIError as error:
                self._model_error = copy.copy(error)
                raise
            self._call_settings = replace(self._call_settings, model=model)
            return model

    def _check(self, request: AnyRequest, kind: type[AnyRequest]) -> None:
        self._dispatcher.check_open()
        check_kind("request", request, kind)
        if request.timeout is not None:
            check_number("timeout", request.timeout, minimum=0.0, strictly=True)
        check_choice("partial", request.partial, get_args(Partial))

    def _make_plan(self, request: ScoreRequest) -> Plan:
        self._check(request, ScoreRequest)
        return make_plan(
            request,
            model=self._call_settings.model,
            cache_salt=self._call_settings.cache_salt,
        )

    def _total(self, request: AnyRequest) -> float | None:
        return self._call_settings.total if request.timeout is None else request.timeout

    def _emit(self, event: ClientEvent) -> None:
        if self._call_settings.on_event is not None:
            _notify("on_event", self._call_settings.on_event, event)


def _notify(name: str, hook: Callable[[E], None], event: E) -> None:
    try:
        hook(event)
    except Exception:
        logger.exception("%s failed; the call continues", name)


class _Call:
    """One group in progress: its state, its span and its events."""

    def __init__(
        self,
        plan: Plan,
        emit: Callable[[ClientEvent], None],
        unconditional: Sequence[float],
        span: GroupSpan | None,
    ) -> None:
        self.plan = plan
        self.headers: Mapping[str, str] = span.headers if span else {}
        self._span = span
        self._began = anyio.current_time()
        self._state = _assembly.begin(plan, unconditional=unconditional)
        self._emit = emit

    def add(self, event: BranchEvent) -> None:
        self._state = _assembly.fold(self._state, event)
        if self._span is not None:
            self._span.record(event)

    def emit(self, event: ClientEvent) -> None:
        if self._span is not None:
            self._span.record(event)
        self._emit(event)

    def candidates_of(self, result: BranchResult) -> tuple[ScoredCandidate, ...]:
        return _assembly.candidates_of(self._state, result)

    def end(
        self, finish: Finish[T], cause: APIError | None, *, keep_partial: bool
    ) -> T:
        if cause is not None:
            cause.group_id = cause.group_id or self.plan.request.group_id
        return finish(
            self._state,
            elapsed=anyio.current_time() - self._began,
            cause=cause,
            keep_partial=keep_partial,
        )

    @contextmanager
    def reported(self) -> Iterator[None]:
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            request = self.plan.request
            self.emit(
                GroupEnded(
                    group_id=request.group_id,
                    branches=len(request.branches),
                    failed=len(request.branches) - self._state.finished,
                    elapsed=anyio.current_time() - self._began,
                    error=failed,
                )
            )
