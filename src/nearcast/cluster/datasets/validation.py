"""Splits micro-batches into valid records and refused ones with the reason. Used by the driver and by executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.datasets.watermarks import Watermarks, sources_of
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from nearcast.cluster.datasets.delta_table import TableFile

__all__ = ["QUARANTINE", "RecordValidator", "ValidatedBatch", "record_times"]

QUARANTINE = pa.schema(
    [
        ("sequence", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("id", pa.string()),
        ("payload", pa.binary()),
        ("removed", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class ValidatedBatch:
    """A micro-batch: valid and refused records. times: of the valid ones. last: the last sequence; 0 when it is empty.

    removed: messages that were removed before they were read. watermarks: after this batch. arrived_us: when the last
    of its messages came to the stream; 0 when there is none. files, refused_files: the records that executors wrote.
    """

    valid: pa.Table
    refused: pa.Table
    times: pa.Array
    last: int
    removed: int
    watermarks: Watermarks
    arrived_us: int = 0
    files: Sequence[TableFile] = ()
    refused_files: Sequence[TableFile] = ()

    @property
    def rows(self) -> int:
        """How many records are valid."""
        return int(self.valid.num_rows) + sum(file.rows for file in self.files)

    @property
    def refused_rows(self) -> int:
        return int(self.refused.num_rows) + sum(file.rows for file in self.refused_files)


@dataclass(frozen=True)
class RecordValidator:
    """Validates the records of one dataset. schema: of its table. Travels to Spark's workers."""

    spec: DatasetSpec
    schema: pa.Schema

    def split(self, batch: pa.Table, watermarks: Watermarks) -> ValidatedBatch:
        """Split rows of the nats source. Lateness is judged by the watermarks before the batch."""
        batch = batch.combine_chunks()
        removed = pc.greater(batch["removed"], 0)
        good = pc.and_(pc.is_null(batch["error"]), pc.invert(removed))
        valid, refused = batch.filter(good), batch.filter(pc.invert(good))
        quarantine = [_quarantine(refused, refused["error"])]
        records = _records(valid, self.schema)
        times = record_times(records, self.spec)
        for wrong, reason in self._out_of_time(valid, records, times, watermarks):
            quarantine.append(_quarantine(valid.filter(wrong), pa.scalar(reason)))
            kept = pc.invert(wrong)
            valid, records, times = valid.filter(kept), records.filter(kept), times.filter(kept)
        if self.spec.late_after is not None:
            watermarks = watermarks.advanced(sources_of(_flat(valid["id"])), times, _flat(records["_arrived"]))
        last = int(pc.max(batch["sequence"]).as_py()) if batch.num_rows else 0
        count = int(pc.sum(batch["removed"]).as_py() or 0)
        arrived_us = int(pc.max(batch["time"]).cast(pa.int64()).as_py() or 0)
        return ValidatedBatch(records, pa.concat_tables(quarantine), times, last, count, watermarks, arrived_us)

    def _out_of_time(
        self, valid: pa.Table, records: pa.Table, times: pa.Array, watermarks: Watermarks
    ) -> list[tuple[pa.Array, str]]:
        """Which records are refused for their time, and why; at most one reason for each."""
        found: list[tuple[pa.Array, str]] = []
        spec = self.spec
        if spec.future_limit is not None:
            ahead = pc.subtract(times.cast(pa.int64()), _flat(records["_arrived"]).cast(pa.int64()))
            future = pc.greater(ahead, int(spec.future_limit * 1e6))
            if pc.any(future).as_py():
                reason = f"{spec.time} is more than {spec.future_limit:g} s after the record arrived"
                found.append((future, reason))
        if spec.late_after is not None and watermarks.latest:
            behind = watermarks.behind(sources_of(_flat(valid["id"])), times)
            late = pc.greater(behind, int(spec.late_after * 1e6))
            if found:
                late = late.filter(pc.invert(found[0][0]))
            if pc.any(late).as_py():
                found.append((late, f"late by more than {spec.late_after:g} s"))
        return found


def record_times(records: pa.Table, spec: DatasetSpec) -> pa.Array:
    """The time of each record: what its time column says, else when it arrived."""
    arrived = _flat(records["_arrived"])
    if not spec.time:
        return arrived
    return pc.coalesce(_flat(records[spec.time]).cast(arrived.type), arrived)


def _quarantine(rows: pa.Table, reasons: Any) -> pa.Table:
    if isinstance(reasons, pa.Scalar):
        reasons = pa.repeat(reasons, rows.num_rows)
    columns = {name: rows[name] for name in ("sequence", "time", "id", "payload", "removed")}
    return pa.table(columns | {"reason": reasons}).cast(QUARANTINE)


def _records(valid: pa.Table, schema: pa.Schema) -> pa.Table:
    values = _flat(valid["value"])
    columns: list[Any] = [values.field(n) for n in range(values.type.num_fields)]
    table = pa.Table.from_arrays([*columns, valid["sequence"], valid["time"]], names=schema.names)
    return table.cast(schema)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
