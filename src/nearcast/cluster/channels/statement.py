"""The statement of a channel for all its subscriptions, and the table of these.

Its rows are (number of the subscription, row as JSON, position).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.ranges import RangeCopies, bounds_of, bucket_of
from nearcast.cluster.datasets.schema import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.domain.channel import ChannelSpec

__all__ = [
    "JSON_OPTIONS", "NUMBERED", "Statement", "ValidatedChannel", "empty_view", "free_prefix", "in_buckets", "levels_in",
    "number_column", "parameter_column", "range_buckets", "result_frame", "result_sql", "subscription_ddl",
    "subscription_table",
]  # fmt: skip

NUMBERED = pa.schema([("number", pa.int64()), ("row", pa.string()), ("position", pa.int32())])
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_NUMBERS = ("int", "bigint", "double")
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of `to_json`: how a row of a result is written."""


def free_prefix(text: str) -> str:
    """A prefix for names that does not occur in a text."""
    lowered = text.lower()
    return next(p for n in itertools.count() if (p := f"nc{n or ''}__") not in lowered)


def parameter_column(prefix: str, name: str) -> str:
    """The column of the subscription table for a parameter; `#level_x`, `#height_x`: of `:x` on the grid; `#bucket_x`:
    of `:x` among the bounds."""
    return f"{prefix}{name[1:]}" if name.startswith("#") else f"{prefix}value_{name}"


@dataclass(frozen=True)
class Statement:
    """A query for all subscriptions. template: its text, in which views, cells and buckets are marked.

    key, position: columns of the subscription's key and of the row's place in its result (if it has one).
    cells: marker, coordinates and bound of each radius condition.
    """

    template: str
    prefix: str
    key: str
    position: str
    cells: tuple[tuple[str, str, str, str | float], ...] = ()
    copies: tuple[RangeCopies, ...] = ()

    @property
    def radius_parameters(self) -> tuple[str, ...]:
        return tuple(bound for _, _, _, bound in self.cells if isinstance(bound, str))

    @property
    def range_parameters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(copy.parameter for copy in self.copies))

    def text(
        self, views: Mapping[str, str], subscriptions: str, levels: Mapping[str, Collection[int]], bounds: str
    ) -> str:
        """The text over views, as `result_sql`."""
        marked = {copy.marker: copy.sql(self.prefix, bounds) for copy in self.copies}
        for marker, lat, lon, bound in self.cells:
            used = levels.get(bound, ()) if isinstance(bound, str) else (grid.level_of(bound),)
            marked[marker] = grid.cells_around(lat, lon, used, self.prefix)
        text = re.sub(rf"(?:CROSS JOIN )?`?({self.prefix}(?:cells|copies)\d+)`?", lambda m: marked[m[1]], self.template)
        text = re.sub(rf"`?{self.prefix}view_(\w+)`?", lambda m: views.get(m[1], m[1]), text)
        return text.replace(f"{self.prefix}subscriptions", subscriptions)


@dataclass(frozen=True)
class ValidatedChannel:
    """A channel that can run. datasets: it reads. columns: the label of each column of its results, and its name in the
    statement. timeless: its plan may be evaluated again. like_parameters: those in patterns of LIKE. lookups: keyed
    datasets that it joins by key, each with the column of the new records that has the key."""

    spec: ChannelSpec
    statement: Statement
    datasets: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    timeless: bool
    like_parameters: Mapping[str, bool] = field(default_factory=dict)
    lookups: Mapping[str, str] = field(default_factory=dict)


def result_sql(
    channel: ValidatedChannel,
    views: Mapping[str, str],
    subscriptions: str,
    levels: Mapping[str, Collection[int]],
    bounds: str = "",
) -> str:
    """The statement over views of datasets, by their names where no others are given. levels: on the grid, in use for
    the parameters that are a radius. bounds: how the names of the views of the subscriptions' buckets begin; without
    it they are all in one bucket."""
    statement = channel.statement
    fields = ", ".join(f"{_text(label)}, {_name(column)}" for label, column in channel.columns)
    options = ", ".join(_text(text) for option in JSON_OPTIONS.items() for text in option)
    position = f"CAST(`{statement.position}` AS INT)" if statement.position else "CAST(NULL AS INT)"
    return (
        f"SELECT `{statement.key}` AS number, "
        f"to_json(named_struct({fields}), map({options})) AS row, {position} AS position "
        f"FROM ({statement.text(views, subscriptions, levels, bounds)})"
    )


