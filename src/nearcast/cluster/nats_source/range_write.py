"""Long micro-batches: executors read, validate and write them; the driver gets the names of the files.

Nothing of the records passes through the driver or the JVM: a task reads its range of the stream as Arrow rows and
writes Parquet files where the table is. They are in the table when the driver commits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.datasets.delta_table import TableFile, write_files
from nearcast.cluster.datasets.validation import QUARANTINE, RecordValidator, ValidatedBatch, record_times
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.cluster.nats_source.range_read import RangeReader, SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable

__all__ = ["write_ranges"]

# Files of records and of refused ones, messages that were removed, how far each source has come, and when the last
# message came to the stream.
_Written = tuple[Sequence[TableFile], Sequence[TableFile], int, Mapping[str, int], int]


def write_ranges(
    spark: SparkSession, table: StreamTable, reader: RangeReader, parts: Sequence[SequenceRange], last: int
) -> ValidatedBatch:
    """Write a batch that ends with a sequence, each range by a task. `table.keep` puts it into the table."""
    task = partial(_write_range, reader, table.validator, table.watermarks, *table.write_target(last))
    found: list[_Written] = spark.sparkContext.parallelize(parts, len(parts)).map(task).collect()
    files, refused_files, removed, latest, arrived_us = zip(*found, strict=True)
    empty = table.arrow.empty_table()
    return ValidatedBatch(
        empty,
        QUARANTINE.empty_table(),
        record_times(empty, table.spec),
        last,
        sum(removed),
        reduce(Watermarks.joined, latest, table.watermarks),
        max(arrived_us),
        list(chain(*files)),
        list(chain(*refused_files)),
    )


def _write_range(
    reader: RangeReader,
    validator: RecordValidator,
    watermarks: Watermarks,
    root: str,
    records: str,
    quarantine: str,
    name: str,
    part: SequenceRange,
) -> _Written:
    """The work of a task. root: of the warehouse. name: begins the names of its files."""
    rows = list(reader.read(part))
    if not rows:
        return [], [], 0, {}, 0
    batch = validator.split(pa.Table.from_batches(rows), watermarks)
    fs, name = Warehouse(root).fs, f"{name}-{part.first:020d}"
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    files = write_files(fs, records, name, batch.valid, batch.times)
    refused_files = write_files(fs, quarantine, name, batch.refused, pc.fill_null(batch.refused["time"], now))
    return files, refused_files, batch.removed, batch.watermarks.latest, batch.arrived_us
