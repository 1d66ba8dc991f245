"""What a task does: reads a range of sequences of one stream as Arrow rows.

A gap becomes a row without payload that says how many messages were removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from nearcast.cluster.datasets.records import RecordReader
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.read_options import ReadOptions
from nearcast.nats.arrow_entries import entry_columns
from nearcast.nats.streams import RawBatch, StreamError

__all__ = ["COLUMNS", "RangeReader", "SequenceRange"]

COLUMNS = "stream STRING, sequence BIGINT, subject STRING, time TIMESTAMP, id STRING, payload BINARY, removed BIGINT"


@dataclass
class SequenceRange(InputPartition):
    """The messages first ≤ sequence ≤ last of a stream. removed: how many before `first` are gone."""

    stream: str
    first: int
    last: int
    removed: int = 0


class RangeReader:
    """Reads ranges. records: parses the payloads, if they have a schema. Travels to Spark's workers."""

    def __init__(self, options: ReadOptions, records: RecordReader | None) -> None:
        self._options, self.records = options, records

    def read(self, part: SequenceRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        position = part.first
        if part.removed:
            yield self._removed(part.stream, part.first - 1, part.removed)
        fetching = self._start(part, position)
        while fetching is not None:
            fetched = fetching.result()
            if not fetched.payloads:
                break
            rows = entry_columns(fetched)
            end = int(rows["sequence"][-1].as_py())
            fetching = self._start(part, end + 1)  # fetched while these rows are parsed
            if end > part.last:
                count = int(pc.sum(pc.less_equal(rows["sequence"], part.last)).as_py() or 0)
                rows = {name: column[:count] for name, column in rows.items()}
                end, fetching = part.last, None
            if not self._options.subject:
                yield from self._gaps(part.stream, position, rows["sequence"], end)
            if len(rows["sequence"]):
                yield self._batch(part.stream, rows)
            position = end + 1
        if not self._options.subject and position <= part.last:
            yield self._removed(part.stream, part.last, part.last - position + 1)

    def _start(self, part: SequenceRange, first: int) -> Future[RawBatch] | None:
        if first > part.last:
            return None
        connection = connection_to(self._options.servers)
        reader, subject = connection.reader(self._options.prefix), self._options.subject
        count = part.last - first + 1
        return connection.start(connection.answer(lambda: reader.read_raw(part.stream, first, count, subject)))

    def _gaps(self, stream: str, position: int, sequences: pa.Array, end: int) -> Iterator[pa.RecordBatch]:
        if end - position + 1 == len(sequences):
            return
        expected = position
        for sequence in sequences.to_pylist():
            if sequence > expected:
                yield self._removed(stream, sequence - 1, sequence - expected)
            expected = sequence + 1
        if end >= expected:
            yield self._removed(stream, end, end - expected + 1)

    def _removed(self, stream: str, last: int, count: int) -> pa.RecordBatch:
        problem = f"{count} messages up to sequence {last} were removed before they were read"
        if self._options.fail_on_removed:
            raise StreamError(f"stream {stream}: {problem}")
        rows = {
            "stream": pa.array([stream]),
            "sequence": pa.array([last], pa.int64()),
            "subject": pa.nulls(1, pa.string()),
            "time": pa.nulls(1, pa.timestamp("us", "UTC")),
            "id": pa.nulls(1, pa.string()),
            "payload": pa.nulls(1, pa.binary()),
            "removed": pa.array([count], pa.int64()),
        }
        if self.records is not None:
            rows["value"] = pa.nulls(1, pa.struct([field.with_nullable(True) for field in self.records.schema]))
            rows["error"] = pa.array([problem])
        return pa.RecordBatch.from_arrays(list(rows.values()), names=list(rows))

    def _batch(self, stream: str, rows: dict[str, pa.Array]) -> pa.RecordBatch:
        count = len(rows["sequence"])
        columns = {"stream": pa.repeat(pa.scalar(stream), count), **rows, "removed": pa.repeat(pa.scalar(0), count)}
        if self.records is not None:
            columns["value"], columns["error"] = self.records.read(rows["payload"].to_pylist())
            # The payload of a valid record is not needed again; it would double the data that Spark moves.
            failed = pc.is_valid(columns["error"])
            columns["payload"] = pc.if_else(failed, rows["payload"], pa.scalar(None, pa.binary()))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
