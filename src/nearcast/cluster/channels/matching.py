"""Evaluates channels: one Spark plan answers all subscriptions of all channels that are due.

Only the new records differ from one micro-batch to the next, so the plan is made once and evaluated again until a
subscription table or a dataset changes (see `reusable_plan`). Where a plan is not reusable, or while tables change all
the time, a plan is made for the one batch: the records are broadcast, the cached subscriptions stay in place.

A channel that fails, fails alone: it is evaluated by itself, and `fault_isolation` finds the subscriptions or records
that are to blame.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.fault_isolation import EvaluationFailure, isolate
from nearcast.cluster.channels.faults import ChannelFault, FaultLog
from nearcast.cluster.channels.reusable_plan import PlanInput, is_reusable
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.channels.statement import MATCHES, result_sql, subscription_table
from nearcast.cluster.channels.time_limit import TimeLimit
from nearcast.cluster.spark_errors import error_line, is_interruption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.views import DatasetViews

__all__ = ["Matcher", "NewRecords"]

_log = logging.getLogger(__name__)
# A plan is reused when its tables were unchanged for this many batches.
_UNCHANGED_BATCHES = 2
# Each task of a reusable plan holds all subscriptions: not with more than this.
_MOST_SUBSCRIPTIONS = 300_000
# From this many records on, all cores join them.
_SPREAD = 4_000
# After a failure, this many batches of a channel are planned anew.
_BATCHES_AFTER_FAILURE = 100
# The search for what makes a channel fail ends after this many seconds.
_ISOLATION_SECONDS = 60.0
# A subscription is switched off when it failed this often with records that nothing else could be compared with.
_UNDECIDED_FAILURES = 3


@dataclass(frozen=True)
class NewRecords:
    """The records that one execution sees once. load: reads them into the driver, when a failure must be isolated."""

    dataset: str
    schema: StructType
    load: Callable[[], pa.Table]


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
    """Holds the subscription tables in Spark's memory and evaluates channels against them.

    limit: seconds that one evaluation may take.
    """

    def __init__(self, spark: SparkSession, faults: FaultLog | None = None, limit: float = 60.0) -> None:
        self._spark, self.faults, self._limit = spark, faults or FaultLog(), limit
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, bool], _ReusablePlan] = {}
        self._numbers = itertools.count()
        self._views: dict[str, str] = {}
        spark.sql(grid.DISTANCE)

    def load(self, channel: RunningChannel, rows: dict[str, dict[str, Any]]) -> None:
        """Replace a channel's subscriptions; running executions finish with the old ones."""
        with channel.loading:
            channel.want(rows)
            self._load(channel)

    def _load(self, channel: RunningChannel) -> None:
        rows = channel.evaluated_rows()
        frame = self._spark.createDataFrame(subscription_table(channel.validated, rows))
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
        """Rows (channel, key, row as JSON, position) of a dataset's continuous channels for its new records."""
        due = [channel for channel in channels if channel.due]
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
            view_of[name] = self._view(f"batch {name}", frame)
            found.append(self.match(rest, view_of, NewRecords(name, table.schema, lambda: records)))
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
        unchanged = [c for c in due if c.validated.timeless and c.unchanged_batches >= _UNCHANGED_BATCHES]
        qualified = [channel for channel in unchanged if len(channel.rows) <= _MOST_SUBSCRIPTIONS]
        if any(plan is None or channel not in plan.considered for channel in qualified):
            plan = self._plans[key] = self._make_plan(qualified, table, records, view_of)
        return plan if plan and plan.versions else None

    def _make_plan(
        self, channels: Sequence[RunningChannel], table: StreamTable, records: pa.Table, view_of: Mapping[str, str]
    ) -> _ReusablePlan:
        with self._lock:
            plan_input = PlanInput(self._spark, table.schema, records)
            frame = plan_input.spread if records.num_rows >= _SPREAD else plan_input.single
            view_of = {**view_of, table.spec.name: self._view(f"plan {table.spec.name}", frame)}
            queries: dict[RunningChannel, str] = {}
            for channel in channels:
                try:
                    query = self._sql(channel, view_of, "_broadcast")
                    if is_reusable(self._spark.sql(query)):
                        queries[channel] = query
                except Exception as error:  # it is evaluated by itself, and fails or not there
                    self._check_running(error)
                    _log.warning("channel %s: its plan is not reusable: %s", channel.name, error_line(error))
            union = self._spark.sql(" UNION ALL ".join(queries.values())) if queries else None
        versions = [(channel, channel.inputs_version) for channel in queries]
        return _ReusablePlan(versions, channels, plan_input, union)

    def _evaluate(self, plan: _ReusablePlan, name: str, records: pa.Table) -> pa.Table | None:
        """None when it failed: then each channel is evaluated by itself."""
        assert plan.frame is not None
        try:
            plan.records.put(records)
            return self._rows(plan.frame)
        except Exception as error:
            self._check_running(error)
            _log.warning("new records of %s: %s", name, error_line(error))
            self._plans = {key: other for key, other in self._plans.items() if other is not plan}
            return None

    def match(
        self, channels: Sequence[RunningChannel], view_of: Mapping[str, str], new: NewRecords | None = None
    ) -> pa.Table:
        """Rows (channel, key, row as JSON, position) of these channels, from one plan. view_of: by dataset."""
        due = [channel for channel in channels if channel.due]
        if not due:
            return MATCHES.empty_table()
        if len(due) == 1:
            return self._match_alone(due[0], view_of, new)
        try:
            return self._run([self._sql(channel, view_of) for channel in due])
        except Exception as error:
            self._check_running(error)
        # One of them fails; each is evaluated by itself.
        return pa.concat_tables([self._match_alone(channel, view_of, new) for channel in due])

    def _match_alone(self, channel: RunningChannel, view_of: Mapping[str, str], new: NewRecords | None) -> pa.Table:
        try:
            return self._run([self._sql(channel, view_of)])
        except Exception as error:
            self._check_running(error)
            channel.failures += 1
            channel.unchanged_batches = -_BATCHES_AFTER_FAILURE
            reason = error_line(error)
            broken = self._unreadable(channel, view_of)
            if broken:  # not the channel's fault: it is evaluated again with the next batch
                self.faults.add(ChannelFault(channel.name, f"{broken}: {reason}", off=False))
            elif isinstance(error, _EvaluationError):
                self._switch_off(channel, reason)
            else:
                return self._isolate(channel, view_of, new)
            return MATCHES.empty_table()

    def _isolate(self, channel: RunningChannel, view_of: Mapping[str, str], new: NewRecords | None) -> pa.Table:
        """The results of all subscriptions and records but those that make the channel fail."""
        records = None if new is None else new.load()
        deadline = time.monotonic() + _ISOLATION_SECONDS

        def evaluate(keys: Sequence[str], rows: Sequence[int]) -> pa.Table | EvaluationFailure:
            some = subscription_table(channel.validated, {key: channel.rows[key] for key in keys})
            subscriptions = self._view(f"isolated {channel.number}", self._spark.createDataFrame(some))
            views = dict(view_of)
            if new is not None and records is not None:
                part = self._spark.createDataFrame(records.take(pa.array(rows, pa.int64())), new.schema)
                views[new.dataset] = self._view(f"isolated {channel.number} {new.dataset}", part)
            try:
                return self._run([self._rewritten(channel, views, subscriptions)])
            except Exception as error:
                self._check_running(error)
                return EvaluationFailure(error_line(error))

        count = 1 if records is None else records.num_rows
        found = isolate(list(channel.rows), range(count), evaluate, lambda: time.monotonic() < deadline)
        for row, reason in found.records.items():
            number = records["_sequence"][row].as_py() if records is not None else 0
            self.faults.add(ChannelFault(channel.name, reason, record=number))
        for key, reason in found.undecided.items():
            channel.undecided[key] = channel.undecided.get(key, 0) + 1
            if channel.undecided[key] >= _UNDECIDED_FAILURES:
                found.subscriptions[key] = reason
            else:
                self.faults.add(ChannelFault(channel.name, reason, off=False))
        if found.given_up:
            self._switch_off(channel, found.given_up)
        elif found.subscriptions:
            for key, reason in found.subscriptions.items():
                self.faults.add(ChannelFault(channel.name, reason, key=key))
            with channel.loading:
                channel.off |= found.subscriptions
                self._load(channel)
        return MATCHES.empty_table() if found.result is None else found.result

    def _switch_off(self, channel: RunningChannel, reason: str) -> None:
        channel.problem = reason
        self.faults.add(ChannelFault(channel.name, reason))

    def _unreadable(self, channel: RunningChannel, view_of: Mapping[str, str]) -> str:
        """The first dataset of a channel that cannot be read; empty when all can."""
        for dataset in channel.validated.datasets:
            try:
                self._spark.table(view_of[dataset]).count()
            except Exception as error:
                self._check_running(error)
                return f"dataset {dataset} cannot be read"
        return ""

    def _check_running(self, error: Exception) -> None:
        """Raise an error that says that Spark ends, or that the query is stopped: nobody's fault."""
        if is_interruption(error) or self._spark.sparkContext._jsc.sc().isStopped():
            raise error

    def _run(self, queries: Sequence[str]) -> pa.Table:
        try:
            with self._lock:
                frame = self._spark.sql(" UNION ALL ".join(queries))
        except Exception as error:
            self._check_running(error)
            raise _EvaluationError(error_line(error)) from error
        return self._rows(frame)

    def _rows(self, frame: DataFrame) -> pa.Table:
        limit = TimeLimit(self._spark, self._limit)
        try:
            with limit:
                return frame.toArrow().cast(MATCHES)
        except Exception as error:
            if limit.exceeded:
                raise _EvaluationError(f"it took longer than {self._limit:g} s") from error
            raise

    def _view(self, use: str, frame: DataFrame) -> str:
        """A temporary view for one use; the name cannot be that of another use."""
        name = self._views.setdefault(use, f"_view_{next(self._numbers)}")
        frame.createOrReplaceTempView(name)
        return name

    def _sql(self, channel: RunningChannel, view_of: Mapping[str, str], suffix: str = "") -> str:
        """The rewritten query. suffix: of the view of the subscriptions."""
        reader = f"{sorted(view_of.items())}{suffix}"
        if (known := channel.sql.get(reader)) is None:
            known = channel.sql[reader] = self._rewritten(channel, view_of, channel.view + suffix)
        return known

    @staticmethod
    def _rewritten(channel: RunningChannel, view_of: Mapping[str, str], subscriptions: str) -> str:
        return result_sql(channel.name, channel.validated, view_of.__getitem__, subscriptions, channel.radii())


class _EvaluationError(Exception):
    """A query that cannot be planned or takes too long, whatever the subscriptions and records are."""
