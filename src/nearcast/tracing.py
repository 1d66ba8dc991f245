"""Traces of messages with OpenTelemetry: `pip install "nearcast[otel]"`.

    nearcast.tracing.enable()                  # after the application has set its tracer provider

Workers trace when the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`), as OpenTelemetry has it.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from nearcast.errors import InputError
from nearcast.nats.message_spans import MessageSpans, trace_context, use_spans

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from nearcast.message import Message

__all__ = ["context_of", "disable", "enable"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def enable(provider: TracerProvider | None = None) -> None:
    """Make spans of what this process publishes and receives, with this provider or the application's global one."""
    try:
        from opentelemetry.trace import get_tracer
    except ModuleNotFoundError:
        raise InputError('opentelemetry is not installed; install it with: pip install "nearcast[otel]"') from None
    use_spans(MessageSpans(get_tracer("nearcast", version("nearcast"), provider)))


def disable() -> None:
    """Make no more spans."""
    use_spans(None)


def context_of(message: Message[Any]) -> Context:
    """The context of a message, for spans of the application: `tracer.start_as_current_span(name, context_of(m))`."""
    return trace_context(message.id.encode())


def enable_by_environment(service: str) -> None:
    """In a process of Nearcast: send spans to the collector that the environment names, if it does."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise InputError(
            f"{' or '.join(_ENDPOINTS)} is set and opentelemetry is not installed; install it with: "
            'pip install "nearcast[otel]"'
        ) from None
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", service)})
    provider = SdkTracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    enable(provider)
