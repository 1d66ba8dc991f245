"""Whether a dataset, columns or a channel can be added: what only Spark can say, in the driver or in an own Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nearcast.cluster.channels.query_validation import first_stream, validate_query
from nearcast.cluster.channels.verification import verify_statement
from nearcast.cluster.datasets.records import check_readable
from nearcast.cluster.datasets.schema import arrow_schema, check_columns, parse_ddl
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["validate_channel", "validate_columns", "validate_dataset", "with_new_dataset"]

_MOST_COLUMNS = 1_000


def validate_dataset(spark: SparkSession, spec: DatasetSpec) -> None:
    """InputError when the schema cannot be that of a dataset. Spark, which must run, parses it."""
    check_dataset(spec)
    schema = parse_ddl(spec.schema, f"dataset {spec.name}")
    names = schema.fieldNames()
    _check_width(spec, len(names))
    check_columns(schema, f"dataset {spec.name}")
    if not spec.static:
        check_readable(arrow_schema(schema), f"dataset {spec.name}")
    for name in names:
        if name.startswith("_"):
            raise InputError(f"dataset {spec.name}: column {name!r}: names that start with _ are reserved")
    for what in ("key", "time"):
        column = getattr(spec, what)
        if column and column not in names:
            raise InputError(f"dataset {spec.name}: {what} is {column!r}; its columns are: {', '.join(names)}")
    if spec.key and schema[spec.key].dataType.typeName() in ("array", "struct"):
        raise InputError(f"dataset {spec.name}: key column {spec.key} is an ARRAY or STRUCT; a plain value is needed")
    if spec.time and schema[spec.time].dataType.simpleString() != "timestamp":
        raise InputError(f"dataset {spec.name}: time column {spec.time} is no TIMESTAMP")


def validate_columns(spec: DatasetSpec, columns: str) -> DatasetSpec:
    """A dataset with columns (DDL) added; InputError when they cannot be. Spark, which must run, parses them."""
    at = f"dataset {check_dataset(spec).name}"
    altered = check_dataset(replace(spec, schema=f"{spec.schema}, {columns}"))
    known = parse_ddl(spec.schema, at).fieldNames()
    added = parse_ddl(columns, at)
    _check_width(spec, len(known) + len(added))
    for field in added:
        if field.name.startswith("_") or field.name.lower() in map(str.lower, known):
            reason = "names that start with _ are reserved" if field.name.startswith("_") else "it exists already"
            raise InputError(f"{at}: column {field.name!r}: {reason}")
        if not field.nullable:
            raise InputError(f"{at}: column {field.name!r} is NOT NULL, but records have come without it")
    check_columns(added, at)
    if not spec.static:
        check_readable(arrow_schema(added), at)
    return altered


def _check_width(spec: DatasetSpec, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise InputError(f"dataset {spec.name} has {columns} columns; {_MOST_COLUMNS} are allowed")


def with_new_dataset(spec: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> ChannelSpec:
    """A continuous channel with the dataset whose records are new to it: the first stream of its query by default."""
    if not spec.continuous or spec.new:
        return spec
    return replace(spec, new=first_stream(spec.query, datasets))


def validate_channel(spark: SparkSession, spec: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> None:
    """InputError when the query cannot be that of a channel."""
    verify_statement(spark, validate_query(spark, spec, datasets), datasets)
