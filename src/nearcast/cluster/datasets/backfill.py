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

if TYPE_CHECKING:
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["backfill"]


def backfill(warehouse: Warehouse, spec: DatasetSpec, path: Path) -> int:
    """Append the records of a file or a Delta table; returns how many. Their sequences are negative."""
    if spec.static:
        raise InputError(f"dataset {spec.name} is static; load it instead: nearcast dataset load {spec.name} FILE")
    if spec.key and not spec.time:
        raise InputError(
            f"dataset {spec.name} has a key and no time column: which record of a key is the latest is not known"
        )
    columns = arrow_schema(parse_ddl(without_not_null(spec.schema), f"dataset {spec.name}"))
    table = read_table(path, columns, required_fields(spec.schema))
    schema = arrow_schema(parse_ddl(dataset_ddl(spec), f"dataset {spec.name}"))
    now = time.time_ns() // 1000
    sequences = pa.array(range(-now - table.num_rows, -now), pa.int64())
    table = table.append_column("_sequence", sequences).append_column("_arrived", pa.array([now] * table.num_rows))
    table = table.cast(schema)
    # The same file again is refused: by its place, size and time.
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = "backfill-" + hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
    records = RecordTable(warehouse, warehouse.folder("datasets", spec.name, "data"), schema)
    written = write_files(records.fs, records.folder, f"{name}-{now}", table, record_times(table, spec))
    if not records.append(written, name):
        raise InputError(f"{path} was put into dataset {spec.name} before")
    return int(table.num_rows)
