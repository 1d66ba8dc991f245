"""Schemas from JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearcast.cluster.datasets.schema import column_kinds, ddl_of, read_schema, required_fields
from nearcast.errors import InputError

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
        "n": {"type": "integer"},
    },
    "required": ["id"],
}


def test_a_json_schema_becomes_ddl(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCHEMA))
    ddl = read_schema(str(path), "dataset d")
    assert (
        ddl == "`id` STRING NOT NULL, `at` TIMESTAMP, `tags` ARRAY<STRING>, `place` STRUCT<`lat`: DOUBLE>, `n` BIGINT"
    )
    assert required_fields(ddl) == {"id"}
    assert read_schema("id STRING", "x") == "id STRING"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"minimum": 1}, "keyword 'minimum' is not supported"),
        ({"type": "null"}, "type is None"),
        ({"type": "string", "format": "email"}, "format is 'email'; allowed: date-time, date"),
    ],
)
def test_an_unsupported_keyword_is_refused(change: dict[str, object], words: str) -> None:
    field = {"type": "number", **change} if "type" not in change else change
    words = words.replace("None", "'null'")
    with pytest.raises(InputError, match=words):
        ddl_of({"type": "object", "properties": {"x": field}}, "dataset d")


@pytest.mark.parametrize(
    ("ddl", "required"),
    [
        ("`house number` INT NOT NULL, b INT", {"house number"}),
        ("`a, b` INT NOT NULL, `c (d)` INT, `e<` INT NOT NULL, f INT", {"a, b", "e<"}),
        ("`x NOT NULL` INT, y INT", set()),
        ("a INT COMMENT 'b, c NOT NULL', d INT NOT NULL COMMENT 'e, f'", {"d"}),
        ("s STRUCT<a: INT NOT NULL, b: INT>, t: INT NOT NULL", {"t"}),
    ],
)
def test_required_fields_are_found_whatever_their_names_and_comments(ddl: str, required: set[str]) -> None:
    assert required_fields(ddl) == required


def test_a_field_with_a_backtick_is_refused() -> None:
    properties = {"a` INT, `b": {"type": "string"}}
    with pytest.raises(InputError, match="dataset d: field 'a` INT, `b' has a backtick; give it a name without one"):
        ddl_of({"type": "object", "properties": properties}, "dataset d")
    with pytest.raises(InputError, match="dataset d: field x: field 'a` INT, `b' has a backtick"):
        ddl_of({"type": "object", "properties": {"x": {"type": "object", "properties": properties}}}, "dataset d")


def test_the_kinds_of_columns_are_known_without_spark() -> None:
    ddl = "`a b` string NOT NULL, n INT, d: DECIMAL(38, 10), tags ARRAY<STRUCT<a: INT, b: ARRAY<INT>>>, `at` TIMESTAMP"
    assert column_kinds(ddl) == {"a b": "STRING", "n": "INT", "d": "DECIMAL", "tags": "ARRAY", "at": "TIMESTAMP"}
