"""A record's way through the data cluster to a subscriber, as spans of two linked traces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession
from tests.cluster.harness import add_report_channels, subscribe_all, two_sites, until

import nearcast
import nearcast.tracing
from nearcast.cluster.driver import running_driver
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")


async def test_feed_channel_and_notification_are_linked(spark: SparkSession, tmp_path: Path) -> None:
    """Client and driver are in this process; each finds the traces by the ids alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        async with (
            running_driver(spark, deployment),
            nearcast.connect(deployment.sites[0].url, name="car7") as client,
        ):
            async with asyncio.timeout(150):
                (inbox,) = await subscribe_all(client, [("of_kind", {"kind": "fire"})])
            nearcast.tracing.enable(provider)
            try:
                receipt = await client.feed("reports", {"id": "r1", "kind": "fire"}, timeout=30)
                await until(lambda: inbox.rows, "the result")
                await until(lambda: "publish of_kind" in names(exporter), "the driver's spans")
            finally:
                nearcast.tracing.disable()
    assert inbox.rows == [{"id": "r1"}]
    assert inbox.results[0]["first"] == inbox.results[0]["execution"] == 1
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans.keys() == {
        "publish reports",
        "process reports",
        "publish of_kind",
        f"deliver of_kind.{key(inbox.ids[0])}",
    }
    fed, answered = spans["publish reports"], spans["process reports"]
    made, delivered = spans["publish of_kind"], spans[f"deliver of_kind.{key(inbox.ids[0])}"]
    assert attribute(fed) == attribute(answered) == receipt.id
    assert attribute(made) == attribute(delivered) == inbox.ids[0]
    assert trace(fed) == trace(answered) != trace(made) == trace(delivered)
    assert [link.context.trace_id for link in answered.links] == [trace(made)]
    assert [link.context.trace_id for link in made.links] == [trace(fed)]


def names(exporter: InMemorySpanExporter) -> set[str]:
    return {span.name for span in exporter.get_finished_spans()}


def key(result_id: str) -> str:
    return result_id.split(":")[1]


def trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def attribute(span: ReadableSpan) -> object:
    assert span.attributes is not None
    return span.attributes["messaging.message.id"]
