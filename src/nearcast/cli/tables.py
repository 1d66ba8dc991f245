"""Tables in and out of the command line: CSV with a header row or Parquet, validated as they enter.

A refusal is one line that names the file, the row (1 is the first row below the header) and the reason.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Column", "Ids", "Table", "column_names", "read_table", "write_table"]


@dataclass(frozen=True)
class Column:
    """One column a command reads. Numbers must be finite and, by default, not negative.

    `alias` is an older name of the column, which files may still have.
    """

    name: str
    kind: Literal["text", "number", "integer"] = "number"
    optional: bool = False
    minimum: float | None = 0.0
    maximum: float | None = None
    positive: bool = False
    choices: tuple[str, ...] = ()
    alias: str | None = None


@dataclass(frozen=True)
class Table:
    """A validated table: columns by name. Numbers are float64 or int64, text stays an Arrow array.

    `table[name]` gives text as an array of str objects; with millions of rows leave it to `Ids`, which need none.
    """

    path: Path
    rows: int
    columns: Mapping[str, NDArray[Any] | pa.Array]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.asarray(self.columns[name])

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def refuse(self, row: int, reason: str) -> NoReturn:
        """Raise for a row, counted from 0 here and from 1 in the message."""
        raise InputError(f"{self.path}, row {row + 1}: {reason}")

    def refuse_first(self, wrong: NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        """Raise for the first row that is wrong, if any is."""
        rows = np.flatnonzero(wrong)
        if rows.size:
            self.refuse(int(rows[0]), reason(int(rows[0])))

    def where(self, kept: NDArray[np.bool_]) -> Table:
        """The table with some of its rows."""
        mask = pa.array(kept)
        columns = {name: pc.filter(pa.array(column), mask) for name, column in self.columns.items()}
        return Table(self.path, int(kept.sum()), columns)


@dataclass(frozen=True)
class Ids:
    """The identifiers that one table defines, so that others can refer to them by position."""

    noun: str
    source: Path
    names: NDArray[Any]

    def positions(self, table: Table, column: str) -> NDArray[np.int64]:
        """Positions of the identifiers in a column of another table; refuses an unknown one."""
        found = pc.index_in(table.columns[column], value_set=pa.array(self.names))
        if found.null_count:
            row = _first(found.is_null())
            table.refuse(row, f"{column} {_cell(table, column, row)!r} is not a {self.noun} of {self.source}")
        return np.asarray(found.to_numpy(), dtype=np.int64)


def read_table(path: Path, columns: Sequence[Column], *, key: Sequence[str] = ()) -> Table:
    """Read and validate a table; `key` names the columns that together must be unique."""
    raw = _load(path)
    aliases = {c.alias: c.name for c in columns if c.alias is not None and c.name not in raw.column_names}
    have = raw.column_names
    raw = raw.rename_columns([aliases.get(name, name) for name in have])
    missing = [c.name for c in columns if not c.optional and c.name not in raw.column_names]
    if missing:
        raise InputError(f"{path}, row 0 (header): column {missing[0]!r} is missing; the file has: {', '.join(have)}")
    repeated = [name for name in have if have.count(name) > 1 and aliases.get(name, name) in {c.name for c in columns}]
    if repeated:
        raise InputError(f"{path}, row 0 (header): column {repeated[0]!r} is there twice; leave one of them out")
    if raw.num_rows == 0:
        raise InputError(f"{path}, row 1: the file has a header and no rows")
    present = [c for c in columns if c.name in raw.column_names]
    table = Table(path, raw.num_rows, {})
    checked = {c.name: _convert(table, c, raw.column(c.name).combine_chunks()) for c in present}
    table = Table(path, raw.num_rows, checked)
    if key:
        _refuse_duplicates(table, key)
    return table


def write_table(path: Path | None, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write CSV to a file, or to standard output when there is none."""
    try:
        _write(path, columns)
    except OSError as error:
        raise InputError(f"{path}, row 0: cannot be written: {error.strerror or error}") from None


def _write(path: Path | None, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    names = list(columns)
    if path is not None and path.suffix == ".parquet":
        pa.parquet.write_table(pa.table({n: pa.array(columns[n]) for n in names}), path)
        return
    stream = sys.stdout if path is None else path.open("w", newline="")
    try:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(zip(*(columns[n] for n in names), strict=True))
    finally:
        if path is not None:
            stream.close()


def column_names(path: Path) -> list[str]:
    """The columns a file has, as its header names them."""
    try:
        if path.suffix == ".parquet":
            return list(pa.parquet.read_schema(path).names)
        with path.open(newline="") as stream:
            return next(csv.reader(stream), [])
    except FileNotFoundError:
        raise InputError(f"{path}, row 0: there is no such file") from None
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}, row 0: cannot be read as a table: {str(error).splitlines()[0]}") from None


def _load(path: Path) -> pa.Table:
    names = column_names(path)
    try:
        if path.suffix == ".parquet":
            return pa.parquet.read_table(path)
        # Everything is read as text, so that an identifier such as 007 stays what it is.
        types = {name: pa.string() for name in names}
        return pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=types))
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}, row 0: cannot be read as a table: {str(error).splitlines()[0]}") from None


def _convert(table: Table, column: Column, values: pa.Array) -> NDArray[Any] | pa.Array:
    text = pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
    empty = pc.or_kleene(pc.is_null(text), pc.equal(text, "")).fill_null(True)
    if pc.any(empty).as_py():
        table.refuse(_first(empty), f"{column.name} is empty")
    if column.kind == "text":
        if column.choices:
            wrong = pc.invert(pc.is_in(text, value_set=pa.array(column.choices)))
            if pc.any(wrong).as_py():
                row = _first(wrong)
                allowed = ", ".join(column.choices)
                table.refuse(row, f"{column.name} is {text[row].as_py()!r}; allowed: {allowed}")
        return text
    try:
        numbers = np.asarray(pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        row = next(i for i, cell in enumerate(text.to_pylist()) if not _is_number(cell))
        table.refuse(row, f"{column.name} is {text[row].as_py()!r}, not a number")

    def check(wrong: NDArray[np.bool_], needed: str) -> None:
        table.refuse_first(wrong, lambda row: f"{column.name} is {text[row].as_py()}; {needed} is needed")

    check(~np.isfinite(numbers), "a finite number")
    if column.minimum is not None:
        check(numbers < column.minimum, f"at least {column.minimum:g}")
    if column.maximum is not None:
        check(numbers > column.maximum, f"at most {column.maximum:g}")
    if column.positive:
        check(numbers <= 0, "more than 0")
    if column.kind == "number":
        return numbers
    whole = numbers.astype(np.int64)
    check(whole != numbers, "a whole number")
    return whole


def _refuse_duplicates(table: Table, key: Sequence[str]) -> None:
    value = np.zeros(table.rows, dtype=np.int64)  # one number for each different key
    for name in key:
        encoded = pa.array(table.columns[name]).dictionary_encode()
        value = value * len(encoded.dictionary) + encoded.indices.to_numpy()
        if name != key[-1]:
            value = pa.array(value).dictionary_encode().indices.to_numpy().astype(np.int64)  # small again
    order = np.argsort(value, kind="stable")
    again = order[1:][value[order[1:]] == value[order[:-1]]]
    if len(again):
        row = int(again.min())
        first = int(np.flatnonzero(value == value[row])[0])
        what = ", ".join(f"{name} {_cell(table, name, row)!r}" for name in key)
        table.refuse(row, f"{what} is there twice, first in row {first + 1}")


def _cell(table: Table, name: str, row: int) -> Any:
    value = table.columns[name][row]
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
