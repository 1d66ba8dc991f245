"""Long micro-batches: executors read, validate and write them; the driver gets a manifest of the files.

Nothing of the records passes through the driver or the JVM: a task reads its range of the stream as Arrow rows and
writes Parquet files where the table is. They are in the table when the driver commits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.datasets.delta_table import write_files
from nearcast.cluster.datasets.table_writer import Manifest
from nearcast.cluster.datasets.validation import RecordValidator
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.cluster.nats_source.range_read import RangeReader, SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable

__all__ = ["write_ranges"]


@dataclass(frozen=True)
class _RangeWriter:
    """The work of a task. root: of the warehouse. name: begins the names of its files. Travels to Spark's workers."""

    reader: RangeReader
    validator: RecordValidator
    watermarks: Watermarks
    root: str
    records: str
    quarantine: str
    name: str

    def __call__(self, part: SequenceRange) -> Manifest:
        rows = list(self.reader.read(part))
        if not rows:
            return Manifest(watermarks=self.watermarks)
        batch = self.validator.split(pa.Table.from_batches(rows), self.watermarks)
        fs, name = Warehouse(self.root).fs, f"{self.name}-{part.first:020d}"
        now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        return Manifest(
            write_files(fs, self.records, name, batch.valid, batch.times),
            write_files(fs, self.quarantine, name, batch.refused, pc.fill_null(batch.refused["time"], now)),
            batch.valid.num_rows,
            batch.refused.num_rows,
            batch.removed,
            batch.watermarks,
            batch.arrived_us,
        )


def write_ranges(
    spark: SparkSession, table: StreamTable, reader: RangeReader, parts: Sequence[SequenceRange], last: int
) -> Manifest:
    """Write a batch that ends with a sequence, each range by a task. `table.keep_written` puts it into the table."""
    root, records, quarantine, name = table.write_target(last)
    writer = _RangeWriter(reader, table.validator, table.watermarks, root, records, quarantine, name)
    found: list[Manifest] = spark.sparkContext.parallelize(parts, len(parts)).map(writer).collect()
    watermarks = table.watermarks
    for manifest in found:
        watermarks = watermarks.joined(manifest.watermarks.latest)
    return Manifest(
        [file for manifest in found for file in manifest.files],
        [file for manifest in found for file in manifest.refused_files],
        sum(manifest.rows for manifest in found),
        sum(manifest.refused for manifest in found),
        sum(manifest.removed for manifest in found),
        watermarks,
        max((manifest.arrived_us for manifest in found), default=0),
    )
