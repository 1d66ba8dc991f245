"""A site's metrics: its broker and store, its clients, its workers and their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from nearcast.domain.latency_histogram import cumulative, total_ms
from nearcast.protocol.reports import is_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from prometheus_client.core import Metric

    from nearcast.domain.topic import TopicSpec
    from nearcast.protocol.reports import SiteReport, TopicReport
    from nearcast.protocol.worker import TopicWork, WorkerStats

__all__ = ["site_metrics"]

_TOPICS = 500  # with labels of their own, those with the most messages: the number of series stays bounded
_BOUNDS_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
_WORKER_COUNTS = {
    "processed": "Publications given to a processor",
    "delegated": "Publications processed for a publisher whose home is another site",
    "notified": "Notifications made",
    "late": "Publications taken from a store because nobody had marked them",
    "unowned": "Publications not taken because the site had no lease",
    "copies_sent": "Copies sent to the spools of other managing sites",
    "copies_received": "Copies received for spools",
    "dead_letters": "Publications given up",
    "deferred": "Publications of durable topics without room in the queue",
    "dropped": "Messages lost here",
    "duplicates": "Publications that came twice",
    "forged": "Publications refused because their id names another publisher than their topic",
}
_BROKER_COUNTS = {
    "in_msgs": ("received_messages", "Messages received by the broker"),
    "out_msgs": ("sent_messages", "Messages sent by the broker"),
    "in_bytes": ("received_bytes", "Bytes received by the broker"),
    "out_bytes": ("sent_bytes", "Bytes sent by the broker"),
    "slow_consumers": ("slow_consumers", "Connections cut off because they read too slowly"),
}


def site_metrics(
    report: SiteReport,
    delivered: Sequence[TopicReport],
    coordinated: bool,
    varz: Mapping[str, Any],
    stats: Sequence[WorkerStats],
    topics: Iterable[TopicSpec],
) -> list[Metric]:
    """All metrics of a site.

    report: the last. delivered: what clients measured recently. coordinated: a coordinator answers. varz: its broker's.
    """
    return [
        *_site(report, coordinated),
        *_broker(report, varz),
        *_workers(stats),
        *_topics(stats),
        *_lags(report),
        *_delivered(delivered, {spec.name: spec.bound_ms for spec in topics if spec.bound_ms is not None}),
    ]


def _site(report: SiteReport, coordinated: bool) -> Iterable[Metric]:
    yield _gauge("nearcast_site_coordinator_up", "Whether a coordinator answered one of the last reports", coordinated)
    yield _gauge("nearcast_site_ready", "Whether the site has measured all its peers", report.ready)
    yield _gauge(
        "nearcast_store_up", "Whether the site's store answers and can write; 1 for a site without one", report.store
    )
    peers = GaugeMetricFamily("nearcast_site_round_trip_seconds", "Measured round trip to a site", labels=["peer"])
    for peer, milliseconds in report.round_trips.items():
        peers.add_metric([peer], milliseconds / 1000)
    yield peers
    text = "Connections closed because their user sent too much"
    yield CounterMetricFamily("nearcast_site_over_limit_connections", text, value=sum(report.over_limit.values()))


def _broker(report: SiteReport, varz: Mapping[str, Any]) -> Iterable[Metric]:
    for key, (name, text) in _BROKER_COUNTS.items():
        yield CounterMetricFamily(f"nearcast_broker_{name}", text, value=varz.get(key, 0))
    yield _gauge("nearcast_broker_connections", "Connections to the broker", varz.get("connections", 0))
    broker = report.broker
    yield _gauge("nearcast_broker_mqtt_connections", "Connections of MQTT devices", broker.mqtt_connections)
    yield _gauge("nearcast_broker_cpu_ratio", "Share of the machine's processors used by the broker", broker.cpu)
    yield _gauge("nearcast_broker_memory_ratio", "Share of the machine's memory used by the broker", broker.memory)
    yield _gauge("nearcast_broker_network_ratio", "Used share of `bandwidth_mbit`, 0 without it", broker.network)


def _workers(stats: Sequence[WorkerStats]) -> Iterable[Metric]:
    for field, text in _WORKER_COUNTS.items():
        name = field if field in ("dead_letters", "duplicates") else f"{field}_messages"
        family = CounterMetricFamily(f"nearcast_worker_{name}", text, labels=["worker"])
        for worker in stats:
            family.add_metric([worker.worker], getattr(worker, field))
        yield family
    restarts = CounterMetricFamily(
        "nearcast_worker_processor_restarts", "Processor processes that were replaced", labels=["worker"]
    )
    busy = CounterMetricFamily("nearcast_worker_busy_seconds", "Time spent in processors", labels=["worker"])
    for worker in stats:
        restarts.add_metric([worker.worker], worker.restarts)
        busy.add_metric([worker.worker], sum(work.busy_s for work in worker.topics.values()))
    yield from (restarts, busy)


def _topics(stats: Sequence[WorkerStats]) -> Iterable[Metric]:
    found: list[tuple[str, str, TopicWork]] = [
        (worker.worker, name, work) for worker in stats for name, work in worker.topics.items()
    ]
    yield _gauge("nearcast_site_topics", "Topics that the site's workers run", len({name for _, name, _ in found}))
    shown = sorted(found, key=lambda item: -item[2].processed)[:_TOPICS]
    labels = ["worker", "topic"]  # a topic that moves within the site is in two workers
    processed = CounterMetricFamily("nearcast_topic_processed_messages", "Publications processed", labels=labels)
    busy = CounterMetricFamily("nearcast_topic_busy_seconds", "Time spent in the processor", labels=labels)
    letters = CounterMetricFamily("nearcast_topic_dead_letters", "Publications given up", labels=labels)
    waiting = GaugeMetricFamily("nearcast_topic_queued_messages", "Publications in the worker's queue", labels=labels)
    latency = HistogramMetricFamily(
        "nearcast_topic_processing_latency_seconds",
        "From arrival at the worker to its outcome, sampled; the sum is made from bucket middles",
        labels=labels,
    )
    for worker, name, work in shown:
        processed.add_metric([worker, name], work.processed)
        busy.add_metric([worker, name], work.busy_s)
        letters.add_metric([worker, name], work.dead_letters)
        waiting.add_metric([worker, name], work.waiting)
        counts = cumulative(work.latency, _BOUNDS_MS)
        buckets = [(str(bound / 1000), float(n)) for bound, n in zip(_BOUNDS_MS, counts, strict=True)]
        latency.add_metric(
            [worker, name], [*buckets, ("+Inf", float(sum(work.latency)))], total_ms(work.latency) / 1000
        )
    yield from (processed, busy, letters, waiting, latency)


def _delivered(delivered: Sequence[TopicReport], bounds: Mapping[str, float]) -> Iterable[Metric]:
    """What clients of this site measured."""
    p90 = GaugeMetricFamily(
        "nearcast_topic_delivery_p90_seconds", "Publication to receipt by clients of this site, p90", labels=["topic"]
    )
    bound = GaugeMetricFamily("nearcast_topic_bound_seconds", "The topic's latency bound", labels=["topic"])
    seen = sorted(delivered, key=lambda topic: -topic.messages_in)
    for topic in seen[:_TOPICS]:
        if not is_channel(topic.topic):
            p90.add_metric([topic.topic], topic.p90_ms / 1000)
            if topic.topic in bounds:
                bound.add_metric([topic.topic], bounds[topic.topic] / 1000)
    channels = GaugeMetricFamily(
        "nearcast_channel_delivery_p90_seconds", "Record to receipt by clients of this site, p90", labels=["channel"]
    )
    for topic in seen[:_TOPICS]:
        if is_channel(topic.topic):
            channels.add_metric([topic.topic.removeprefix("channel ")], topic.p90_ms / 1000)
    yield from (p90, bound, channels)


def _lags(report: SiteReport) -> Iterable[Metric]:
    """What waits in the site's store."""
    waiting = GaugeMetricFamily(
        "nearcast_topic_unprocessed_messages", "Stored publications that nobody processed in time", labels=["topic"]
    )
    oldest = GaugeMetricFamily(
        "nearcast_topic_unprocessed_oldest_seconds", "The age of the oldest of them", labels=["topic"]
    )
    for lag in sorted(report.lags, key=lambda lag: -lag.waiting)[:_TOPICS]:
        waiting.add_metric([lag.topic], lag.waiting)
        oldest.add_metric([lag.topic], lag.oldest_s)
    yield from (waiting, oldest)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
