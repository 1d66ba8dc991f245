"""OpenTelemetry: the id of a message is its trace context.

Each part that handles a message adds a span to one trace, whose id is a hash of the publication's id. So nothing more
travels with a message, and its trace outlives spools, handovers, redelivery and history, which keep the id. All spans
of a message are siblings, under a parent that nobody sends; the publication is linked with the span it was made in.
A channel's result comes of many records: it has a trace of its own, linked with those of the records, and they with it.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from nearcast.nats.stamp import message_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Tracer

__all__ = ["MOST_LINKS", "MessageSpans", "active", "trace_context", "use_spans"]

MOST_LINKS = 100
"""Of a span, and records and results of a micro-batch that have spans."""
active: MessageSpans | None = None
"""What is told of messages; nothing in a process that does not trace."""


def use_spans(spans: MessageSpans | None) -> None:
    """Trace the messages of this process, or stop that."""
    global active  # one per process, as OpenTelemetry has it
    active = spans


def trace_context(message_id: bytes) -> Context:
    """The context of a publication, of a notification made from it, or of its dead letter."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    digest = blake2b(message_id.partition(b";")[0], digest_size=24).digest()
    trace, parent = int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, parent, is_remote=True, trace_flags=sampled)))


class MessageSpans:
    """Makes the spans of messages."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def published(self, message_id: bytes, topic: str, size: int) -> None:
        """A client has sent a publication, or a record of a dataset."""
        from opentelemetry.trace import Link, get_current_span

        maker = get_current_span().get_span_context()
        links = [Link(maker)] if maker.is_valid else []
        self._add("publish", message_id, topic, {"messaging.message.body.size": size}, links)

    def processed(self, message_id: bytes, topic: str, seconds: float, notifications: int) -> None:
        """A worker is done with a publication, so many seconds after it came there."""
        self._add("process", message_id, topic, {"nearcast.notifications": notifications}, times=_last(seconds))

    def failed(self, message_id: bytes, topic: str, reason: str) -> None:
        """A worker has given a publication up."""
        self._add("process", message_id, topic, problem=reason)

    def answered(
        self, dataset: str, records: Sequence[bytes], results: Sequence[tuple[str, bytes]], seconds: float
    ) -> None:
        """The data cluster has answered records of a dataset, by their ids, with results: channel and id of each."""
        times = _last(seconds)
        records, results = records[:MOST_LINKS], results[:MOST_LINKS]
        to_records = _links(records)
        to_results = _links([result for _, result in results])
        for record in records:
            self._add("process", record, dataset, {"nearcast.results": len(results)}, to_results, times)
        for channel, result in results:
            self._add("publish", result, channel, {"messaging.batch.message_count": len(records)}, to_records, times)

    def received(self, message_id: bytes, topic: str) -> None:
        """A subscriber has a message. The span begins when it was published, by the publisher's clock."""
        now = time.time_ns()
        published = message_time(message_id.partition(b";")[0]) * 1000
        if published:  # else it has no id of ours
            self._add("deliver", message_id, topic, times=(min(published, now), now))

    def _add(
        self,
        verb: Literal["publish", "process", "deliver"],
        message_id: bytes,
        topic: str,
        figures: Mapping[str, int] = {},
        links: Sequence[Link] = (),
        times: tuple[int, int] | None = None,
        problem: str | None = None,
    ) -> None:
        """A span. times: when it began and ended, in nanoseconds since 1970; both are now if there are none."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes: dict[str, str | int] = {
            "messaging.system": "nearcast",
            "messaging.destination.name": topic,
            "messaging.message.id": message_id.decode(errors="replace"),
            **figures,
        }
        kind = SpanKind.PRODUCER if verb == "publish" else SpanKind.CONSUMER
        begun, ended = times or (None, None)
        span = self._tracer.start_span(f"{verb} {topic}", trace_context(message_id), kind, attributes, links, begun)
        if problem is not None:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(ended)


def _last(seconds: float) -> tuple[int, int]:
    """So many seconds up to now, in nanoseconds since 1970."""
    now = time.time_ns()
    return now - round(seconds * 1e9), now


def _links(message_ids: Iterable[bytes]) -> list[Link]:
    """To the traces of messages."""
    from opentelemetry.trace import Link, get_current_span

    return [Link(get_current_span(trace_context(one)).get_span_context()) for one in message_ids]
