"""OpenTelemetry spans: a group's, its branches', and what goes out with them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from radixflow_sdk import (
    BranchError,
    InvalidInputError,
    PartialGroupError,
    RadixFlow,
    RadixFlowClient,
    RetryPolicy,
)
from radixflow_sdk.testing import FakeServer, FakeTransport, Fault

pytestmark = [
    pytest.mark.anyio,
    # See test_http.py.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
NOW = RetryPolicy(attempts=2, initial=0.0)


class Traces:
    """A provider, and the spans that came out of it."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def split(self) -> tuple[ReadableSpan, Sequence[ReadableSpan]]:
        """The one group's span, and its branches'."""
        spans = self._exporter.get_finished_spans()
        [group] = [span for span in spans if span.name != "radixflow.branch"]
        return group, [span for span in spans if span.name == "radixflow.branch"]


@pytest.fixture
def traces() -> Iterator[Traces]:
    found = Traces()
    yield found
    found.provider.shutdown()


async def test_a_group_has_a_span_and_a_child_for_each_branch(traces: Traces) -> None:
    server = FakeServer(faults=[Fault(status=503)])
    async with (
        server.listen() as url,
        RadixFlowClient(url, retry=NOW).with_options(tracing=traces.provider) as client,
    ):
        with traces.provider.get_tracer("app").start_as_current_span("x") as outer:
            result = await client.score_candidates("a secret document", ["a", "b"])
        outside = outer.get_span_context()
    spans = [s for s in traces._exporter.get_finished_spans() if s.name != "x"]
    [group] = [span for span in spans if span.name == "radixflow.score"]
    children = [span for span in spans if span.name == "radixflow.branch"]
    assert group.context is not None
    assert group.parent is not None
    assert group.parent.span_id == outside.span_id
    assert [child.parent and child.parent.span_id for child in children] == [
        group.context.span_id
    ] * 2
    assert group.attributes is not None
    assert group.attributes["radixflow.group_id"] == result.group_id
    assert group.attributes["gen_ai.request.model"] == "fake"
    assert [event.name for event in group.events] == ["radixflow.request_failed"]
    assert group.status.is_ok
    names = [
        child.attributes and child.attributes["radixflow.request_id"]
        for child in children
    ]
    assert names == [
        c.request_id for c in sorted(result.candidates, key=lambda c: c.index)
    ]
    for child in children:
        assert child.start_time is not None
        assert group.start_time is not None
        assert child.start_time >= group.start_time
    [sent] = {request.headers["traceparent"] for request in server.requests}
    ids = f"00-{group.context.trace_id:032x}-{group.context.span_id:016x}-"
    assert sent.startswith(ids)
    assert "secret" not in "".join(span.to_json() for span in spans)


async def test_failures_are_errors_by_name_alone(traces: Traces) -> None:
    fake = FakeTransport({"b": BranchError("secret words", code="engine_error")})
    async with RadixFlowClient(transport=fake, retry=NOW).with_options(
        tracing=traces.provider
    ) as client:
        with pytest.raises(PartialGroupError):
            await client.score_candidates("d", ["a", "b"])
    group, children = traces.split()
    assert not group.status.is_ok
    assert group.attributes is not None
    assert group.attributes["error.type"] == "PartialGroupError"
    assert group.attributes["radixflow.failed"] == 1
    good, bad = sorted(children, key=lambda span: span.status.is_ok, reverse=True)
    assert good.status.is_ok
    assert bad.attributes is not None
    assert bad.attributes["error.type"] == "engine_error"
    assert "secret" not in group.to_json() + bad.to_json()


async def test_streams_and_generation_are_traced_too(traces: Traces) -> None:
    async with RadixFlowClient(transport=FakeTransport()).with_options(
        tracing=traces.provider
    ) as client:
        await client.generate_branches("d", ["a"], max_tokens=2)
        group, [child] = traces.split()
        assert group.name == "radixflow.generate"
        assert child.attributes is not None
        assert child.attributes["gen_ai.usage.output_tokens"] == 2
        traces._exporter.clear()
        async for _ in client.stream_candidates("d", ["a"]):
            pass
        group, children = traces.split()
        assert (group.name, len(children)) == ("radixflow.score", 1)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_the_global_provider_and_none(anyio_backend: str) -> None:
    fake = FakeTransport()
    with RadixFlow(transport=fake) as client:
        traced = client.with_options(tracing=True)
        traced.score_candidates("d", ["a"])
        traced.with_options(tracing=False).score_candidates("d", ["a"])
    # Without a provider the API's spans are not recorded, and nothing is sent on.
    assert not trace.get_current_span().is_recording()
    assert [dict(request.extra_headers) for request in fake.requests] == [{}, {}]
    with pytest.raises(InvalidInputError, match="TracerProvider"):
        client.with_options(tracing="yes")  # type: ignore[arg-type]


def test_without_the_package_it_costs_nothing_until_it_is_asked_for() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from radixflow_sdk import RadixFlow, InvalidInputError
from radixflow_sdk.testing import FakeTransport
with RadixFlow(transport=FakeTransport()) as client:
    client.score_candidates("d", ["a"])
    try:
        client.with_options(tracing=True)
    except InvalidInputError as error:
        print(error)
"""
    assert "pip install 'radixflow-sdk[otel]'" in output_of(code)
    code = "import sys, radixflow_sdk; print('opentelemetry' in sys.modules)"
    assert output_of(code).strip() == "False"


def output_of(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