def result_frame(session: SparkSession, channel: ValidatedChannel, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """The statement for some subscriptions, in a session of its own, where views have the names of the datasets."""
    table, view = subscription_table(channel, rows), f"{channel.statement.prefix}subscriptions"
    session.createDataFrame(table).createOrReplaceTempView(view)
    return session.sql(result_sql(channel, {}, view, levels_in(channel, table)))


def empty_view(session: SparkSession, name: str, ddl: str) -> None:
    """An empty view that the optimizer does not know to be empty, so that it plans as if there were rows."""
    schema = parse_ddl(ddl, name)
    session.createDataFrame(session.sparkContext.emptyRDD(), schema).createOrReplaceTempView(name)


def subscription_ddl(channel: ValidatedChannel) -> str:
    """The columns of the subscription table: its number, values, for numbers their level and height on the grid, and
    the buckets of ranges."""
    prefix = channel.statement.prefix
    columns = [f"{prefix}key BIGINT"]
    for p in channel.spec.parameters:
        columns.append(f"{parameter_column(prefix, p.name)} {p.type}")
        if p.type in _NUMBERS:
            columns.append(f"{prefix}level_{p.name} BIGINT, {prefix}height_{p.name} DOUBLE")
    columns += [f"{_bucket_column(prefix, name)} INT" for name in channel.statement.range_parameters]
    return ", ".join(columns)


def number_column(channel: ValidatedChannel) -> str:
    """The column of the subscription table with the number of each subscription."""
    return f"{channel.statement.prefix}key"


def subscription_table(
    channel: ValidatedChannel, rows: Iterable[Mapping[str, Any]], numbers: Sequence[int] | None = None
) -> pa.Table:
    """One row for each subscription, by its number: its place among the rows, if nothing else is given."""
    rows = list(rows)
    prefix = channel.statement.prefix
    columns: dict[str, pa.Array] = {
        number_column(channel): pa.array(range(len(rows)) if numbers is None else numbers, pa.int64())
    }
    for p in channel.spec.parameters:
        values = pa.array([_value(p.type, row[p.name]) for row in rows], _ARROW[p.type])
        columns[parameter_column(prefix, p.name)] = values
        if p.type in _NUMBERS:
            levels = grid.levels_of(values.to_numpy().astype(np.float64))
            columns[f"{prefix}level_{p.name}"] = pa.array(levels, pa.int64())
            columns[f"{prefix}height_{p.name}"] = pa.array(grid.heights_of(levels), pa.float64())
    for name in channel.statement.range_parameters:  # one bucket, until there are bounds
        columns[_bucket_column(prefix, name)] = pa.array(np.zeros(len(rows), np.int32), pa.int32())
    return pa.table(columns)


def range_buckets(channel: ValidatedChannel, rows: pa.Table) -> dict[str, pa.Table]:
    """The buckets (number, lowest value, lowest value of the next one) of each parameter that is a range."""
    statement, found = channel.statement, {}
    names = [f"{statement.prefix}{what}" for what in ("bucket", "low", "high")]
    for name in statement.range_parameters:
        bounds = bounds_of(rows[parameter_column(statement.prefix, name)])
        end, numbers = pa.nulls(1, bounds.type), pa.array(range(len(bounds) + 1), pa.int32())
        columns = [numbers, pa.concat_arrays([end, bounds]), pa.concat_arrays([bounds, end])]
        found[name] = pa.table(columns, names=names)
    return found


def in_buckets(channel: ValidatedChannel, rows: pa.Table, buckets: Mapping[str, pa.Table]) -> pa.Table:
    """Subscriptions with the numbers of their buckets."""
    prefix = channel.statement.prefix
    for name, table in buckets.items():
        column, values = _bucket_column(prefix, name), rows[parameter_column(prefix, name)]
        numbers = bucket_of(values, table[f"{prefix}low"].combine_chunks().drop_null())
        rows = rows.set_column(rows.schema.get_field_index(column), column, numbers)
    return rows


def levels_in(channel: ValidatedChannel, *tables: pa.Table) -> dict[str, frozenset[int]]:
    """The levels on the grid that these subscriptions use, by the parameters that are a radius."""
    statement = channel.statement
    return {
        name: frozenset(
            level for table in tables for level in table[f"{statement.prefix}level_{name}"].unique().to_pylist()
        )
        for name in statement.radius_parameters
    }


def _bucket_column(prefix: str, name: str) -> str:
    return parameter_column(prefix, f"#bucket_{name}")


def _value(kind: str, value: Any) -> Any:
    if kind == "date":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value) if kind == "timestamp" else value


def _name(column: str) -> str:
    """A column as SQL."""
    escaped = column.replace("`", "``")
    return f"`{escaped}`"


def _text(value: str) -> str:
    """A text as a SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
