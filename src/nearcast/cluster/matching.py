"""Runs channels: one Spark plan answers all subscriptions of all channels that are due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster import grid
from nearcast.cluster.check import CheckedChannel
from nearcast.cluster.records import first_line
from nearcast.cluster.rewrite import rewrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["MATCHES", "Matcher", "RunningChannel"]

_log = logging.getLogger(__name__)
MATCHES = pa.schema([("channel", pa.string()), ("key", pa.string()), ("row", pa.string())])
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip


@dataclass
class RunningChannel:
    """A channel and its subscription table: one row for each distinct set of values, by key."""

    checked: CheckedChannel
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    frame: DataFrame | None = None
    failures: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # the SQL, by who runs it; it changes with the rows

    @property
    def name(self) -> str:
        return self.checked.spec.name

    @property
    def view(self) -> str:
        return f"_subscriptions_{self.name}"

    def values(self) -> dict[str, set[Any]]:
        """The distinct values in use, by parameter."""
        return {p.name: {row[p.name] for row in self.rows.values()} for p in self.checked.spec.parameters}


class Matcher:
    """Holds the subscription tables in Spark's memory and evaluates channels against them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        spark.sql(grid.DISTANCE)

    def load(self, channel: RunningChannel, rows: dict[str, dict[str, Any]]) -> None:
        """Replace a channel's subscription table; executions under way finish with the old one."""
        parameters = channel.checked.spec.parameters
        columns: dict[str, pa.Array] = {"_key": pa.array(list(rows), pa.string())}
        for p in parameters:
            values = [row[p.name] for row in rows.values()]
            columns[f"_p_{p.name}"] = pa.array(values, _ARROW[p.type])
            if p.type in ("int", "bigint", "double"):  # it may be a radius: its level on the grid
                levels = [grid.level_of(value) for value in values]
                columns[f"_l_{p.name}"] = pa.array(levels, pa.int64())
                columns[f"_h_{p.name}"] = pa.array([grid.height_of(level) for level in levels], pa.float64())
        frame = self._spark.createDataFrame(pa.table(columns))
        if rows:
            frame = frame.repartition(int(self._spark.conf.get("spark.sql.shuffle.partitions") or "2")).cache()
            frame.count()  # now, not in the next micro-batch
        with self._lock:
            before, channel.frame, channel.rows = channel.frame, frame, rows
            channel.texts.clear()
            frame.createOrReplaceTempView(channel.view)
        if before is not None:
            before.unpersist()

    def match(self, channels: Sequence[RunningChannel], view_of: Mapping[str, str]) -> pa.Table:
        """Rows (channel, key, row as JSON) of all these channels, from one plan. view_of: the view of each dataset."""
        due = [channel for channel in channels if channel.rows]
        if not due:
            return MATCHES.empty_table()
        from pyspark.errors import PySparkException

        try:
            return self._run([self._sql(channel, view_of) for channel in due])
        except PySparkException as error:
            if len(due) == 1:
                due[0].failures += 1
                _log.error("channel %s failed: %s", due[0].name, first_line(error))
                return MATCHES.empty_table()
        # One of them cannot be answered for this data; the others must not suffer.
        return pa.concat_tables([self.match([channel], view_of) for channel in due])

    def _run(self, queries: Sequence[str]) -> pa.Table:
        with self._lock:
            frame = self._spark.sql(" UNION ALL ".join(queries))
        return frame.toArrow().cast(MATCHES)

    def _sql(self, channel: RunningChannel, view_of: Mapping[str, str]) -> str:
        if (known := channel.texts.get(str(view_of))) is not None:
            return known
        checked = channel.checked
        query = checked.spec.query.strip().rstrip(";")
        values = channel.values()
        text = rewrite(query, checked.how, view_of=view_of.__getitem__, values=values, subscriptions=channel.view)
        columns = ", ".join(f"`{name}`" for name in checked.columns)
        json = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
        text = f"SELECT '{channel.name}' AS channel, _key AS key, {json} AS row FROM ({text})"
        channel.texts[str(view_of)] = text
        return text
