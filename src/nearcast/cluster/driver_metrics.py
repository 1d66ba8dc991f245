"""The data cluster's metrics: the counters of its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from nearcast.cluster.driver_progress import DriverProgress

__all__ = ["DriverMetrics"]

_FAMILIES = (
    (CounterMetricFamily, "rows", "rows", "Records read"),
    (CounterMetricFamily, "refused", "refused_rows", "Records that did not fit the schema and went to the quarantine"),
    (CounterMetricFamily, "removed", "removed_rows", "Records whose time to be kept was over"),
    (CounterMetricFamily, "results", "results", "Results published"),
    (CounterMetricFamily, "batches", "batches", "Micro-batches and executions"),
    (GaugeMetricFamily, "lag", "lag_messages", "Messages of the stream that are not read yet"),
    (GaugeMetricFamily, "seconds", "last_batch_seconds", "Time of the last batch, without Spark's before it"),
)


class DriverMetrics(Collector):
    """A producer is a dataset with its continuous channels, or a scheduled channel."""

    def __init__(self, progress: DriverProgress) -> None:
        self._progress = progress

    def collect(self) -> Iterable[Metric]:
        """The counters as they are now."""
        counts, labels = self._progress.snapshot(), ["producer"]
        for family, field, name, text in _FAMILIES:
            metric = family(f"nearcast_cluster_{name}", text, labels=labels)
            for producer, count in counts.items():
                metric.add_metric([producer], getattr(count, field))
            yield metric
        failed = GaugeMetricFamily("nearcast_cluster_failed", "Whether a producer has stopped", labels=labels)
        stages = CounterMetricFamily(
            "nearcast_cluster_stage_seconds", "Time of the stages of all batches", labels=["producer", "stage"]
        )
        for producer, count in counts.items():
            failed.add_metric([producer], float(bool(count.problem)))
            for stage, seconds in count.stages.items():
                stages.add_metric([producer, stage], seconds)
        yield from (failed, stages)
