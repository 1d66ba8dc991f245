"""Schemas that users give: Spark DDL as it is, or a JSON Schema of one record turned into DDL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearcast.errors import InputError

__all__ = ["ddl_of", "read_schema"]

_TYPES = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
_WORDS = {"$schema", "$id", "title", "description", "type", "properties", "required", "additionalProperties"}


def read_schema(text: str, at: str) -> str:
    """DDL from what a user typed: a file of either kind, or DDL itself."""
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
            raise InputError(f"{at}: field {name!r}: names that start with _ are ours")
        fields.append(f"`{name}` {_type(field, f'{at}: field {name}')}" + (" NOT NULL" if name in required else ""))
    return ", ".join(fields)


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
