"""One trace for a message, of spans that client and worker send to a collector, each by itself."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import nearcast
import nearcast.tracing
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

GPS = TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1)


class Collector:
    """Takes what exporters send by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans = spans = list[Span]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                spans.extend(s for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def own() -> Iterator[InMemorySpanExporter]:
    """The spans of this process, which is the client."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    nearcast.tracing.enable(provider)
    yield exporter
    nearcast.tracing.disable()
    provider.shutdown()


async def test_publish_process_and_deliver_are_one_trace(city, collector: Collector, own: InMemorySpanExporter) -> None:
    application = TracerProvider().get_tracer("application")
    async with city(GPS, names=("tokyo",)) as c:
        async with nearcast.connect(c.url("tokyo"), name="car7") as client, client.subscribe("gps.*") as received:
            with application.start_as_current_span("a user's request") as request:
                receipt = await client.publish("gps.car7", {"n": 1})
            message = await anext(received)
            bad = await client.publish("gps.car7", {"do": "raise"})
            await until(lambda: len(collector.spans) >= 2, 60)

    publish, deliver, *_ = spans = own.get_finished_spans()
    process, failure = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in spans] == ["publish gps.car7", "deliver gps.car7", "publish gps.car7"]
    assert (process.name, failure.name) == ("process gps.car7", "process gps.car7")
    trace = trace_of(publish)
    assert {trace_of(deliver), int.from_bytes(process.trace_id)} == {trace}
    assert trace_of(spans[2]) == int.from_bytes(failure.trace_id) != trace
    assert publish.links[0].context == request.get_span_context()
    assert publish.attributes is not None
    assert publish.attributes["messaging.message.id"] == receipt.id
    assert deliver.attributes is not None
    assert deliver.attributes["messaging.message.id"] == message.id == f"{receipt.id};0"
    assert (failure.status.code, failure.status.message) == (2, "ValueError: on purpose")
    assert failure.attributes[2].value.string_value == bad.id
    with application.start_as_current_span("handle", nearcast.tracing.context_of(message)) as mine:
        assert mine.get_span_context().trace_id == trace


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id
