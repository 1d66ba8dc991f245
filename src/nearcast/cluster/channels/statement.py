"""The statement of a channel, whose rows are (channel, key, row as JSON, position), and its subscription table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.rewrite import parameter_column

if TYPE_CHECKING:
    from nearcast.cluster.channels.validated_channel import ValidatedChannel
    from nearcast.domain.channel import Parameter

__all__ = ["MATCHES", "result_sql", "subscription_ddl", "subscription_table"]

MATCHES = pa.schema([("channel", pa.string()), ("key", pa.string()), ("row", pa.string()), ("position", pa.int32())])
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
    name: str,
    channel: ValidatedChannel,
    view_of: Callable[[str], str],
    subscriptions: str,
    values: Mapping[str, Collection[float]],
) -> str:
    """The statement over given views. values: in use for the parameters that are a radius."""
    statement = channel.statement
    fields = ", ".join(f"{_text(label)}, `{column}`" for label, column in channel.columns)
    position = f"CAST(`{statement.position}` AS INT)" if statement.position else "CAST(NULL AS INT)"
    return (
        f"SELECT {_text(name)} AS channel, `{statement.key}` AS key, "
        f"to_json(named_struct({fields}), {_JSON_OPTIONS}) AS row, {position} AS position "
        f"FROM ({statement.text(view_of, subscriptions, values)})"
    )


def subscription_ddl(prefix: str, parameters: Sequence[Parameter]) -> str:
    """The columns of the subscription table: key, values, and for numbers their level and height on the grid."""
    columns = [f"{prefix}key STRING"]
    for p in parameters:
        columns.append(f"{parameter_column(prefix, p.name)} {p.type}")
        if p.type in _NUMBERS:
            columns.append(f"{prefix}level_{p.name} BIGINT, {prefix}height_{p.name} DOUBLE")
    return ", ".join(columns)


def subscription_table(channel: ValidatedChannel, rows: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """One row for each subscription, by key."""
    prefix = channel.statement.prefix
    columns: dict[str, pa.Array] = {f"{prefix}key": pa.array(list(rows), pa.string())}
    for p in channel.spec.parameters:
        values = [_value(p.type, row[p.name]) for row in rows.values()]
        columns[parameter_column(prefix, p.name)] = pa.array(values, _ARROW[p.type])
        if p.type in _NUMBERS:
            levels = [grid.level_of(value) for value in values]
            columns[f"{prefix}level_{p.name}"] = pa.array(levels, pa.int64())
            columns[f"{prefix}height_{p.name}"] = pa.array([grid.height_of(level) for level in levels], pa.float64())
    return pa.table(columns)


def _value(kind: str, value: Any) -> Any:
    if kind == "date":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value) if kind == "timestamp" else value


def _text(value: str) -> str:
    """A text as a SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
