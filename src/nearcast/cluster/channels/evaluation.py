"""Runs the statements of channels in Spark, within a limit of time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nearcast.cluster.channels.channel_shape import ChannelShape, ShapeState, SubscriptionBase
from nearcast.cluster.channels.plan_output import PlanOutput
from nearcast.cluster.channels.ranges import bounds_view
from nearcast.cluster.channels.statement import NUMBERED, levels_in, range_buckets, result_sql
from nearcast.cluster.channels.time_limit import TimeLimit
from nearcast.cluster.spark_errors import error_line, is_interruption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Evaluation", "EvaluationError"]


class EvaluationError(Exception):
    """A query that cannot be planned, whatever the subscriptions and records are."""


class Evaluation:
    """limit: seconds that one evaluation may take. lock: held while views are made and used by name."""

    def __init__(self, spark: SparkSession, limit: float) -> None:
        self.spark, self._limit, self.lock = spark, limit, threading.RLock()
        self._views: dict[str, str] = {}
        self._whole: dict[str, pa.Table] = {}  # the deltas in views of base and delta, by the view of the base
        self._numbers = itertools.count()

    def run(self, queries: Sequence[str]) -> pa.Table:
        """The rows (number, row as JSON, position) of statements, from one plan."""
        try:
            with self.lock:
                frame = self.spark.sql(" UNION ALL ".join(queries))
        except Exception as error:
            self.check_running(error)
            raise EvaluationError(error_line(error)) from error
        return self.rows(frame)

    def rows(self, frame: DataFrame) -> pa.Table:
        """The rows of a plan."""
        with TimeLimit(self.spark, self._limit):
            return frame.toArrow().cast(NUMBERED)

    def output_rows(self, output: PlanOutput) -> pa.Table:
        """The rows of kept plans."""
        if not output.prepared:
            with TimeLimit(self.spark, self._limit):
                output.prepare()
        return output.rows(self._limit)

    def check_running(self, error: Exception) -> None:
        """Raise an error that says that Spark ends, or that the query is stopped: nobody's fault."""
        if is_interruption(error) or self.spark.sparkContext._jsc.sc().isStopped():
            raise error

    def view(self, use: str, frame: DataFrame) -> str:
        """A temporary view for one use; the name cannot be that of another use."""
        name = self._views.setdefault(use, f"_view_{next(self._numbers)}")
        frame.createOrReplaceTempView(name)
        return name

    def base(self, shape: ChannelShape, rows: pa.Table) -> SubscriptionBase:
        """Rows in Spark's memory, and views of them; that for kept plans has the suffix `_broadcast`."""
        if not rows.num_rows:
            return SubscriptionBase(rows, None)
        buckets = range_buckets(shape.validated, rows)
        frame = self.spark.createDataFrame(shape.spark_rows(rows, buckets))
        frame = frame.repartition(int(self.spark.conf.get("spark.sql.shuffle.partitions") or "2")).cache()
        frame.count()  # now, not in the next micro-batch
        base = SubscriptionBase(rows, frame, buckets)
        for name, table in buckets.items():
            few = self.spark.createDataFrame(table).hint("broadcast")
            few.createOrReplaceTempView(bounds_view(base.bounds, name))
        frame.createOrReplaceTempView(base.view)
        frame.hint("broadcast").createOrReplaceTempView(f"{base.view}_broadcast")
        return base

    def drop(self, base: SubscriptionBase) -> None:
        """Forget a base that no execution uses any more."""
        self._whole.pop(base.view, None)
        if base.frame is not None:
            base.frame.unpersist()
            views = [base.view + suffix for suffix in ("", "_broadcast", "_all")]
            for view in (*views, *(bounds_view(base.bounds, name) for name in base.buckets)):
                self.spark.catalog.dropTempView(view)

    def whole_sql(self, shape: ChannelShape, state: ShapeState, view_of: Mapping[str, str]) -> str:
        """The statement for base and delta."""
        base, delta = state.base, state.delta
        view = base.view
        if delta.num_rows:
            view = f"{base.view}_all"
            if self._whole.get(base.view) is not delta:
                rows = self.spark.createDataFrame(shape.spark_rows(delta, base.buckets))
                (rows if base.frame is None else base.frame.union(rows)).createOrReplaceTempView(view)
                self._whole[base.view] = delta
        levels = levels_in(shape.validated, base.rows, delta)
        return result_sql(shape.validated, view_of, view, levels, base.bounds)
