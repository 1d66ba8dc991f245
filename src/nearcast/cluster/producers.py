"""What produces results: a stream dataset with its continuous channels, and a repetitive channel with its clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nearcast.cluster.progress import Laps
from nearcast.cluster.results import ResultLog, gather
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.matching import Matcher, RunningChannel
    from nearcast.cluster.progress import Progress
    from nearcast.cluster.short import ShortBatches
    from nearcast.cluster.tables import StaticTable, StreamTable
    from nearcast.cluster.warehouse import Warehouse

__all__ = ["Clockwork", "Ingest", "Views"]

_log = logging.getLogger(__name__)


class Views:
    """The datasets as views for queries. A view is made anew when its dataset has changed since."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.tables: dict[str, StreamTable | StaticTable] = {}
        self._made: dict[str, tuple[object, int]] = {}
        self._lock = threading.Lock()

    def whole(self, dataset: str) -> str:
        """The view of all that a dataset keeps."""
        table, view = self.tables[dataset], f"_all_{dataset}"
        state = self.state(dataset)
        with self._lock:
            if self._made.get(dataset) != state:
                table.frame().createOrReplaceTempView(view)
                self._made[dataset] = state
        return view

    def state(self, dataset: str) -> tuple[object, int]:
        """Equal states, equal content."""
        return self.tables[dataset], int(getattr(self.tables[dataset], "position", 0))

    def part(self, dataset: str, reader: str, frame: DataFrame) -> str:
        """A view of some records of a dataset, for one reader."""
        view = f"_new_{dataset}_{reader}"
        frame.createOrReplaceTempView(view)
        return view


class Ingest:
    """Called for each micro-batch of a dataset: match, write results down, publish them, keep the records.

    A batch that was cut short is done again from the start: results written before are published as they were, files
    are written over, and a batch that was complete is left alone.
    """

    def __init__(
        self,
        table: StreamTable,
        views: Views,
        matcher: Matcher,
        results: ResultLog,
        progress: Progress,
    ) -> None:
        self._table, self._views = table, views
        self._matcher, self.results, self._progress = matcher, results, progress
        self.channels: Sequence[RunningChannel] = ()
        self._short: ShortBatches | None = None
        self._first = True
        self._laps = Laps()

    def begin_again(self, short: ShortBatches) -> None:
        """The query starts (again): its first batch may have been cut short before."""
        self._first, self._short, self._laps = True, short, Laps()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        laps = self._laps
        laps.lap("spark")
        rows = self._short.read(batch_id, self._table.position) if self._short else None
        batch = self._table.accept(frame.toArrow() if rows is None else rows)
        laps.lap("read")
        if batch.last <= self._table.position:
            return  # kept already; only Spark did not come to note it
        written = self.results.written(batch.last) if self._first else None
        self._first = False
        if written is None:
            matches = self._matcher.match_new(self.channels, self._table, batch.good, self._views)
            laps.lap("match")
            written = self.results.write(batch.last, gather(matches, batch.last, time.time_ns() // 1000))
        laps.lap("write")
        published = self.results.publish(written)
        laps.lap("publish")
        self._table.keep(batch)
        laps.lap("keep")
        self._progress.add(
            self._table.spec.name,
            rows=batch.good.num_rows,
            refused=batch.refused.num_rows,
            removed=batch.removed,
            results=published,
            stages=laps.take(),
        )


class Clockwork:
    """Runs a repetitive channel at every multiple of its period."""

    def __init__(
        self,
        channel: RunningChannel,
        views: Views,
        matcher: Matcher,
        results: ResultLog,
        warehouse: Warehouse,
        progress: Progress,
        failed: Callable[[str, str], None],
    ) -> None:
        self.channel, self._views, self._matcher = channel, views, matcher
        self.results, self._warehouse, self._progress, self._failed = results, warehouse, progress, failed
        state = warehouse.load_state(results.folder)
        self._execution = int(state.get("execution", 0))
        self._position = state.get("position")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"channel {channel.name}", daemon=True)

    def start(self) -> None:
        """Begin with the next multiple of the period. Once begun, nothing changes."""
        if self._thread.ident is not None:
            return
        if self._position is None and self.channel.checked.spec.new:
            # Records from before the channel was added are not new to it.
            self._position = self._new_position()
            self._save()
        self._thread.start()

    def stop(self) -> None:
        """Finish the execution under way and end."""
        self._stop.set()
        self._thread.join(60)

    def execute(self, number: int) -> int:
        """One execution; returns how many results were published."""
        laps = Laps()
        spec = self.channel.checked.spec
        high = self._new_position() if spec.new else 0
        written = self.results.written(number)
        rows = 0
        if written is None:
            view_of = {name: self._views.whole(name) for name in self.channel.checked.datasets if name != spec.new}
            if spec.new:
                table: Any = self._views.tables[spec.new]
                frame = table.between(int(self._position or 0), high)
                view_of[spec.new] = self._views.part(spec.new, spec.name, frame)
                rows = high - int(self._position or 0)
            matches = self._matcher.match([self.channel] if rows or not spec.new else [], view_of)
            laps.lap("match")
            results = gather(matches, number, time.time_ns() // 1000)
            written = self.results.write(number, results, {"position": high})
        else:
            high = int(written.about.get("position", high))
        laps.lap("write")
        published = self.results.publish(written)
        self._execution, self._position = number, high
        self._save()
        laps.lap("publish")
        self._progress.add(spec.name, rows=rows, refused=0, removed=0, results=published, stages=laps.take())
        return published

    def _run(self) -> None:
        period = self.channel.checked.spec.period or 1.0
        unfinished = self.results.after(self._execution)
        while True:
            if unfinished is not None and self._attempt(unfinished):  # written down, but not published whole
                unfinished = None
            if self._stop.wait(max(period - time.time() % period, 0.001)):
                return
            number = int(time.time() / period)
            if unfinished is None and number > self._execution and not self._attempt(number):
                unfinished = self.results.after(self._execution)

    def _attempt(self, number: int) -> bool:
        try:
            self.execute(number)
            return True
        except Exception as error:  # whatever it is, the next execution comes and takes the records of this one, too
            if not isinstance(error, NearcastError):
                _log.exception("channel %s, execution %d", self.channel.name, number)
            self._failed(self.channel.name, str(error).splitlines()[0])
            return False

    def _new_position(self) -> int:
        return int(getattr(self._views.tables[self.channel.checked.spec.new], "position", 0))

    def _save(self) -> None:
        self._warehouse.save_state(self.results.folder, {"execution": self._execution, "position": self._position})
