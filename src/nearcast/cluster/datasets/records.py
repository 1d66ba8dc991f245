"""JSON payloads to typed Arrow rows. A record that does not fit its schema gives an error text, never an exception."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from nearcast.cluster.datasets.json_values import convert_column, decimal_reason, is_converted, type_as_read
from nearcast.cluster.datasets.schema import ALLOWED_TYPES
from nearcast.cluster.datasets.suspects import find_suspects
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RecordReader", "check_readable"]

# With a larger part of payloads that only Arrow can judge, halving finds the invalid ones faster.
_MOST_DOUBTFUL = 0.02
# After an invalid payload, this many reads begin with the quick look: invalid ones seldom come alone.
_WARY_READS = 20
_LONGEST_REASON = 200  # it may show a number of a million digits

_Rows = tuple[pa.StructArray, pa.Array]


@dataclass
class RecordReader:
    """Reads JSON objects by a schema: unknown fields are ignored, missing ones are null unless they are required."""

    schema: pa.Schema
    _wary: int = 0

    def read(self, payloads: Sequence[bytes]) -> _Rows:
        """For each payload a struct (null if it does not fit the schema) and an error (null if it does)."""
        if not payloads:
            return self._empty(0), pa.nulls(0, pa.string())
        return self._read_all(list(payloads))

    def _read_all(self, payloads: list[bytes]) -> _Rows:
        """All at once; if that fails, those that look invalid apart from the others."""
        if not self._wary:
            try:
                return self._read_valid(payloads)
            except (pa.ArrowInvalid, UnicodeDecodeError):
                self._wary = _WARY_READS
        self._wary -= 1
        suspects = find_suspects(self.schema, payloads)
        if suspects:
            self._wary = _WARY_READS
        doubtful = sum(reason is None for reason in suspects.values())
        if not suspects or doubtful > max(_MOST_DOUBTFUL * len(payloads), 1):
            return self._halve(payloads)
        others = [n for n in range(len(payloads)) if n not in suspects]
        parts = [self._halve([payloads[n] for n in others])] if others else []
        refused = {n: reason for n, reason in suspects.items() if reason is not None}
        unclear = [n for n in suspects if n not in refused]
        parts += [self._refused(*refused.values()), *(self._halve([payloads[n]]) for n in unclear)]
        order = pc.sort_indices(pa.array([*others, *refused, *unclear]))
        structs, reasons = _joined(parts)
        return structs.take(order), reasons.take(order)

    def _halve(self, payloads: list[bytes]) -> _Rows:
        """All at once; if that fails, halve until the payload that does not fit is alone."""
        try:
            return self._read_valid(payloads)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            if len(payloads) == 1:
                return self._refused(find_suspects(self.schema, payloads).get(0) or self._reason(payloads[0], error))
        middle = len(payloads) // 2
        return _joined([self._halve(payloads[:middle]), self._halve(payloads[middle:])])

    def _refused(self, *reasons: str) -> _Rows:
        return self._empty(len(reasons)), pa.array(reasons, pa.string())

    def _read_valid(self, payloads: list[bytes]) -> _Rows:
        table = self._parse(payloads)
        reasons = pa.nulls(table.num_rows, pa.string())
        for n, field in enumerate(self.schema):
            if is_converted(field.type):
                column, wrong = convert_column(_whole(table.column(n)), field.type, field.name)
                table = table.set_column(n, field.with_type(column.type), column)
                if wrong:
                    found = pa.array([wrong.get(row) for row in range(table.num_rows)], pa.string())
                    reasons = pc.coalesce(reasons, found)
        fields = [field.with_nullable(True) for field in self.schema]
        table = table.cast(pa.schema(fields))
        reasons = self._missing(table, reasons)
        columns = [_whole(column) for column in table.columns]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_valid(reasons)), reasons

    def _parse(self, payloads: list[bytes]) -> pa.Table:
        # Each line must be one object: a payload that starts an object and has no line break can only be one line.
        for payload in payloads:
            if payload[:1] != b"{" or b"\n" in payload:
                payloads = [_one_line(payload) for payload in payloads]
                break
        text = b"\n".join(payloads)
        text.decode()  # Arrow's JSON reader does not check for UTF-8
        explicit = pa.schema([pa.field(field.name, type_as_read(field.type)) for field in self.schema])
        options = pj.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="ignore")
        reading = pj.ReadOptions(block_size=max(len(text) + 1, 1 << 20), use_threads=False)
        table = pj.read_json(io.BytesIO(text), read_options=reading, parse_options=options)
        if table.num_rows != len(payloads):
            raise pa.ArrowInvalid("one JSON object is needed")
        return table

    def _reason(self, payload: bytes, error: Exception) -> str:
        """Why a payload does not fit. Of decimals, Arrow does not say which field it is."""
        for field in self.schema:
            if is_converted(field.type):
                try:
                    RecordReader(pa.schema([field]))._parse([payload])
                except (pa.ArrowInvalid, UnicodeDecodeError) as of_field:
                    if reason := decimal_reason(self.schema, field.name, str(of_field)):
                        return reason
        return _plain(str(error))

    def _missing(self, table: pa.Table, reasons: pa.Array) -> pa.Array:
        """The reasons, and the required fields that are missing in other rows."""
        for field in self.schema:
            column = table.column(field.name)
            if not field.nullable and column.null_count:
                reason = pa.scalar(f"field {field.name} is missing")
                absent = pc.and_(pc.is_null(column), pc.is_null(reasons)).combine_chunks()
                reasons = pc.if_else(absent, reason, reasons)
        return reasons

    def _empty(self, rows: int) -> pa.StructArray:
        return pa.nulls(rows, pa.struct([field.with_nullable(True) for field in self.schema]))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _joined(parts: list[_Rows]) -> _Rows:
    structs, reasons = zip(*parts, strict=True)
    return pa.concat_arrays(structs), pa.concat_arrays(reasons)


def check_readable(schema: pa.Schema, at: str) -> None:
    """InputError names the column that JSON records cannot fill."""
    for field in schema:
        try:
            RecordReader(pa.schema([field])).read([b"{}"])
        except pa.ArrowNotImplementedError:
            raise InputError(
                f"{at}: column {field.name} is {field.type}, which is not read from JSON; allowed: {ALLOWED_TYPES}"
            ) from None


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
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
