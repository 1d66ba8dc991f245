"""Datasets at run time: records are validated and kept batch by batch; queries see them as Spark frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.datasets.delta_table import RecordTable
from nearcast.cluster.datasets.keyed_table import KeyedTable
from nearcast.cluster.datasets.records import check_readable
from nearcast.cluster.datasets.schema import arrow_schema, conform, dataset_ddl, parse_ddl
from nearcast.cluster.datasets.table_writer import TableWriter
from nearcast.cluster.datasets.validation import QUARANTINE, RecordValidator, ValidatedBatch
from nearcast.cluster.datasets.watermarks import Watermarks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["StreamTable", "WrittenRecords"]

_VACUUM_SECONDS = 600.0


@dataclass(frozen=True)
class WrittenRecords:
    """The records of a long micro-batch, in the files that executors wrote."""

    uris: tuple[str, ...]
    sizes: tuple[int, ...]
    num_rows: int


class StreamTable:
    """A stream dataset. Only its own query adds to it; any thread may read.

    position: the last sequence that is in the table. notified: the last one that its channels have answered; it is
    stored with each batch, the table about a second later. term: of the driver's lease. problem: is told why records
    are not written.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: DatasetSpec,
        warehouse: Warehouse,
        term: int = 0,
        problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.spec, self._spark, self._warehouse, self._term = spec, spark, warehouse, term
        self._folder = warehouse.folder("datasets", spec.name)
        self.schema = parse_ddl(dataset_ddl(spec), f"dataset {spec.name}")
        self.arrow = arrow_schema(self.schema)
        check_readable(self.arrow, f"dataset {spec.name}")
        self.validator = RecordValidator(spec, self.arrow)
        state = warehouse.load_state(self._folder)
        if state.get("created", spec.created) != spec.created:  # of a removed dataset of the same name
            warehouse.remove(self._folder)
            state = {}
        self.records = RecordTable(warehouse, f"{self._folder}/data", self.arrow, term)
        self.quarantine = RecordTable(warehouse, f"{self._folder}/quarantine", QUARANTINE, term)
        self.position = self.records.position
        self.notified = max(int(state.get("position", 0)), self.position)
        self.watermarks = Watermarks(state.get("watermarks", {}))
        self._kept: dict[str, object] = dict(state.get("kept", {}))
        self._lock = threading.Lock()
        self._writer = TableWriter(self.records, self.quarantine, term, self._committed, problem)
        self._keyed = KeyedTable(spark, warehouse, spec, self.schema, self.records) if spec.key else None
        self._vacuumed = time.monotonic()

    @property
    def version(self) -> int:
        """It differs when the content does, or the files that hold it."""
        return self._keyed.version if self._keyed is not None else self.records.version

    def validate(self, batch: pa.Table) -> ValidatedBatch:
        """Split a micro-batch of the nats source: valid records, and refused ones with the reason. Keeps nothing."""
        return self.validator.split(batch, self.watermarks)

    def keep(self, batch: ValidatedBatch) -> None:
        """Note that a batch was answered; its records are in the table about a second later."""
        self._put(batch)
        with self._lock:
            self.notified, self.watermarks = batch.last, batch.watermarks
            self._save()

    def write_target(self, last: int) -> tuple[str, str, str, str]:
        """Where executors write a batch that ends with a sequence: the warehouse, two folders, how file names begin."""
        name = f"{self._term:08d}-{last:020d}"
        return self._warehouse.location, self.records.folder, self.quarantine.folder, name

    def written(self, batch: ValidatedBatch) -> WrittenRecords:
        """The records of a batch that executors wrote."""
        uris = tuple(self._warehouse.uri(f"{self.records.folder}/{file.path}") for file in batch.files)
        return WrittenRecords(uris, tuple(file.size for file in batch.files), sum(file.rows for file in batch.files))

    def answered(self, last: int) -> None:
        """Spark has noted batches up to this sequence as complete: the stored position may be lost."""
        self.notified = max(self.notified, last)

    def gap(self) -> tuple[int, Watermarks] | None:
        """The sequence after which records were answered but are not in the table, and the watermarks there."""
        if self.notified <= self.position:
            return None
        exact = self._kept.get("position") == self.position
        kept = self._kept.get("watermarks") if exact else {}
        return self.position, Watermarks(kept if isinstance(kept, dict) else {})

    def fill(self, batch: ValidatedBatch) -> None:
        """Put records of a gap into the table."""
        self._put(batch)
        self._writer.flush()

    def flush(self) -> None:
        """Write now what is pending."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending, and end."""
        self._writer.close()

    def frame(self) -> DataFrame:
        """All records; for a dataset with a key, the latest record of each key."""
        return self._keyed.frame() if self._keyed is not None else self.read(self.records.paths())

    def frame_of_keys(self, keys: pa.ChunkedArray) -> DataFrame | None:
        """The latest record of each of these keys; None where to read all costs no more."""
        return self._keyed.frame_of_keys(keys) if self._keyed is not None else None

    def between(self, low: int, high: int) -> DataFrame:
        """The records with low < sequence ≤ high."""
        frame = self.read(self.records.paths(low))
        return frame.where((frame["_sequence"] > low) & (frame["_sequence"] <= high))

    def tidy(self, now: datetime) -> None:
        """Compact small files and delete records older than `keep_seconds`."""
        for table in (self.records, self.quarantine):
            table.compact()
        if self.spec.keep_seconds is not None:
            oldest = now.astimezone(UTC) - timedelta(seconds=self.spec.keep_seconds)
            midnight = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
            self.records.delete_days(oldest.strftime("%Y-%m-%d"))
            if self._keyed is not None:
                self._keyed.expire(int(midnight.timestamp() * 1e6))
        if time.monotonic() - self._vacuumed > _VACUUM_SECONDS:
            self._vacuumed = time.monotonic()
            for table in (self.records, self.quarantine):
                table.vacuum()
            if self._keyed is not None:
                self._keyed.vacuum()
        self.records.refresh()

    def read(self, paths: list[str]) -> DataFrame:
        """Files of the table as a frame."""
        if not paths:
            return self._spark.createDataFrame(self.arrow.empty_table(), self.schema)
        return self._spark.read.schema(self.schema).parquet(*map(self._warehouse.uri, paths))

    def _put(self, batch: ValidatedBatch) -> None:
        """To the state of the keys first: its snapshot says that it has all that is in the table."""
        if self._keyed is not None:
            self._keyed.update(batch.valid)
            for file in batch.files:
                self._keyed.update(conform(self._warehouse.read(f"{self.records.folder}/{file.path}"), self.arrow))
        self._writer.put(batch)

    def _committed(self, batch: ValidatedBatch) -> None:
        with self._lock:
            self._kept = {"position": batch.last, "watermarks": dict(batch.watermarks.latest)}
            self.position = batch.last
            if self.watermarks.latest:
                self._save()
        if self._keyed is not None:
            self._keyed.fold_if_large()

    def _save(self) -> None:
        state = {"position": self.notified, "watermarks": self.watermarks.latest, "created": self.spec.created}
        self._warehouse.save_state(self._folder, state | {"kept": self._kept})
