"""Values that Arrow's JSON reader does not read, or reads wrongly: they are read as another type and converted here."""

from __future__ import annotations

import binascii
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["convert_column", "decimal_reason", "is_converted", "type_as_read"]

_MOST_DIGITS = 76  # of a decimal256
_LONGEST_VALUE = 80  # in a reason
_Wrong = dict[int, str]


def type_as_read(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's JSON reader is given for a column: dates are read as text, decimals as wider ones.

    The reader counts the digits of a number as it is written, and then scales it without a look at the range: a large
    one wraps around. A type of 76 digits, less those of the scale, has room for all that it lets through.
    """
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_decimal128(kind):
        return pa.decimal256(_MOST_DIGITS - kind.scale, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(type_as_read(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(type_as_read(field.type)) for field in kind])
    return kind


def is_converted(kind: pa.DataType) -> bool:
    """Whether a column has values that `convert_column` looks at."""
    if pa.types.is_list(kind):
        return is_converted(kind.value_type)
    if pa.types.is_struct(kind):
        return any(is_converted(field.type) for field in kind)
    return bool(pa.types.is_decimal128(kind) or pa.types.is_binary(kind))


def convert_column(column: pa.Array, kind: pa.DataType, name: str) -> tuple[pa.Array, _Wrong]:
    """The column with its converted values, and why rows do not fit; their values are null."""
    if pa.types.is_decimal128(kind):
        return _narrowed(column, kind, name)
    if pa.types.is_binary(kind):
        return _decoded(column, kind, name)
    if pa.types.is_list(kind) and is_converted(kind):
        values, found = convert_column(column.values, kind.value_type, name)
        offsets, missing = column.offsets, column.is_null()
        wrong: _Wrong = {}
        if found:
            rows = pc.list_parent_indices(column)  # of a null row there are no values
            for n, reason in found.items():
                wrong.setdefault(rows[n].as_py(), reason)
        typed = pa.list_(kind.value_field.with_type(values.type))
        return pa.ListArray.from_arrays(offsets, values, type=typed, mask=missing), wrong
    if pa.types.is_struct(kind) and is_converted(kind):
        columns, wrong = [], {}
        for n, field in enumerate(kind):
            values, found = convert_column(column.field(n), field.type, f"{name}.{field.name}")
            columns.append(values)
            wrong = found | wrong
        fields = [field.with_type(values.type) for field, values in zip(kind, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=column.is_null()), wrong
    return column, {}


def decimal_reason(schema: pa.Schema, payload_field: str, message: str) -> str | None:
    """What is wrong with a field of which Arrow's JSON reader said this; None if it is not about a decimal."""
    found = re.search(r"decimal256\(\d+, \d+\): (\S*) requires|The string '(.*)' cannot be represented as d", message)
    if found:
        types = {f"DECIMAL({kind.precision},{kind.scale})": 1 for kind in _decimals(schema.field(payload_field).type)}
        return f"field {payload_field}: {_short(found[1] or found[2])} does not fit {' or '.join(types)}"
    found = re.search(r"The string '(.*)' is not a valid decimal|Empty string cannot be converted to decimal", message)
    return f"field {payload_field}: '{_short(found[1] or '')}' is not a number" if found else None


def _decimals(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_list(kind):
        return _decimals(kind.value_type)
    if pa.types.is_struct(kind):
        return [found for field in kind for found in _decimals(field.type)]
    return [kind] if pa.types.is_decimal128(kind) else []


def _narrowed(values: pa.Array, kind: pa.DataType, name: str) -> tuple[pa.Array, _Wrong]:
    try:
        return values.cast(kind), {}
    except pa.ArrowInvalid:
        limit = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), values.type)
    large = pc.greater_equal(pc.abs(values), limit)
    wrong = {
        n: f"field {name}: {_short(str(values[n]))} does not fit DECIMAL({kind.precision},{kind.scale})"
        for n in pc.indices_nonzero(large).to_pylist()
    }
    return pc.if_else(large, None, values).cast(kind), wrong


def _decoded(values: pa.Array, kind: pa.DataType, name: str) -> tuple[pa.Array, _Wrong]:
    """Binary from base64, as which msgspec and Spark write it to JSON."""
    decoded: list[bytes | None] = []
    wrong: _Wrong = {}
    for n, text in enumerate(values.to_pylist()):
        try:
            decoded.append(None if text is None else binascii.a2b_base64(text, strict_mode=True))
        except binascii.Error:
            decoded.append(None)
            wrong[n] = f"field {name}: '{_short(text.decode())}' is not base64, which BINARY is in JSON"
    return pa.array(decoded, kind), wrong


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
