"""OpenTelemetry spans: one for each group, with a child for each branch.

Imports opentelemetry's API (extra ``otel``) only when tracing is on. Spans hold ids,
counts and error names, never text.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from radixflow_sdk._events import ClientEvent, GroupEnded, RequestEnded, RequestSent
from radixflow_sdk._messages import (
    BranchEvent,
    BranchFailed,
    BranchResult,
    BranchText,
    GroupStarted,
    Plan,
)
from radixflow_sdk._validate import refuse
from radixflow_sdk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider


class Tracing:
    """Creates spans.

    Args:
        provider: The provider; True: opentelemetry's global one.

    Raises:
        InvalidInputError: The package is missing, or the provider is none.
    """

    def __init__(self, provider: TracerProvider | bool) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError:
            raise InvalidInputError(
                f"tracing is {provider!r}, and opentelemetry-api is not installed; pip "
                "install 'radixflow-sdk[otel]'.",
                field="tracing",
                value=provider,
            ) from None
        chosen: Any = trace.get_tracer_provider() if provider is True else provider
        if not hasattr(chosen, "get_tracer"):
            raise refuse("tracing", provider, "give True, False or a TracerProvider")
        self._tracer: Tracer = chosen.get_tracer("radixflow")

    def group(self, plan: Plan) -> GroupSpan:
        """The span of one call; it starts now, as a child of the current span."""
        return GroupSpan(self._tracer, plan)


class GroupSpan:
    """One call's span, and those of its branches.

    Attributes:
        headers: Sent with every request: ``traceparent``, and ``tracestate`` if any.
    """

    def __init__(self, tracer: Tracer, plan: Plan) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import (
            TraceContextTextMapPropagator,
        )

        request = plan.request
        scored = request.sampling is None
        self._error = trace.Status(trace.StatusCode.ERROR)
        self._tracer = tracer
        self._span = tracer.start_span(
            "radixflow.score" if scored else "radixflow.generate",
            kind=trace.SpanKind.CLIENT,
            attributes={
                "radixflow.group_id": request.group_id,
                "radixflow.branches": len(request.branches),
            },
        )
        self._inside = trace.set_span_in_context(self._span)
        self._sent = time.time_ns()
        self.headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(self.headers, self._inside)

    def record(self, event: ClientEvent | BranchEvent) -> None:
        """Record an event of the group; the last event ends its span."""
        match event:
            case RequestSent():
                self._sent = time.time_ns()
            case RequestEnded(error=BaseException() as error):
                self._span.add_event(
                    "radixflow.request_failed",
                    {
                        "radixflow.request_id": event.request_id,
                        "radixflow.attempt": event.attempt,
                        "error.type": type(error).__name__,
                    },
                )
            case GroupStarted():
                self._span.set_attributes(
                    {
                        "gen_ai.request.model": event.model,
                        "radixflow.route": event.route,
                        "radixflow.shared_tokens": event.shared_tokens,
                    }
                )
            case BranchResult() | BranchText() | BranchFailed():
                self._branch(event)
            case GroupEnded():
                self._span.set_attribute("radixflow.failed", event.failed)
                if event.error is not None:
                    self._span.set_attribute("error.type", type(event.error).__name__)
                    self._span.set_status(self._error)
                self._span.end()

    def _branch(self, event: BranchResult | BranchText | BranchFailed) -> None:
        """A branch's span: from its request to its answer."""
        attributes: dict[str, str | int] = {
            "radixflow.branch": event.index,
            "radixflow.request_id": event.request_id,
        }
        match event:
            case BranchResult(usage=usage):
                attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
                attributes["radixflow.cached_tokens"] = usage.cached_tokens
            case BranchText():
                attributes["gen_ai.usage.input_tokens"] = event.prompt_tokens
                attributes["gen_ai.usage.output_tokens"] = event.generated_tokens
            case BranchFailed():
                attributes["error.type"] = event.code
        span = self._tracer.start_span(
            "radixflow.branch",
            context=self._inside,
            attributes=attributes,
            start_time=self._sent,
        )
        if isinstance(event, BranchFailed):
            span.set_status(self._error)
        span.end()
