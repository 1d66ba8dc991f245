"""Schemas of datasets: Spark DDL, or a JSON Schema of one record converted to DDL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.cluster.spark_errors import error_line
from nearcast.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from nearcast.domain.dataset import DatasetSpec

__all__ = [
    "ALLOWED_TYPES", "META_COLUMNS", "arrow_schema", "check_columns", "column_kinds", "conform", "dataset_ddl",
    "ddl_of", "parse_ddl", "read_schema", "required_fields", "without_not_null",
]  # fmt: skip

ALLOWED_TYPES = "STRING, BOOLEAN, numbers, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY, and ARRAY or STRUCT of these"
_PLAIN_TYPES = {
    "string", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date", "timestamp",
    "timestamp_ntz", "binary",
}  # fmt: skip
META_COLUMNS = "_sequence BIGINT, _arrived TIMESTAMP"
_TYPES = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
_WORDS = {"$schema", "$id", "title", "description", "type", "properties", "required", "additionalProperties"}


def read_schema(text: str, at: str) -> str:
    """DDL from an option: a file of either kind, or DDL itself."""
    path = Path(text)
    if path.suffix not in (".json", ".sql", ".ddl", ".txt"):
        return text
    try:
        content = path.read_text()
    except OSError as error:
        raise InputError(f"{at}: schema file {text}: {error.strerror}") from None
    if path.suffix != ".json":
        return " ".join(content.split())
    try:
        return ddl_of(json.loads(content), f"{at}: {text}")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{at}: {text} is not JSON: {error}") from None


def ddl_of(schema: Any, at: str) -> str:
    """The fields of a JSON Schema object. A keyword that would be ignored is refused instead."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.get("properties"):
        raise InputError(f'{at}: a JSON Schema with "type": "object" and "properties" is needed')
    if unknown := sorted(set(schema) - _WORDS):
        raise InputError(f"{at}: keyword {unknown[0]!r} is not supported; allowed: {', '.join(sorted(_WORDS))}")
    required = schema.get("required", [])
    fields = []
    _check_names(schema["properties"], at, "field")
    for name, field in schema["properties"].items():
        if name.startswith("_"):
            raise InputError(f"{at}: field {name!r}: names that start with _ are reserved")
        fields.append(f"`{name}` {_type(field, f'{at}: field {name}')}" + (" NOT NULL" if name in required else ""))
    return ", ".join(fields)


def parse_ddl(ddl: str, what: str) -> StructType:
    """A Spark schema from its DDL text, such as `id STRING NOT NULL, at TIMESTAMP`. Needs a running Spark."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:  # not understood, or such as a DECIMAL(99, 0)
        raise InputError(f"{what}: the schema {ddl!r} is not understood: {error_line(error)}") from None
    assert isinstance(schema, StructType)
    return schema


def check_columns(schema: StructType, at: str) -> None:
    """InputError for what Spark's parser takes, but no table of a dataset can have: a type, a name, none at all."""
    if not schema.fields:
        raise InputError(f"{at}: the schema has no columns; give it one at least, such as: id STRING")
    _check_names(schema.fieldNames(), at, "column")
    for field in schema:
        _check_type(field.dataType, f"{at}: column {field.name}")


