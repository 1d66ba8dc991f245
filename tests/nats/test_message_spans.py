"""Spans of what the data cluster does: records and results are in traces of their own, which are linked."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from nearcast.nats.message_spans import MOST_LINKS, MessageSpans, trace_context


def spans_of(records: list[bytes], results: list[tuple[str, bytes]]) -> tuple[ReadableSpan, ...]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    MessageSpans(provider.get_tracer("test")).answered("reports", records, results, 0.25)
    return exporter.get_finished_spans()


def trace_of(message_id: bytes) -> int:
    return get_current_span(trace_context(message_id)).get_span_context().trace_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


def test_records_and_results_of_a_micro_batch_are_linked_both_ways() -> None:
    records, results = (
        [b"car7~a:tokyo:1763340000000000:1", b"car8~b:osaka:1763340000000001:1"],
        [("alerts", b"alerts:k1:1763340000000500:2")],
    )
    first, second, result = spans_of(records, results)
    assert [span.name for span in (first, second, result)] == ["process reports", "process reports", "publish alerts"]
    assert [span.context.trace_id for span in (first, second) if span.context] == [trace_of(one) for one in records]
    assert linked(first) == linked(second) == [trace_of(results[0][1])]
    assert result.context is not None
    assert result.context.trace_id == trace_of(results[0][1])
    assert linked(result) == [trace_of(one) for one in records]
    assert first.start_time is not None
    assert first.end_time is not None
    assert abs(first.end_time - first.start_time - 250_000_000) < 1000
    assert first.attributes is not None
    assert first.attributes["nearcast.results"] == 1


def test_a_large_batch_has_a_bounded_number_of_spans_and_links() -> None:
    records = [b"car7~a:tokyo:1763340000000000:%d" % n for n in range(5000)]
    results = [("alerts", b"alerts:k%d:1763340000000500:5000" % n) for n in range(5000)]
    spans = spans_of(records, results)
    assert len(spans) == 2 * MOST_LINKS
    assert {len(span.links) for span in spans} == {MOST_LINKS}
