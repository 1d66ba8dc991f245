"""The work of a stream dataset's micro-batches: validate, match its continuous channels, publish, keep the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.cluster.channels.failing_channels import NewRecords
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
    from nearcast.cluster.nats_source.range_read import SequenceRange

__all__ = ["DatasetIngest"]


@dataclass(eq=False)
class DatasetIngest:
    """Spark calls it for each micro-batch of a dataset.

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
        self._timer.lap("spark")
        found = self._reader.long_batch(batch_id, self._table.notified) if self._reader else None
        if found is not None:
            self._long_batch(*found)
        else:
            self._short_batch(frame, batch_id)

    def _long_batch(self, parts: Sequence[SequenceRange], last: int) -> None:
        """Executors read, validate and write the records; channels are matched with the files."""
        timer, table = self._timer, self._table
        assert self._reader is not None
        written = write_ranges(self._spark, table, self._reader.ranges, parts, last)
        timer.lap("read")
        stored = self.results.stored(last) if self._first else None
        self._first = False
        if stored is None:
            matches = self._match_written(table.new_frame(written))
            timer.lap("match")
            found = group_results(matches, last, written.arrived_us, table.notified + 1)
            stored = self.results.store(last, found)
        timer.lap("write")
        self._require_lease()
        published = self.results.publish(stored, self._publish_by_tasks)
        timer.lap("publish")
        table.keep_written(written, last)
        timer.lap("keep")
        self._progress.add(
            table.spec.name,
            rows=written.rows,
            refused=written.refused,
            removed=written.removed,
            results=published,
            stages=timer.take(),
        )

    def _match_written(self, frame: DataFrame) -> pa.Table:
        name = self._table.spec.name
        others = {dataset for channel in self.channels for dataset in channel.validated.datasets} - {name}
        view_of = {dataset: self._views.whole(dataset) for dataset in others}
        view_of[name] = self._views.part(name, "batch", frame)
        return self._matcher.match(self.channels, view_of, NewRecords(name, self._table.schema, frame.toArrow))

    def _short_batch(self, frame: DataFrame, batch_id: int) -> None:
        timer = self._timer
        began = time.monotonic()
        rows = self._reader.read(batch_id, self._table.notified) if self._reader else None
        rows = frame.toArrow() if rows is None else rows
        batch = self._table.validate(rows)
        timer.lap("read")
        if batch.last <= self._table.notified:
            return  # answered already; Spark was stopped before it noted the end of the batch
        stored = self.results.stored(batch.last) if self._first else None
        self._first = False
        if stored is None:
            matches = self._matcher.match_new(self.channels, self._table, batch.valid, self._views)
            timer.lap("match")
            found = group_results(matches, batch.last, batch.arrived_us, self._table.notified + 1)
            stored = self.results.store(batch.last, found)
        timer.lap("write")
        self._require_lease()
        published = self.results.publish(stored)
        timer.lap("publish")
        if message_spans.active is not None:
            name = self._table.spec.name
            message_spans.active.answered(name, _ids(rows), result_ids(stored.table), time.monotonic() - began)
        self._table.keep(batch)
        timer.lap("keep")
        self._progress.add(
            self._table.spec.name,
            rows=batch.valid.num_rows,
            refused=batch.refused.num_rows,
            removed=batch.removed,
            results=published,
            stages=timer.take(),
        )


def _ids(rows: pa.Table) -> list[bytes]:
    """Of the first records of a batch; a trace has no more links."""
    return [found.encode() for found in rows["id"].slice(0, message_spans.MOST_LINKS).to_pylist() if found]
