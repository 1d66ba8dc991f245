"""The work of a stream dataset's micro-batches: validate, match its continuous channels, publish, keep the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.cluster.channels.results import ResultLog, group_results, result_ids
from nearcast.cluster.driver_progress import StageTimer
from nearcast.cluster.nats_source.range_write import write_ranges
from nearcast.nats import message_spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.channels.matching import Matcher
    from nearcast.cluster.channels.running_channel import RunningChannel
    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.driver_read import DriverReader

__all__ = ["DatasetIngest"]


@dataclass(eq=False)
class DatasetIngest:
    """Spark calls it for each micro-batch of a dataset. A short one is read and matched here, a long one by executors.

    A batch that was interrupted is repeated from the start: results stored before are published as they are, files are
    overwritten, and a batch that was complete is skipped.
    """

    _spark: SparkSession
    _table: StreamTable
    _views: DatasetViews
    _matcher: Matcher
    results: ResultLog
    _progress: DriverProgress
    _require_lease: Callable[[], None]
    _publish_by_tasks: Callable[[str, pa.Table], None]
    channels: Sequence[RunningChannel] = ()
    _reader: DriverReader | None = None
    _first: bool = True
    _timer: StageTimer = field(default_factory=StageTimer)

    def query_starts(self, reader: DriverReader) -> None:
        """The query starts (again): its first batch may be one that was interrupted."""
        self._first, self._reader, self._timer = True, reader, StageTimer()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        timer, table, reader = self._timer, self._table, self._reader
        assert reader is not None
        timer.lap("spark")
        began = time.monotonic()
        rows: pa.Table | None = None
        if (long := reader.long_batch(batch_id, table.notified)) is not None:
            batch = write_ranges(self._spark, table, reader.ranges, *long)
        else:
            rows = reader.read(batch_id, table.notified)
            rows = frame.toArrow() if rows is None else rows
            batch = table.validate(rows)
        timer.lap("read")
        if batch.last <= table.notified:
            return  # answered already; Spark was stopped before it noted the end of the batch
        stored = self.results.stored(batch.last) if self._first else None
        self._first = False
        if stored is None:
            records = batch.valid if long is None else table.written(batch)
            matches = self._matcher.match_new(self.channels, table, records, self._views)
            timer.lap("match")
            found = group_results(matches, batch.last, batch.arrived_us, table.notified + 1)
            stored = self.results.store(batch.last, found)
        timer.lap("write")
        self._require_lease()
        published = self.results.publish(stored, None if long is None else self._publish_by_tasks)
        timer.lap("publish")
        name = table.spec.name
        if message_spans.active is not None and rows is not None:
            message_spans.active.answered(name, _ids(rows), result_ids(stored.table), time.monotonic() - began)
        table.keep(batch)
        timer.lap("keep")
        self._progress.add(
            name,
            rows=batch.rows,
            refused=batch.refused_rows,
            removed=batch.removed,
            results=published,
            stages=timer.take(),
        )


def _ids(rows: pa.Table) -> list[bytes]:
    """Of the first records of a batch; a trace has no more links."""
    return [found.encode() for found in rows["id"].slice(0, message_spans.MOST_LINKS).to_pylist() if found]
