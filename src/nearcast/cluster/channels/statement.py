"""The statement of a channel, whose rows are (number of the subscription, row as JSON, position), and its subscription
table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.rewrite import parameter_column

if TYPE_CHECKING:
    from nearcast.cluster.channels.validated_channel import ValidatedChannel
    from nearcast.domain.channel import Parameter

__all__ = ["NUMBERED", "levels_in", "number_column", "result_sql", "subscription_ddl", "subscription_table"]

NUMBERED = pa.schema([("number", pa.int64()), ("row", pa.string()), ("position", pa.int32())])
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_NUMBERS = ("int", "bigint", "double")
_JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
)


def result_sql(
    channel: ValidatedChannel,
    view_of: Callable[[str], str],
    subscriptions: str,
    levels: Mapping[str, Collection[int]],
) -> str:
    """The statement over given views. levels: on the grid, in use for the parameters that are a radius."""
    statement = channel.statement
    fields = ", ".join(f"{_text(label)}, `{column}`" for label, column in channel.columns)
    position = f"CAST(`{statement.position}` AS INT)" if statement.position else "CAST(NULL AS INT)"
    return (
        f"SELECT `{statement.key}` AS number, "
        f"to_json(named_struct({fields}), {_JSON_OPTIONS}) AS row, {position} AS position "
        f"FROM ({statement.text(view_of, subscriptions, levels)})"
    )


def subscription_ddl(prefix: str, parameters: Sequence[Parameter]) -> str:
    """The columns of the subscription table: its number, values, and for numbers their level and height on the grid."""
    columns = [f"{prefix}key BIGINT"]
    for p in parameters:
        columns.append(f"{parameter_column(prefix, p.name)} {p.type}")
        if p.type in _NUMBERS:
            columns.append(f"{prefix}level_{p.name} BIGINT, {prefix}height_{p.name} DOUBLE")
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
    return pa.table(columns)


def levels_in(channel: ValidatedChannel, *tables: pa.Table) -> dict[str, frozenset[int]]:
    """The levels on the grid that these subscriptions use, by the parameters that are a radius."""
    statement = channel.statement
    return {
        name: frozenset(
            level for table in tables for level in table[f"{statement.prefix}level_{name}"].unique().to_pylist()
        )
        for name in statement.radius_parameters
    }


def _value(kind: str, value: Any) -> Any:
    if kind == "date":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value) if kind == "timestamp" else value


def _text(value: str) -> str:
    """A text as a SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
