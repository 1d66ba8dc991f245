"""Evaluates channels: one Spark plan answers all subscriptions of all channels that are due.

Only the new records differ from one micro-batch to the next, so the plan is made once and evaluated again until a
subscription table or a dataset changes (see `reusable_plan`). Where a plan is not reusable, or while tables change all
the time, a plan is made for the one batch: the records are broadcast, the cached subscriptions stay in place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_validation import ValidatedChannel
from nearcast.cluster.channels.reusable_plan import PlanInput, is_reusable
from nearcast.cluster.channels.rewrite import KEY, rewrite
from nearcast.cluster.channels.tokens import tokenize
from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.views import DatasetViews

__all__ = ["MATCHES", "Matcher", "RunningChannel"]

_log = logging.getLogger(__name__)
MATCHES = pa.schema([("channel", pa.string()), ("key", pa.string()), ("row", pa.string())])
# Functions that are evaluated when a plan is made: such a plan cannot be reused.
_EVALUATED_AT_PLANNING = {
    "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURDATE", "NOW", "LOCALTIMESTAMP", "UNIX_TIMESTAMP",
    "RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE",
}  # fmt: skip
# A plan is reused when its tables were unchanged for this many batches.
_UNCHANGED_BATCHES = 2
# Each task of a reusable plan holds all subscriptions: not with more than this.
_MOST_SUBSCRIPTIONS = 300_000
# From this many records on, all cores join them.
_SPREAD = 4_000
# After a failure, this many batches are planned anew.
_BATCHES_AFTER_FAILURE = 100
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip


@dataclass(eq=False)
class RunningChannel:
    """A channel and its subscription table: one row for each distinct set of values, by key."""

    validated: ValidatedChannel
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    frame: DataFrame | None = None
    failures: int = 0
    sql: dict[str, str] = field(default_factory=dict)  # the rewritten query by reader; it changes with the rows
    rows_version: int = 0
    inputs_version: object = None  # of all that it reads
    unchanged_batches: int = 0  # since inputs_version changed
    reusable: bool = True  # its plan may be evaluated again

    def __post_init__(self) -> None:
        """A plan keeps the time at which it was made, and the random seed."""
        self.reusable = not any(token.word in _EVALUATED_AT_PLANNING for token in tokenize(self.validated.spec.query))

    @property
    def name(self) -> str:
        return self.validated.spec.name

    @property
    def view(self) -> str:
        return f"_subscriptions_{self.name}"

    def values(self) -> dict[str, set[Any]]:
        """The distinct values in use, by parameter."""
        return {p.name: {row[p.name] for row in self.rows.values()} for p in self.validated.spec.parameters}


@dataclass(frozen=True)
class _ReusablePlan:
    """A plan that is evaluated again, valid while the inputs of its channels have these versions.

    considered: the channels for which it was made; those whose part is not reusable are not in it.
    """

    versions: Sequence[tuple[RunningChannel, object]]
    considered: Sequence[RunningChannel]
    records: PlanInput
    frame: DataFrame | None

    @property
    def channels(self) -> list[RunningChannel]:
        return [channel for channel, _ in self.versions]


class Matcher:
    """Holds the subscription tables in Spark's memory and evaluates channels against them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, bool], _ReusablePlan] = {}
        spark.sql(grid.DISTANCE)

    def load(self, channel: RunningChannel, rows: dict[str, dict[str, Any]]) -> None:
        """Replace a channel's subscription table; running executions finish with the old one."""
        parameters = channel.validated.spec.parameters
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
            channel.sql.clear()
            channel.rows_version += 1
            frame.createOrReplaceTempView(channel.view)
            frame.hint("broadcast").createOrReplaceTempView(f"{channel.view}_broadcast")
        if before is not None:
            before.unpersist()

    def match_new(
        self, channels: Sequence[RunningChannel], table: StreamTable, records: pa.Table, views: DatasetViews
    ) -> pa.Table:
        """Rows (channel, key, row as JSON) of a dataset's continuous channels for its new records."""
        due = [channel for channel in channels if channel.rows]
        if not due or not records.num_rows:
            return MATCHES.empty_table()
        name = table.spec.name
        others = {dataset for channel in due for dataset in channel.validated.datasets} - {name}
        versions = {dataset: views.version(dataset) for dataset in others}  # first: a view may be newer, never older
        view_of = {dataset: views.whole(dataset) for dataset in others}
        for channel in due:
            inputs = [versions[dataset] for dataset in channel.validated.datasets if dataset != name]
            version = (channel.rows_version, inputs)
            channel.unchanged_batches = channel.unchanged_batches + 1 if channel.inputs_version == version else 0
            channel.inputs_version = version
        plan = self._reusable_plan(due, table, records, view_of)
        found = [] if plan is None else [self._evaluate(plan, name, records)]
        rest = [channel for channel in due if plan is None or found[0] is None or channel not in plan.channels]
        if rest:
            # The records are the small side: they are broadcast, the subscriptions stay where they are.
            frame = self._spark.createDataFrame(records, table.schema).hint("broadcast")
            found.append(self.match(rest, view_of | {name: views.part(name, "batch", frame)}))
        return pa.concat_tables([part for part in found if part is not None])

    def _reusable_plan(
        self, due: Sequence[RunningChannel], table: StreamTable, records: pa.Table, view_of: Mapping[str, str]
    ) -> _ReusablePlan | None:
        """The plan made before, while it is valid; a new one when more channels qualify.

        Few records are best joined by one task; many by all cores, where no exchange is needed for that.
        """
        key = table.spec.name, records.num_rows >= _SPREAD
        plan = self._plans.get(key)
        if plan is not None and any(c not in due or c.inputs_version != version for c, version in plan.versions):
            del self._plans[key]
            plan = None
        unchanged = [c for c in due if c.reusable and c.unchanged_batches >= _UNCHANGED_BATCHES]
        qualified = [channel for channel in unchanged if len(channel.rows) <= _MOST_SUBSCRIPTIONS]
        if any(plan is None or channel not in plan.considered for channel in qualified):
            plan = self._plans[key] = self._make_plan(qualified, table, records, view_of)
        return plan if plan and plan.versions else None

    def _make_plan(
        self, channels: Sequence[RunningChannel], table: StreamTable, records: pa.Table, view_of: Mapping[str, str]
    ) -> _ReusablePlan:
        with self._lock:
            plan_input = PlanInput(self._spark, table.schema, records)
            view_of = {**view_of, table.spec.name: f"_plan_input_{table.spec.name}"}
            frame = plan_input.spread if records.num_rows >= _SPREAD else plan_input.single
            frame.createOrReplaceTempView(view_of[table.spec.name])
            queries = {channel: self._sql(channel, view_of, "_broadcast") for channel in channels}
            reusable = [channel for channel, query in queries.items() if is_reusable(self._spark.sql(query))]
            union = self._spark.sql(" UNION ALL ".join(queries[channel] for channel in reusable)) if reusable else None
        versions = [(channel, channel.inputs_version) for channel in reusable]
        return _ReusablePlan(versions, channels, plan_input, union)

    def _evaluate(self, plan: _ReusablePlan, name: str, records: pa.Table) -> pa.Table | None:
        """None when it failed: then each channel is evaluated by itself."""
        from pyspark.errors import PySparkException

        assert plan.frame is not None
        try:
            plan.records.put(records)
            return plan.frame.toArrow().cast(MATCHES)
        except PySparkException as error:
            _log.warning("new records of %s: %s", name, error_line(error))
            self._plans = {key: other for key, other in self._plans.items() if other is not plan}
            for channel in plan.channels:
                channel.unchanged_batches = -_BATCHES_AFTER_FAILURE
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
                _log.error("channel %s failed: %s", due[0].name, error_line(error))
                return MATCHES.empty_table()
        # One of them fails for this data; the others are evaluated one by one.
        return pa.concat_tables([self.match([channel], view_of) for channel in due])

    def _run(self, queries: Sequence[str]) -> pa.Table:
        with self._lock:
            frame = self._spark.sql(" UNION ALL ".join(queries))
        return frame.toArrow().cast(MATCHES)

    def _sql(self, channel: RunningChannel, view_of: Mapping[str, str], suffix: str = "") -> str:
        """The rewritten query. suffix: of the view of the subscriptions."""
        reader = f"{sorted(view_of.items())}{suffix}"
        if (known := channel.sql.get(reader)) is not None:
            return known
        validated = channel.validated
        text = rewrite(
            validated.spec.query.strip().rstrip(";"),
            validated.how,
            view_of=view_of.__getitem__,
            values=channel.values(),
            subscriptions=channel.view + suffix,
        )
        columns = ", ".join(f"`{name}`" for name in validated.columns)
        json = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
        text = f"SELECT '{channel.name}' AS channel, {KEY} AS key, {json} AS row FROM ({text})"
        channel.sql[reader] = text
        return text
