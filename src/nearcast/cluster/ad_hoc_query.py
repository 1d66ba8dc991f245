"""A query that is asked once: by the rules of a channel's, over all that datasets keep, limited in rows and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nearcast.cluster.channels.query_errors import line_and_column
from nearcast.cluster.channels.query_policy import NotUnderstoodError, PolicyError
from nearcast.cluster.channels.query_tree import QueryTree, parse_query, to_sql
from nearcast.cluster.channels.time_limit import TimeLimit, TimeLimitError
from nearcast.cluster.spark_errors import error_line
from nearcast.errors import InputError, NearcastError
from nearcast.protocol.data_cluster import AdHocAnswer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ad_hoc_sql", "run_ad_hoc"]

_SECONDS = 20.0
_LONGEST_VALUE = 2000
_LARGEST_ANSWER = 4_000_000  # characters


def ad_hoc_sql(text: str, datasets: Collection[str], view: Callable[[str], str]) -> str:
    """The query over views of the datasets. InputError for what is not allowed."""
    try:
        query = parse_query(text)
    except NotUnderstoodError as error:
        reason = str(error)
        if error.offset is not None:
            reason += ". Line {}, column {}".format(*line_and_column(text.strip(), error.offset))
        raise InputError(reason) from None
    except PolicyError as error:
        raise InputError(f"the query is refused: {error}") from None
    _check(query, datasets)
    tree = query.tree.copy()
    for table in list(tree.find_all(exp.Table)):
        name = table.name.lower()
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
        table.set("this", exp.to_identifier(view(name)))
    return to_sql(tree)


def run_ad_hoc(spark: SparkSession, sql: str, limit: int, seconds: float = _SECONDS) -> AdHocAnswer:
    """The first rows of the answer, as text."""
    began = time.monotonic()
    try:
        with TimeLimit(spark, seconds):
            found: Any = _shortened(spark.sql(sql), limit).limit(limit + 1).toArrow()
    except TimeLimitError:
        raise NearcastError(f"the query was stopped after {seconds:g} s") from None
    except Exception as error:  # Spark's errors have no common kind
        raise InputError(f"the query fails: {error_line(error)}") from None
    columns = [[_text(value) for value in column.to_pylist()[:limit]] for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return AdHocAnswer(list(found.column_names), rows, found.num_rows > limit, time.monotonic() - began)


def _shortened(frame: DataFrame, limit: int) -> DataFrame:
    """With texts no longer than is shown: the driver holds all of the answer, and Spark cuts them before.

    Arrays, maps and structs become JSON.
    """
    from pyspark.sql.functions import col, substring, to_json

    longest = max(20, min(_LONGEST_VALUE, _LARGEST_ANSWER // (len(frame.columns) * (limit + 1))))
    # By their numbers: two may have one name.
    plain = frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))
    shown = []
    for field in plain.schema:
        kind, column = field.dataType.typeName(), col(field.name)
        if kind in ("array", "map", "struct"):
            column = to_json(column)
        if kind in ("array", "map", "struct", "string", "binary", "char", "varchar"):
            column = substring(column, 1, longest)
        shown.append(column)
    return plain.select(*shown).toDF(*frame.columns)


def _check(query: QueryTree, datasets: Collection[str]) -> None:
    if query.parameters:
        raise InputError(f"the query has a parameter, :{next(iter(query.parameters))}; write a value instead")
    for name in query.datasets:
        if name not in datasets:
            raise InputError(f"there is no dataset {name!r}; there are: {', '.join(sorted(datasets)) or 'none'}")
    if not query.datasets:
        raise InputError("the query reads no dataset")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:_LONGEST_VALUE]
