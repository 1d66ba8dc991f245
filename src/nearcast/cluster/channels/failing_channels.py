"""Evaluates a channel that fails by itself: `fault_isolation` finds the subscriptions or records that are to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels.channel_shape import MATCHES, SubscriptionNames
from nearcast.cluster.channels.evaluation import EvaluationError
from nearcast.cluster.channels.fault_isolation import EvaluationFailure, isolate
from nearcast.cluster.channels.faults import ChannelFault
from nearcast.cluster.channels.statement import levels_in, result_sql, subscription_table
from nearcast.cluster.channels.time_limit import TimeLimitError
from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from nearcast.cluster.channels.channel_shape import ChannelShape
    from nearcast.cluster.channels.evaluation import Evaluation
    from nearcast.cluster.channels.faults import FaultLog
    from nearcast.cluster.channels.running_channel import RunningChannel

__all__ = ["FailingChannels", "NewRecords"]

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


class FailingChannels:
    """Keeps the rest of a channel going. fold: makes a shape's subscriptions again, without those switched off."""

    def __init__(
        self, spark: SparkSession, evaluation: Evaluation, faults: FaultLog, fold: Callable[[ChannelShape], None]
    ) -> None:
        self._spark, self._evaluation, self._faults, self._fold = spark, evaluation, faults, fold

    def match(self, channel: RunningChannel, view_of: Mapping[str, str], new: NewRecords | None) -> pa.Table:
        """The results of a channel by a plan of its own. What makes it fail is switched off, and in the fault log."""
        rows = channel.evaluated_rows()
        try:
            return self._of_rows(channel, rows, view_of)
        except Exception as error:
            self._evaluation.check_running(error)
            channel.failures += 1
            reason = error_line(error)
            broken = self._unreadable(channel, view_of)
            if broken and (not channel.validated.spec.continuous or (new is not None and broken == new.dataset)):
                raise  # without the new records nothing is answered: the same batch or execution is repeated
            if broken:  # not the channel's fault: it is evaluated again with the next batch
                fault = f"dataset {broken} cannot be read: {reason}"
                self._faults.add(ChannelFault(channel.name, fault, off=False))
            elif isinstance(error, EvaluationError | TimeLimitError):
                self._switch_off(channel, reason)
            else:
                return self._isolate(channel, rows, view_of, new)
            return MATCHES.empty_table()

    def _of_rows(
        self, channel: RunningChannel, rows: Mapping[str, Mapping[str, Any]], view_of: Mapping[str, str]
    ) -> pa.Table:
        """The results of some subscriptions of a channel, by a plan of their own."""
        table, validated = subscription_table(channel.validated, rows.values()), channel.validated
        view = self._evaluation.view(f"alone {channel.number}", self._spark.createDataFrame(table))
        found = self._evaluation.run([result_sql(validated, view_of, view, levels_in(validated, table))])
        return SubscriptionNames.of_channel(channel.name, rows).matches(found)

    def _isolate(
        self,
        channel: RunningChannel,
        subscriptions: Mapping[str, Mapping[str, Any]],
        view_of: Mapping[str, str],
        new: NewRecords | None,
    ) -> pa.Table:
        """The results of all subscriptions and records but those that make the channel fail."""
        shape = channel.shape
        assert shape is not None
        records = None if new is None else new.load()
        deadline = time.monotonic() + _ISOLATION_SECONDS

        def evaluate(keys: Sequence[str], rows: Sequence[int]) -> pa.Table | EvaluationFailure:
            views = dict(view_of)
            if new is not None and records is not None:
                part = self._spark.createDataFrame(records.take(pa.array(rows, pa.int64())), new.schema)
                views[new.dataset] = self._evaluation.view(f"isolated {channel.number} {new.dataset}", part)
            try:
                return self._of_rows(channel, {key: subscriptions[key] for key in keys}, views)
            except Exception as error:
                self._evaluation.check_running(error)
                return EvaluationFailure(error_line(error))

        count = 1 if records is None else records.num_rows
        found = isolate(list(subscriptions), range(count), evaluate, lambda: time.monotonic() < deadline)
        for row, reason in found.records.items():
            number = records["_sequence"][row].as_py() if records is not None else 0
            self._faults.add(ChannelFault(channel.name, reason, record=number))
        for key, reason in found.undecided.items():
            channel.undecided[key] = channel.undecided.get(key, 0) + 1
            if channel.undecided[key] >= _UNDECIDED_FAILURES:
                found.subscriptions[key] = reason
            else:
                self._faults.add(ChannelFault(channel.name, reason, off=False))
        if found.given_up:
            self._switch_off(channel, found.given_up)
        elif found.subscriptions:
            for key, reason in found.subscriptions.items():
                self._faults.add(ChannelFault(channel.name, reason, key=key))
            with channel.loading:
                channel.off |= found.subscriptions
                shape.change(channel.name, {}, found.subscriptions)
            self._fold(shape)  # dropping their results is not enough: they must not be evaluated
        return MATCHES.empty_table() if found.result is None else found.result

    def _switch_off(self, channel: RunningChannel, reason: str) -> None:
        assert channel.shape is not None
        with channel.loading:
            channel.problem = reason
            channel.shape.clear(channel.name)
        self._fold(channel.shape)
        self._faults.add(ChannelFault(channel.name, reason))

    def _unreadable(self, channel: RunningChannel, view_of: Mapping[str, str]) -> str:
        """The first dataset of a channel that cannot be read; empty when all can."""
        for dataset in channel.validated.datasets:
            try:
                self._spark.table(view_of[dataset]).count()
            except Exception as error:
                self._evaluation.check_running(error)
                return dataset
        return ""
