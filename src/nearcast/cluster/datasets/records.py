"""JSON payloads to typed Arrow rows. A record that does not fit its schema gives an error text, never an exception."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RecordReader"]


@dataclass(frozen=True)
class RecordReader:
    """Reads JSON objects by a schema: unknown fields are ignored, missing ones are null unless they are required."""

    schema: pa.Schema

    def read(self, payloads: Sequence[bytes]) -> tuple[pa.StructArray, pa.Array]:
        """For each payload a struct (null if it does not fit the schema) and an error (null if it does)."""
        if not payloads:
            return self._empty(0), pa.nulls(0, pa.string())
        structs: list[pa.Array] = []
        reasons: list[pa.Array] = []
        self._read(list(payloads), structs, reasons)
        return pa.concat_arrays(structs), pa.concat_arrays(reasons)

    def _read(self, payloads: list[bytes], structs: list[pa.Array], reasons: list[pa.Array]) -> None:
        """All at once; if that fails, halve until the payload that does not fit is alone."""
        try:
            table = self._parse(payloads)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            if len(payloads) == 1:
                structs.append(self._empty(1))
                reasons.append(pa.array([_plain(str(error))], pa.string()))
                return
            middle = len(payloads) // 2
            self._read(payloads[:middle], structs, reasons)
            self._read(payloads[middle:], structs, reasons)
            return
        missing = self._missing(table)
        columns = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns]
        fields = [field.with_nullable(True) for field in self.schema]
        good = pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_valid(missing))
        structs.append(good)
        reasons.append(missing)

    def _parse(self, payloads: list[bytes]) -> pa.Table:
        # Each line must be one object: a payload that starts an object and has no line break can only be one line.
        for payload in payloads:
            if payload[:1] != b"{" or b"\n" in payload:
                payloads = [_one_line(payload) for payload in payloads]
                break
        text = b"\n".join(payloads)
        text.decode()  # Arrow's JSON reader does not check for UTF-8
        explicit = pa.schema([_as_read(field) for field in self.schema])
        options = pj.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="ignore")
        reading = pj.ReadOptions(block_size=max(len(text) + 1, 1 << 20), use_threads=False)
        table = pj.read_json(io.BytesIO(text), read_options=reading, parse_options=options)
        if table.num_rows != len(payloads):
            raise pa.ArrowInvalid("one JSON object is needed")
        return table.cast(pa.schema([field.with_nullable(True) for field in self.schema]))

    def _missing(self, table: pa.Table) -> pa.Array:
        reasons = pa.nulls(table.num_rows, pa.string())
        for field in self.schema:
            column = table.column(field.name)
            if not field.nullable and column.null_count:
                reason = pa.scalar(f"field {field.name} is missing")
                absent = pc.and_(pc.is_null(column), pc.is_null(reasons)).combine_chunks()
                reasons = pc.if_else(absent, reason, reasons)
        return reasons

    def _empty(self, rows: int) -> pa.StructArray:
        return pa.nulls(rows, pa.struct([field.with_nullable(True) for field in self.schema]))


def _as_read(field: pa.Field) -> pa.Field:
    """Arrow's JSON reader does not read dates; they are read as text and cast."""
    return field.with_type(pa.string()) if pa.types.is_date(field.type) else field.with_nullable(True)


def _one_line(payload: bytes) -> bytes:
    line = payload.replace(b"\n", b" ").strip()
    if not line.startswith(b"{"):
        raise pa.ArrowInvalid("a JSON object is needed" if line else "the payload is empty")
    return line


def _plain(message: str) -> str:
    """Arrow's message without the row number: there is one row."""
    text = re.sub(r"^JSON parse error: | in row 0$", "", message.splitlines()[0]).rstrip(". ")
    found = re.fullmatch(r"Column\(/?(.*)\) changed from (\w+) to (\w+)", text)
    if found:
        return f"field {found[1]} is {found[3]}, not {found[2]}" if found[1] else f"{found[3]}, not an object"
    return text
