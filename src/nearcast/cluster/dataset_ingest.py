"""The work of a stream dataset's micro-batches: validate, match its continuous channels, publish, keep the records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.cluster.channels.results import ResultLog, group_results
from nearcast.cluster.driver_progress import StageTimer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nearcast.cluster.channels.matching import Matcher
    from nearcast.cluster.channels.running_channel import RunningChannel
    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.driver_read import DriverReader

__all__ = ["DatasetIngest"]


@dataclass(eq=False)
class DatasetIngest:
    """Spark calls it for each micro-batch of a dataset.

    A batch that was interrupted is repeated from the start: results stored before are published as they are, files are
    overwritten, and a batch that was complete is skipped.
    """

    _table: StreamTable
    _views: DatasetViews
    _matcher: Matcher
    results: ResultLog
    _progress: DriverProgress
    channels: Sequence[RunningChannel] = ()
    _reader: DriverReader | None = None
    _first: bool = True
    _timer: StageTimer = field(default_factory=StageTimer)

    def query_starts(self, reader: DriverReader) -> None:
        """The query starts (again): its first batch may be one that was interrupted."""
        self._first, self._reader, self._timer = True, reader, StageTimer()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        timer = self._timer
        timer.lap("spark")
        rows = self._reader.read(batch_id, self._table.notified) if self._reader else None
        batch = self._table.validate(frame.toArrow() if rows is None else rows)
        timer.lap("read")
        if batch.last <= self._table.notified:
            return  # answered already; Spark was stopped before it noted the end of the batch
        stored = self.results.stored(batch.last) if self._first else None
        self._first = False
        if stored is None:
            matches = self._matcher.match_new(self.channels, self._table, batch.valid, self._views)
            timer.lap("match")
            stored = self.results.store(batch.last, group_results(matches, batch.last, time.time_ns() // 1000))
        timer.lap("write")
        published = self.results.publish(stored)
        timer.lap("publish")
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
