"""Runs channels: one Spark plan answers all subscriptions of all channels that are due.

New records are the one thing that differs from one micro-batch to the next, so the plan for them is made once and
evaluated again, until a subscription table or a dataset changes (see `carried`). Where that cannot be, or while tables
change all the time, a plan is made for the one batch: the records are broadcast, the cached subscriptions stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster import grid
from nearcast.cluster.carried import Carried, stays_fresh
from nearcast.cluster.check import CheckedChannel
from nearcast.cluster.records import first_line
from nearcast.cluster.rewrite import KEY, rewrite
from nearcast.cluster.tokens import tokenize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.producers import Views
    from nearcast.cluster.tables import StreamTable

__all__ = ["MATCHES", "Matcher", "RunningChannel"]

_log = logging.getLogger(__name__)
MATCHES = pa.schema([("channel", pa.string()), ("key", pa.string()), ("row", pa.string())])
# What is settled when a plan is made, though it differs each time.
_FLEETING = {
    "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURDATE", "NOW", "LOCALTIMESTAMP", "UNIX_TIMESTAMP",
    "RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE",
}  # fmt: skip
# A plan is kept when its tables stayed the same for so many batches; every task then holds all its subscriptions.
_SETTLED, _MOST_KEPT = 2, 300_000
# From so many records on all cores join them.
_SPREAD = 4_000
# After a failure a plan is made for each batch, so many times.
_FAILED = 100
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip


@dataclass(eq=False)
class RunningChannel:
    """A channel and its subscription table: one row for each distinct set of values, by key."""

    checked: CheckedChannel
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    frame: DataFrame | None = None
    failures: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # the SQL, by who runs it; it changes with the rows
    version: int = 0  # of the rows
    state: object = None  # version of all that it reads, and for how many batches it is the same
    settled: int = 0
    lasting: bool = True  # its plan may be evaluated again

    def __post_init__(self) -> None:
        """A plan keeps the time at which it was made, and the seed."""
        self.lasting = not any(token.word in _FLEETING for token in tokenize(self.checked.spec.query))

    @property
    def name(self) -> str:
        return self.checked.spec.name

    @property
    def view(self) -> str:
        return f"_subscriptions_{self.name}"

    def values(self) -> dict[str, set[Any]]:
        """The distinct values in use, by parameter."""
        return {p.name: {row[p.name] for row in self.rows.values()} for p in self.checked.spec.parameters}


@dataclass(frozen=True)
class _Kept:
    """A plan that is evaluated again, good while its channels' states are these."""

    states: Sequence[tuple[RunningChannel, object]]
    considered: Sequence[RunningChannel]
    records: Carried
    frame: DataFrame | None

    @property
    def channels(self) -> list[RunningChannel]:
        return [channel for channel, _ in self.states]


class Matcher:
    """Holds the subscription tables in Spark's memory and evaluates channels against them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], _Kept] = {}
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
            channel.version += 1
            frame.createOrReplaceTempView(channel.view)
            frame.hint("broadcast").createOrReplaceTempView(f"{channel.view}_kept")
        if before is not None:
            before.unpersist()

    def match_new(
        self, channels: Sequence[RunningChannel], table: StreamTable, good: pa.Table, views: Views
    ) -> pa.Table:
        """Rows (channel, key, row as JSON) that new records of a dataset give, of all its continuous channels."""
        due = [channel for channel in channels if channel.rows]
        if not due or not good.num_rows:
            return MATCHES.empty_table()
        name = table.spec.name
        others = {dataset for channel in due for dataset in channel.checked.datasets} - {name}
        states = {dataset: views.state(dataset) for dataset in others}  # first: a view may be newer, never older
        view_of = {dataset: views.whole(dataset) for dataset in others}
        for channel in due:
            state = (channel.version, [states[dataset] for dataset in channel.checked.datasets if dataset != name])
            channel.settled = channel.settled + 1 if channel.state == state else 0
            channel.state = state
        kept = self._kept_plan(due, table, good, view_of)
        found = [] if kept is None else [self._match_kept(kept, name, good)]
        rest = [channel for channel in due if kept is None or found[0] is None or channel not in kept.channels]
        if rest:
            # The records are the small side: they go to the subscriptions, which stay where they are.
            records = self._spark.createDataFrame(good, table.schema).hint("broadcast")
            found.append(self.match(rest, view_of | {name: views.part(name, "batch", records)}))
        return pa.concat_tables([part for part in found if part is not None])

    def _kept_plan(
        self, due: Sequence[RunningChannel], table: StreamTable, good: pa.Table, view_of: Mapping[str, str]
    ) -> _Kept | None:
        """The plan made before, while it is good; a new one for channels that have settled since.

        Few records are best joined by one task; very many by all cores, where no exchange is needed for that.
        """
        name = table.spec.name, good.num_rows >= _SPREAD
        kept = self._kept.get(name)
        if kept is not None and any(channel not in due or channel.state != was for channel, was in kept.states):
            del self._kept[name]
            kept = None
        settled = [c for c in due if c.lasting and c.settled >= _SETTLED and len(c.rows) <= _MOST_KEPT]
        if any(kept is None or channel not in kept.considered for channel in settled):
            kept = self._kept[name] = self._plan(settled, table, good, view_of)
        return kept if kept and kept.states else None

    def _plan(
        self, channels: Sequence[RunningChannel], table: StreamTable, good: pa.Table, view_of: Mapping[str, str]
    ) -> _Kept:
        with self._lock:
            records = Carried(self._spark, table.schema, good)
            view_of = {**view_of, table.spec.name: f"_carried_{table.spec.name}"}
            frame = records.spread if good.num_rows >= _SPREAD else records.single
            frame.createOrReplaceTempView(view_of[table.spec.name])
            texts = {channel: self._sql(channel, view_of, "_kept") for channel in channels}
            fresh = [channel for channel, text in texts.items() if stays_fresh(self._spark.sql(text))]
            union = self._spark.sql(" UNION ALL ".join(texts[channel] for channel in fresh)) if fresh else None
        return _Kept([(channel, channel.state) for channel in fresh], channels, records, union)

    def _match_kept(self, kept: _Kept, name: str, good: pa.Table) -> pa.Table | None:
        """Nothing when it failed: then each channel is tried by itself."""
        from pyspark.errors import PySparkException

        assert kept.frame is not None
        try:
            kept.records.put(good)
            return kept.frame.toArrow().cast(MATCHES)
        except PySparkException as error:
            _log.warning("new records of %s: %s", name, first_line(error))
            self._kept = {which: other for which, other in self._kept.items() if other is not kept}
            for channel in kept.channels:
                channel.settled = -_FAILED
            return None

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

    def _sql(self, channel: RunningChannel, view_of: Mapping[str, str], which: str = "") -> str:
        reader = f"{sorted(view_of.items())}{which}"
        if (known := channel.texts.get(reader)) is not None:
            return known
        checked = channel.checked
        query = checked.spec.query.strip().rstrip(";")
        values = channel.values()
        text = rewrite(
            query, checked.how, view_of=view_of.__getitem__, values=values, subscriptions=channel.view + which
        )
        columns = ", ".join(f"`{name}`" for name in checked.columns)
        json = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
        text = f"SELECT '{channel.name}' AS channel, {KEY} AS key, {json} AS row FROM ({text})"
        channel.texts[reader] = text
        return text
