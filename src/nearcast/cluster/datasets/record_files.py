"""Records from files, here or in a request: CSV, Parquet, a JSON object per line; or from a Delta table."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from deltalake import DeltaTable

from nearcast.cluster.datasets.csv_cells import cell_value
from nearcast.cluster.datasets.json_values import convert_column, decimal_reason, is_converted, type_as_read
from nearcast.cluster.datasets.records import RecordReader
from nearcast.cluster.datasets.schema import conform
from nearcast.errors import InputError
from nearcast.protocol.data_cluster import RecordFile

__all__ = ["read_records", "read_table", "record_file"]

_JSON = (".json", ".jsonl", ".ndjson")
_AT_ONCE = 10_000  # records of a JSON file


def read_records(path: Path, kinds: Mapping[str, str] | None = None) -> Iterator[bytes | dict[str, Any]]:
    """The records of a file, to be fed one by one. kinds: of columns, by which cells of CSV are read."""
    if path.suffix in _JSON:
        yield from _json_lines(path)
    elif path.suffix == ".csv" and kinds is not None:
        for batch in _csv_texts(path).to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                yield {name: cell_value(text, kinds.get(name, "STRING")) for name, text in row.items()}
    else:
        for batch in _load(path, None).to_batches(max_chunksize=1000):
            yield from batch.to_pylist()


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
    """A whole file as a table of this schema. required: columns that have no nulls; others may be missing."""
    path = Path(file.name) if isinstance(file, RecordFile) else file
    if path.suffix in _JSON:
        return _read_json(path, file, schema, required)
    table = _parse(path, pa.BufferReader(file.content), schema) if isinstance(file, RecordFile) else _load(path, schema)
    has = ", ".join(table.column_names)
    for name in schema.names:
        if name in required and name not in table.column_names:
            raise InputError(f"{path}: column {name!r} is missing; the file has: {has}")
    if not set(schema.names) & set(table.column_names):
        raise InputError(f"{path}: it has none of the columns {', '.join(schema.names)}; the file has: {has}")
    try:
        table = conform(table, schema)
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
        if path.suffix == ".csv":
            return _read_cells(source, {}) if schema is None else _read_csv(path, source, schema)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    raise InputError(f"{path}: unknown file type; allowed: .csv, .parquet, .json, .jsonl, .ndjson")


def _csv_texts(path: Path) -> pa.Table:
    """All cells as they are written."""
    try:
        with pacsv.open_csv(path) as stream:
            return _read_cells(path, dict.fromkeys(stream.schema.names, pa.string()))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None


def _read_cells(source: Any, types: dict[str, pa.DataType]) -> pa.Table:
    """CSV. An empty cell is null, unless it is quoted, and no other is: NA may be a name."""
    options = pacsv.ConvertOptions(
        column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    return pacsv.read_csv(source, convert_options=options)


def _read_csv(path: Path, source: Any, schema: pa.Schema) -> pa.Table:
    """What is converted in JSON is in CSV, too: its decimals wrap around like those, and binary is base64."""
    types = {field.name: pa.string() if is_converted(field.type) else field.type for field in schema}
    table = _read_cells(source, types)
    for field in schema:
        if field.name not in table.column_names:
            continue
        if pa.types.is_floating(field.type):
            numbers = table[field.name]
            odd = pc.indices_nonzero(pc.fill_null(pc.invert(pc.is_finite(numbers)), False))
            _refuse_first(path, {n: f"field {field.name}: {numbers[n]} is not a number" for n in odd.to_pylist()[:1]})
        if is_converted(field.type):
            texts = table[field.name].combine_chunks()
            try:
                values = texts.cast(type_as_read(field.type))
            except pa.ArrowInvalid as error:
                reason = decimal_reason(schema, field.name, str(error)) or f"field {field.name}: {error}"
                raise InputError(f"{path}: {reason}") from None
            column, wrong = convert_column(values, field.type, field.name)
            _refuse_first(path, wrong)
            table = table.set_column(table.column_names.index(field.name), field.name, column)
    return table


def _read_json(path: Path, file: Path | RecordFile, schema: pa.Schema, required: set[str]) -> pa.Table:
    lines = _records(io.BytesIO(file.content)) if isinstance(file, RecordFile) else _json_lines(path)
    reader = RecordReader(pa.schema([field.with_nullable(field.name not in required) for field in schema]))
    batches: list[pa.RecordBatch] = []
    count = 0
    while some := list(islice(lines, _AT_ONCE)):
        try:
            rows, errors = reader.read(some)
        except pa.ArrowException as error:
            raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
        if errors.null_count < len(errors):
            _refuse_first(path, {count + n: error for n, error in enumerate(errors.to_pylist()) if error is not None})
        batches.append(pa.RecordBatch.from_struct_array(rows))
        count += len(some)
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def _json_lines(path: Path) -> Iterator[bytes]:
    """The lines that are not empty, without the byte order mark that some programs begin a file with."""
    try:
        with path.open("rb") as stream:
            yield from _records(stream)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _records(lines: Iterable[bytes]) -> Iterator[bytes]:
    for n, line in enumerate(lines):
        if record := (line if n else line.removeprefix(codecs.BOM_UTF8)).strip():
            yield record


def _refuse_first(path: Path, wrong: dict[int, str]) -> None:
    if wrong:
        first = min(wrong)
        raise InputError(f"{path}: record {first + 1}: {wrong[first]}")
