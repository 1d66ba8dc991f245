"""OpenTelemetry: the id of a message is its trace context.

Each part that handles a message adds a span to one trace, whose id is a hash of the publication's id. So nothing more
travels with a message, and its trace outlives spools, handovers, redelivery and history, which keep the id. All spans
of a message are siblings, under a parent that nobody sends; the publication is linked with the span it was made in.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING

from nearcast.nats.stamp import message_time

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

__all__ = ["MessageSpans", "active", "trace_context", "use_spans"]

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
        from opentelemetry.trace import Link, SpanKind, get_current_span

        maker = get_current_span().get_span_context()
        span = self._tracer.start_span(
            f"publish {topic}", trace_context(message_id), SpanKind.PRODUCER,
            {**_attributes(message_id, topic), "messaging.message.body.size": size},
            [Link(maker)] if maker.is_valid else (),
        )  # fmt: skip
        span.end()

    def processed(self, message_id: bytes, topic: str, seconds: float, notifications: int) -> None:
        """A worker is done with a publication, so many seconds after it came there."""
        from opentelemetry.trace import SpanKind

        now = time.time_ns()
        attributes = {**_attributes(message_id, topic), "nearcast.notifications": notifications}
        span = self._tracer.start_span(
            f"process {topic}", trace_context(message_id), SpanKind.CONSUMER, attributes,
            start_time=now - round(seconds * 1e9),
        )  # fmt: skip
        span.end(now)

    def failed(self, message_id: bytes, topic: str, reason: str) -> None:
        """A worker has given a publication up."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self._tracer.start_span(
            f"process {topic}", trace_context(message_id), SpanKind.CONSUMER, _attributes(message_id, topic)
        )
        span.set_status(Status(StatusCode.ERROR, reason))
        span.end()

    def received(self, message_id: bytes, topic: str) -> None:
        """A subscriber has a message. The span begins when it was published, by the publisher's clock."""
        from opentelemetry.trace import SpanKind

        now = time.time_ns()
        published = message_time(message_id.partition(b";")[0]) * 1000
        if not published:  # a channel's result, which comes of many records
            return
        span = self._tracer.start_span(
            f"deliver {topic}", trace_context(message_id), SpanKind.CONSUMER, _attributes(message_id, topic),
            start_time=min(published, now),
        )  # fmt: skip
        span.end(now)


def _attributes(message_id: bytes, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": "nearcast",
        "messaging.destination.name": topic,
        "messaging.message.id": message_id.decode(errors="replace"),
    }