def _check_type(kind: DataType, at: str) -> None:
    """kind: of a column or of a part of it. MAP passes: static datasets may have it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        if not kind.fields:
            raise InputError(f"{at} is a STRUCT without fields; it needs one at least")
        _check_names(kind.fieldNames(), at, "field")
        for field in kind:
            _check_type(field.dataType, f"{at}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_type(kind.elementType, at)
    elif isinstance(kind, MapType):
        _check_type(kind.keyType, at)
        _check_type(kind.valueType, at)
    elif kind.typeName() not in _PLAIN_TYPES:
        raise InputError(f"{at}: type {kind.simpleString().upper()} is not supported; allowed: {ALLOWED_TYPES}")


def _check_names(names: Iterable[str], at: str, what: str) -> None:
    seen = set[str]()
    for name in names:
        if "`" in name:
            raise InputError(f"{at}: {what} {name!r} has a backtick; give it a name without one")
        if name.lower() in seen:
            raise InputError(f"{at}: two {what}s are named {name!r} (case does not count); rename one of them")
        seen.add(name.lower())


def arrow_schema(schema: Any) -> pa.Schema:
    """The Arrow schema of a Spark schema, with the names of required fields kept as `nullable=False`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table of an older schema, with nulls in the columns that were added since."""
    import pyarrow as pa

    names = set(table.column_names)
    columns = [table[f.name] if f.name in names else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.table(columns, names=schema.names).cast(schema)


def required_fields(ddl: str) -> set[str]:
    """The names of the outer fields of a DDL text that are NOT NULL. No JVM is asked: workers have none."""
    return {name for name, rest in _outer_columns(ddl) if re.search(r"\bNOT\s+NULL\b", rest, re.IGNORECASE)}


def column_kinds(ddl: str) -> dict[str, str]:
    """The outer columns of a DDL text with the first word of their types, such as DECIMAL or ARRAY. No JVM is asked."""
    return {name: found[0].upper() for name, rest in _outer_columns(ddl) if (found := re.search(r"\w+", rest))}


def without_not_null(ddl: str) -> str:
    """The DDL with every field nullable."""
    # It begins where no space is before: else a row of spaces would be tried from each of them.
    return re.sub(r"(?<!\s)\s+NOT\s+NULL\b", "", ddl, flags=re.IGNORECASE)


def dataset_ddl(dataset: DatasetSpec) -> str:
    """The columns of a dataset as queries see it: a stream dataset also has its sequence and time of arrival."""
    plain = without_not_null(dataset.schema)
    return plain if dataset.static else f"{plain}, {META_COLUMNS}"


def _outer_columns(ddl: str) -> list[tuple[str, str]]:
    """The outer columns of a DDL text: their names, and what follows, without brackets and comments."""
    quoted: list[str] = []  # names and comments, which may have commas, brackets and words; in the text their number

    def put_aside(found: re.Match[str]) -> str:
        quoted.append(found[0][1:-1])
        return f"`{len(quoted) - 1}`"

    outer = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", put_aside, ddl)
    while (flat := re.sub(r"[<(][^<>()]*[>)]", "", outer)) != outer:
        outer = flat
    columns = (re.match(r"\s*(?:`(\d+)`|([^\s:`]+))(.*)", part, re.DOTALL) for part in outer.split(","))
    return [(quoted[int(one[1])] if one[1] else one[2], one[3]) for one in columns if one is not None]


def _type(field: Any, at: str) -> str:
    kind = field.get("type") if isinstance(field, dict) else None
    allowed = {"type", "description", "title", "format", "items", "properties", "required"}
    if unknown := sorted(set(field if isinstance(field, dict) else ()) - allowed):
        raise InputError(f"{at}: keyword {unknown[0]!r} is not supported; allowed: {', '.join(sorted(allowed))}")
    if kind == "string" and "format" in field:
        if field["format"] not in _FORMATS:
            raise InputError(f"{at}: format is {field['format']!r}; allowed: {', '.join(_FORMATS)}")
        return _FORMATS[field["format"]]
    if kind in _TYPES:
        return _TYPES[kind]
    if kind == "array":
        return f"ARRAY<{_type(field.get('items'), f'{at}, items')}>"
    if kind == "object":
        inner = field.get("properties", {})
        _check_names(inner, at, "field")
        return "STRUCT<" + ", ".join(f"`{n}`: {_type(f, f'{at}.{n}')}" for n, f in inner.items()) + ">"
    raise InputError(f"{at}: type is {kind!r}; allowed: {', '.join([*_TYPES, 'array', 'object'])}")
