"""Records from files, here or in a request: CSV, Parquet, a JSON object per line; or from a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from deltalake import DeltaTable

from nearcast.errors import InputError
from nearcast.protocol.data_cluster import RecordFile

__all__ = ["read_records", "read_table", "record_file"]

_JSON = (".json", ".jsonl", ".ndjson")


def read_records(path: Path) -> Iterator[bytes | dict[str, Any]]:
    """The records of a file, to be fed one by one."""
    if path.suffix not in _JSON:
        for batch in _load(path, None).to_batches(max_chunksize=1000):
            yield from batch.to_pylist()
        return
    try:
        with path.open("rb") as stream:
            yield from (line.strip() for line in stream if line.strip())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def record_file(dataset: str, path: Path) -> RecordFile:
    """A file as it goes into a request; a Delta table as Parquet."""
    try:
        if not (path / "_delta_log").is_dir():
            return RecordFile(dataset, path.name, path.read_bytes())
        sink = pa.BufferOutputStream()
        pq.write_table(DeltaTable(path).to_pyarrow_table(), sink)
        return RecordFile(dataset, f"{path.name}.parquet", sink.getvalue().to_pybytes())
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None


def read_table(file: Path | RecordFile, schema: pa.Schema, required: set[str]) -> pa.Table:
    """A whole file as a table of this schema. required: columns that have no nulls."""
    if isinstance(file, RecordFile):
        path = Path(file.name)
        table = _parse(path, pa.BufferReader(file.content), schema)
    else:
        path = file
        table = _load(path, schema)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} is missing; the file has: {', '.join(table.column_names)}")
    try:
        table = table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    for name in schema.names:
        if name in required and table[name].null_count:
            raise InputError(f"{path}: column {name!r} has {table[name].null_count} empty values; it is NOT NULL")
    return table


def _load(path: Path, schema: pa.Schema | None) -> pa.Table:
    try:
        if (path / "_delta_log").is_dir():
            return DeltaTable(path).to_pyarrow_table()
    except OSError as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    return _parse(path, path, schema)


def _parse(path: Path, source: Any, schema: pa.Schema | None) -> pa.Table:
    """source: the path, or what is to be read instead."""
    try:
        if path.suffix == ".parquet":
            return pq.read_table(source)
        if path.suffix in _JSON:
            return pajson.read_json(source)
        if path.suffix == ".csv":
            types = {field.name: field.type for field in schema} if schema is not None else None
            return pacsv.read_csv(source, convert_options=pacsv.ConvertOptions(column_types=types))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    raise InputError(f"{path}: unknown file type; allowed: .csv, .parquet, .json, .jsonl, .ndjson")
