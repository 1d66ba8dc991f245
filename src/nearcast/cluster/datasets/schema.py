"""Schemas of datasets: Spark DDL, or a JSON Schema of one record converted to DDL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.cluster.spark_errors import error_line
from nearcast.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nearcast.domain.dataset import DatasetSpec

__all__ = [
    "META_COLUMNS", "arrow_schema", "column_kinds", "conform", "dataset_ddl", "ddl_of", "parse_ddl", "read_schema",
    "required_fields", "without_not_null",
]  # fmt: skip

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
    parts = _outer_columns(ddl)
    return {part.split()[0].strip("`:") for part in parts if re.search(r"\bNOT\s+NULL\b", part, re.IGNORECASE)}


def column_kinds(ddl: str) -> dict[str, str]:
    """The outer columns of a DDL text with the first word of their types, such as DECIMAL or ARRAY. No JVM is asked."""
    found = (re.match(r"(?:`([^`]+)`|([^\s:`]+))\s*:?\s*(\w+)", part) for part in _outer_columns(ddl))
    return {column[1] or column[2]: column[3].upper() for column in found if column}


def without_not_null(ddl: str) -> str:
    """The DDL with every field nullable."""
    # It begins where no space is before: else a row of spaces would be tried from each of them.
    return re.sub(r"(?<!\s)\s+NOT\s+NULL\b", "", ddl, flags=re.IGNORECASE)


def dataset_ddl(dataset: DatasetSpec) -> str:
    """The columns of a dataset as queries see it: a stream dataset also has its sequence and time of arrival."""
    plain = without_not_null(dataset.schema)
    return plain if dataset.static else f"{plain}, {META_COLUMNS}"


def _outer_columns(ddl: str) -> list[str]:
    outer = ddl
    while (flat := re.sub(r"[<(][^<>()]*[>)]", "", outer)) != outer:
        outer = flat
    return [part.strip() for part in outer.split(",")]


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
        return "STRUCT<" + ", ".join(f"`{n}`: {_type(f, f'{at}.{n}')}" for n, f in inner.items()) + ">"
    raise InputError(f"{at}: type is {kind!r}; allowed: {', '.join([*_TYPES, 'array', 'object'])}")
