"""Evaluates channels: one Spark plan answers all subscriptions of all channels that are due.

Channels of one query shape share a statement (`channel_shape`). Only the new records differ from one micro-batch to the
next, so a plan is kept and evaluated again until a dataset that it reads changes (`kept_plans`); subscriptions may come
and go meanwhile. Where a plan cannot be kept, or while datasets change all the time, a plan is made for the one batch:
the records of a short batch are broadcast, the cached subscriptions stay in place.

A channel that fails, fails alone: it is evaluated by itself (`failing_channels`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.channel_shape import (
    MATCHES,
    ChannelShape,
    ShapeState,
    SubscriptionBase,
    SubscriptionNames,
    shape_of,
)
from nearcast.cluster.channels.evaluation import Evaluation
from nearcast.cluster.channels.failing_channels import FailingChannels, NewRecords
from nearcast.cluster.channels.faults import FaultLog
from nearcast.cluster.channels.kept_plan import BatchRecords
from nearcast.cluster.channels.kept_plans import KeptPlans
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets.dataset_tables import WrittenRecords
from nearcast.cluster.java_connection import send_answers_at_once
from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.views import DatasetViews

__all__ = ["Matcher"]

_log = logging.getLogger(__name__)
# After a failure, this many batches of a channel are planned again.
_BATCHES_AFTER_FAILURE = 100


class Matcher:
    """Holds the subscription tables in Spark's memory and evaluates channels against them.

    limit: seconds that one evaluation may take.
    """

    def __init__(self, spark: SparkSession, limit: float = 60.0) -> None:
        self._spark, self.faults = spark, FaultLog()
        self._evaluation = Evaluation(spark, limit)
        self._failing = FailingChannels(spark, self._evaluation, self.faults, self._fold)
        self.kept = KeptPlans(self._evaluation)
        self._shapes: dict[object, ChannelShape] = {}
        self._channels: dict[str, RunningChannel] = {}
        self._swapping = threading.Lock()  # a new base and the plans with it come at once
        self._folder = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self._to_fold: set[ChannelShape] = set()
        self._retired: dict[ChannelShape, SubscriptionBase] = {}
        spark.sql(grid.DISTANCE)

    def load(self, channel: RunningChannel, rows: Mapping[str, dict[str, Any]]) -> None:
        """Replace a channel's subscriptions; running executions finish with the old ones."""
        with channel.loading:
            known = channel.wanted
            added = {key: row for key, row in rows.items() if known.get(key) != row}
            self.change(channel, added, [key for key in known if key not in rows])

    def change(
        self, channel: RunningChannel, added: Mapping[str, dict[str, Any]], removed: Collection[str] = ()
    ) -> None:
        """Add and remove subscriptions of a channel; costs what changes."""
        with channel.loading:
            if channel.shape is None:
                key = shape_of(channel.validated)
                channel.shape = self._shapes.setdefault(key, ChannelShape(channel.validated))
                channel.shape.channels.add(channel.name)
                self._channels[channel.name] = channel
            evaluated = channel.want(added, removed)
            channel.shape.change(channel.name, {} if channel.problem else evaluated, removed)

    def remove(self, channel: RunningChannel) -> None:
        """Forget a channel."""
        if (shape := channel.shape) is None:
            return
        shape.clear(channel.name)
        shape.channels.discard(channel.name)
        self._channels.pop(channel.name, None)
        if not shape.channels:
            self._shapes = {key: other for key, other in self._shapes.items() if other is not shape}
            self._evaluation.drop(shape.state.base)
            self.kept.drop(shape)

    def fold(self, now: float) -> None:
        """Make large deltas part of their bases: very large ones now, others in the background; small ones, too, when
        they have not changed for a while. now: on any clock."""
        for shape in list(self._shapes.values()):
            unchanged = shape.unchanged_seconds(now)
            if shape.state is shape.unfoldable:
                continue
            if shape.state.bulky:
                self._fold_or_report(shape)
            elif shape not in self._to_fold and shape.state.should_fold(unchanged):
                self._to_fold.add(shape)
                self._folder.submit(self._fold_or_report, shape)

    def settle(self) -> None:
        """Wait for what is folded in the background."""
        self._folder.submit(lambda: None).result()

    def match_new(
        self, channels: Sequence[RunningChannel], table: StreamTable, records: BatchRecords, views: DatasetViews
    ) -> pa.Table:
        """Rows (channel, key, row as JSON, position) of a dataset's continuous channels for its new records."""
        due = _shapes_of(channel for channel in channels if channel.due)
        if not due or not records.num_rows:
            return MATCHES.empty_table()
        send_answers_at_once(self._spark)
        shapes = _shapes_of(channels)  # a kept plan stays valid when the last subscription of one leaves
        name = table.spec.name
        others = {dataset for shape in shapes for dataset in shape.validated.datasets} - {name}
        versions = {dataset: views.version(dataset) for dataset in others}  # first: a view may be newer, never older
        for shape in shapes:
            version = [versions[dataset] for dataset in shape.validated.datasets if dataset != name]
            shape.unchanged_batches = shape.unchanged_batches + 1 if shape.inputs_version == version else 0
            shape.inputs_version = version

        def whole_views() -> dict[str, str]:
            return {dataset: views.whole(dataset) for dataset in others}

        with self._swapping:
            states = {shape: shape.state for shape in shapes}
            plan = self.kept.find(name, states, table.schema, records, whole_views)
        found = []
        if plan is not None:
            try:
                found.append(self.kept.evaluate(plan, records, states))
            except Exception as error:
                self._evaluation.check_running(error)
                _log.warning("new records of %s: %s", name, error_line(error))
                self.kept.forget(plan)
                plan = None
        rest = {shape: states[shape] for shape in due if plan is None or shape not in plan.bases}
        if rest:
            if isinstance(records, WrittenRecords):
                frame, view_of = self._spark.read.schema(table.schema).parquet(*records.uris), whole_views()
                new = NewRecords(name, table.schema, frame.toArrow)
            else:  # these are the small side: they are broadcast, the subscriptions stay where they are
                frame = self._spark.createDataFrame(records, table.schema).hint("broadcast")
                view_of = self._views_of_keys(name, list(rest), records, views)
                new = NewRecords(name, table.schema, lambda: records)
            view_of[name] = self._evaluation.view(f"batch {name}", frame)
            found.append(self._match_shapes(rest, view_of, new))
        return pa.concat_tables(found)

    def _views_of_keys(
        self, name: str, shapes: Sequence[ChannelShape], records: pa.Table, views: DatasetViews
    ) -> dict[str, str]:
        """Views of other datasets; of a large one that all look up by its key, only the keys of these records."""
        found = {}
        for dataset in {dataset for shape in shapes for dataset in shape.validated.datasets} - {name}:
            reading = [shape for shape in shapes if dataset in shape.validated.datasets]
            columns = {column for shape in reading if (column := shape.validated.lookups.get(dataset))}
            by_key = all(dataset in shape.validated.lookups for shape in reading)
            some = views.of_keys(dataset, [records[column] for column in columns]) if by_key else None
            if some is None:
                found[dataset] = views.whole(dataset)
                continue
            found[dataset] = self._evaluation.view(f"{dataset} for {name}", some)
            for shape in reading:
                shape.looked_up = True
        return found

    def match(
        self, channels: Sequence[RunningChannel], view_of: Mapping[str, str], new: NewRecords | None = None
    ) -> pa.Table:
        """Rows (channel, key, row as JSON, position) of these channels, from one plan. view_of: by dataset."""
        states = {shape: shape.state for shape in _shapes_of(channel for channel in channels if channel.due)}
        return self._match_shapes(states, view_of, new) if states else MATCHES.empty_table()

    def _match_shapes(
        self, states: Mapping[ChannelShape, ShapeState], view_of: Mapping[str, str], new: NewRecords | None
    ) -> pa.Table:
        try:
            with self._evaluation.lock:
                queries = [self._evaluation.whole_sql(shape, state, view_of) for shape, state in states.items()]
            rows = self._evaluation.run(queries)
        except Exception as error:
            self._evaluation.check_running(error)
        else:
            names = SubscriptionNames(named for shape, state in states.items() for named in shape.names(state))
            return names.matches(rows, frozenset[int]().union(*(state.removed for state in states.values())))
        if len(states) > 1:  # one of them fails; each is evaluated by itself
            return pa.concat_tables([self._match_shapes({s: state}, view_of, new) for s, state in states.items()])
        (shape,) = states
        shape.unchanged_batches = -_BATCHES_AFTER_FAILURE
        running = [self._channels.get(name) for name in sorted(shape.channels)]
        due = [channel for channel in running if channel is not None and channel.due]
        found = pa.concat_tables([MATCHES.empty_table(), *(self._failing.match(c, view_of, new) for c in due)])
        if shape.state.removed:  # a subscription that is gone may be what fails
            self._fold(shape)
        return found

    def _fold_or_report(self, shape: ChannelShape) -> None:
        before = shape.state
        try:
            self._fold(shape)
        except Exception as error:  # the delta stays beside the base; the next change tries again
            shape.unfoldable = before
            _log.warning("subscriptions of channel %s are not folded: %s", shape.name, error_line(error))
        finally:
            self._to_fold.discard(shape)

    def _fold(self, shape: ChannelShape) -> None:
        """A new base of all subscriptions, and plans with it, while executions continue with the old ones."""
        with shape.folding:
            before = shape.state
            if not before.delta.num_rows and not before.removed:
                return
            send_answers_at_once(self._spark)
            base = self._evaluation.base(shape, shape.live_rows(before))
            renewed = self.kept.renewed(shape, base)
            with self._swapping:
                shape.replace_base(before, base)
                self.kept.replace(renewed)
            if (retired := self._retired.pop(shape, None)) is not None:
                self._evaluation.drop(retired)
            self._retired[shape] = before.base  # an execution may just have begun with it


def _shapes_of(channels: Iterable[RunningChannel]) -> list[ChannelShape]:
    return list(dict.fromkeys(channel.shape for channel in channels if channel.shape is not None))
