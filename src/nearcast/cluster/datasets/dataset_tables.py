"""Datasets at run time: records are validated and kept batch by batch; queries see them as Spark frames."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.datasets.schema import arrow_schema, dataset_ddl, parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["StaticTable", "StreamTable", "ValidatedBatch", "static_path"]

# A table up to this size is sent with the plan: joining it takes no job of its own.
_SENT_WITH_PLAN = 4 << 20


@dataclass(frozen=True)
class ValidatedBatch:
    """A micro-batch: valid and refused records. last: its last sequence.

    removed: messages that were removed before they were read. watermark: the latest time seen, in microseconds.
    """

    valid: pa.Table
    refused: pa.Table
    times: pa.Array
    last: int
    removed: int
    watermark: int


class StreamTable:
    """A stream dataset. Only its own query adds to it; any thread may read.

    position: the last sequence that is kept. watermark: the latest time among the records, in microseconds.
    """

    def __init__(self, spark: SparkSession, spec: DatasetSpec, warehouse: Warehouse) -> None:
        self.spec, self._spark, self._warehouse = spec, spark, warehouse
        self._folder = warehouse.folder("datasets", spec.name)
        self._data = f"{self._folder}/data"
        self.schema = parse_ddl(dataset_ddl(spec), f"dataset {spec.name}")
        self.arrow = arrow_schema(self.schema)
        state = warehouse.load_state(self._folder)
        if state.get("created", spec.created) != spec.created:  # of a removed dataset of the same name
            warehouse.remove(self._folder)
            state = {}
        self.position = int(state.get("position", 0))
        self.watermark = int(state.get("watermark", 0))
        self._lock = threading.Lock()
        self._latest: pa.Table | None = None
        if spec.key:
            spans = warehouse.files(self._data)
            tables = [warehouse.read(span).cast(self.arrow) for span in sorted(spans, key=lambda s: s.high)]
            self._latest = self._last_of_each(pa.concat_tables(tables or [self.arrow.empty_table()]))

    def validate(self, batch: pa.Table) -> ValidatedBatch:
        """Split a micro-batch of the nats source: valid records, and refused ones with the reason. Keeps nothing."""
        batch = batch.combine_chunks()
        removed = pc.greater(batch["removed"], 0)
        valid = batch.filter(pc.and_(pc.is_null(batch["error"]), pc.invert(removed)))
        refused = batch.filter(pc.or_(pc.is_valid(batch["error"]), removed))
        records = _records(valid, self.arrow)
        times = self._times(records)
        watermark = max(self.watermark, _latest_time(times))
        reasons = refused["error"]
        if self.spec.late_after is not None and self.watermark:
            oldest = self.watermark - int(self.spec.late_after * 1e6)
            late = pc.less(times.cast(pa.int64()), oldest)
            if pc.any(late).as_py():
                refused = pa.concat_tables([refused, valid.filter(late)])
                reason = f"late by more than {self.spec.late_after:g} s"
                reasons = pa.chunked_array([*reasons.chunks, pa.array([reason] * pc.sum(late).as_py(), pa.string())])
                records, times = records.filter(pc.invert(late)), times.filter(pc.invert(late))
        quarantine = pa.table(
            {name: refused[name] for name in ("sequence", "time", "id", "payload", "removed")} | {"reason": reasons}
        )
        last = int(pc.max(batch["sequence"]).as_py()) if batch.num_rows else self.position
        count = int(pc.sum(batch["removed"]).as_py() or 0)
        return ValidatedBatch(records, quarantine, times, last, count, watermark)

    def keep(self, batch: ValidatedBatch) -> None:
        """Store a batch. Idempotent."""
        self._warehouse.write_by_day(self._data, batch.last, batch.valid, batch.times)
        if batch.refused.num_rows:
            self._warehouse.write(f"{self._folder}/quarantine", batch.last, batch.refused)
        state = {"position": batch.last, "watermark": batch.watermark, "created": self.spec.created}
        self._warehouse.save_state(self._folder, state)
        with self._lock:
            if self._latest is not None and batch.valid.num_rows:
                self._latest = self._last_of_each(pa.concat_tables([self._latest, batch.valid]))
            self.position, self.watermark = batch.last, batch.watermark

    def frame(self) -> DataFrame:
        """All records; for a dataset with a key, the latest record of each key."""
        if self._latest is not None:
            with self._lock:
                return self._spark.createDataFrame(self._latest, self.schema)
        return self._read([span.path for span in self._warehouse.files(self._data)])

    def between(self, low: int, high: int) -> DataFrame:
        """The records with low < sequence ≤ high."""
        paths = [span.path for span in self._warehouse.files(self._data) if span.high > low]
        frame = self._read(paths)
        return frame.where((frame["_sequence"] > low) & (frame["_sequence"] <= high))

    def tidy(self, now: datetime) -> None:
        """Merge small files and delete records older than `keep_seconds`."""
        for folder in (self._data, f"{self._folder}/quarantine"):
            self._warehouse.merge(folder)
        if self.spec.keep_seconds is not None:
            oldest = now.astimezone(UTC) - timedelta(seconds=self.spec.keep_seconds)
            self._warehouse.delete_days(self._data, oldest.strftime("%Y-%m-%d"))

    def _read(self, paths: list[str]) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame(self.arrow.empty_table(), self.schema)
        return self._spark.read.schema(self.schema).parquet(*map(self._warehouse.uri, paths))

    def _times(self, records: pa.Table) -> pa.Array:
        arrived = _flat(records["_arrived"])
        if not self.spec.time:
            return arrived
        return pc.coalesce(_flat(records[self.spec.time]).cast(arrived.type), arrived)

    def _last_of_each(self, table: pa.Table) -> pa.Table:
        rows = pa.table({"key": table[self.spec.key], "row": pa.array(range(table.num_rows), pa.int64())})
        last = rows.group_by("key").aggregate([("row", "max")])["row_max"]
        return table.take(last).combine_chunks()


class StaticTable:
    """A static dataset: one version at a time."""

    def __init__(self, spark: SparkSession, spec: DatasetSpec, warehouse: Warehouse) -> None:
        self.spec = spec
        schema = parse_ddl(dataset_ddl(spec), f"dataset {spec.name}")
        if spec.version == 0:
            self._frame = spark.createDataFrame(arrow_schema(schema).empty_table(), schema)
            return
        path = static_path(warehouse, spec.name, spec.version)
        table = warehouse.read(path).cast(arrow_schema(schema))
        self._frame = spark.createDataFrame(table, schema)
        if table.nbytes > _SENT_WITH_PLAN:
            self._frame = self._frame.cache()

    def frame(self) -> DataFrame:
        return self._frame

    def close(self) -> None:
        """Drop it from Spark's cache."""
        self._frame.unpersist()


def static_path(warehouse: Warehouse, name: str, version: int) -> str:
    """The file of a version of a static dataset."""
    return warehouse.folder("datasets", name, "static", f"{version:08d}.parquet")


def _records(valid: pa.Table, schema: pa.Schema) -> pa.Table:
    values = _flat(valid["value"])
    columns: list[Any] = [values.field(n) for n in range(values.type.num_fields)]
    table = pa.Table.from_arrays([*columns, valid["sequence"], valid["time"]], names=schema.names)
    return table.cast(schema)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _latest_time(times: pa.Array) -> int:
    return int(pc.max(times.cast(pa.int64())).as_py() or 0) if len(times) else 0
