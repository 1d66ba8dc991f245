"""Puts past records into a dataset's table: no channel is notified of them."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.datasets.delta_table import RecordTable, write_files
from nearcast.cluster.datasets.record_files import read_table
from nearcast.cluster.datasets.schema import arrow_schema, dataset_ddl, parse_ddl, required_fields, without_not_null
from nearcast.cluster.datasets.validation import record_times
from nearcast.errors import InputError
from nearcast.protocol.data_cluster import RecordFile

if TYPE_CHECKING:
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["backfill"]


def backfill(warehouse: Warehouse, spec: DatasetSpec, source: Path | RecordFile) -> int:
    """Append the records of a file, here or in a request, or of a Delta table; returns how many.

    Their sequences are negative.
    """
    if spec.static:
        raise InputError(f"dataset {spec.name} is static; load it instead: nearcast dataset load {spec.name} FILE")
    if spec.key and not spec.time:
        raise InputError(
            f"dataset {spec.name} has a key and no time column: which record of a key is the latest is not known"
        )
    columns = arrow_schema(parse_ddl(without_not_null(spec.schema), f"dataset {spec.name}"))
    table = read_table(source, columns, required_fields(spec.schema))
    schema = arrow_schema(parse_ddl(dataset_ddl(spec), f"dataset {spec.name}"))
    now = time.time_ns() // 1000
    sequences = pa.array(range(-now - table.num_rows, -now), pa.int64())
    table = table.append_column("_sequence", sequences).append_column("_arrived", pa.array([now] * table.num_rows))
    table = table.cast(schema)
    name = f"backfill-{_identity(source)}"
    records = RecordTable(warehouse, warehouse.folder("datasets", spec.name, "data"), schema)
    written = write_files(records.fs, records.folder, f"{name}-{now}", table, record_times(table, spec))
    if not records.append(written, name):
        what = "the same records were" if isinstance(source, RecordFile) else f"{source} was"
        raise InputError(f"{what} put into dataset {spec.name} before")
    return int(table.num_rows)


def _identity(source: Path | RecordFile) -> str:
    """By which the same source is known again: of a file its place, size and time, of a request what it has."""
    if isinstance(source, RecordFile):
        return hashlib.sha256(source.content).hexdigest()[:16]
    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
