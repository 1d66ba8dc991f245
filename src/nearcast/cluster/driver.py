"""The data cluster's driver: follows the catalog and keeps the right queries running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nearcast.cluster.analytics.workload_tables import workload_tables, write_tables
from nearcast.cluster.channels.channel_set import ChannelSet
from nearcast.cluster.channels.faults import ChannelFault, FaultReports
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.planning_guard import PlanningGuard
from nearcast.cluster.channels.result_tasks import publish_by_tasks
from nearcast.cluster.channels.results import ResultLog
from nearcast.cluster.channels.running_channel import RunningChannel, valid_values
from nearcast.cluster.channels.scheduled_channel import ScheduledChannel
from nearcast.cluster.channels.subscribers import Subscribers
from nearcast.cluster.cluster_service import ClusterService
from nearcast.cluster.dataset_ingest import DatasetIngest
from nearcast.cluster.dataset_queries import DatasetQueries
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.driver_lease import DriverLease, DriverReplacedError
from nearcast.cluster.driver_progress import DriverProgress
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.spark_errors import error_line, is_interruption
from nearcast.nats import subjects
from nearcast.nats.catalog import CHANNELS, DATASETS, SUBSCRIPTIONS, Catalog
from nearcast.nats.kv import BucketError
from nearcast.nats.streams import StreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.domain.deployment import Deployment

__all__ = ["Driver", "running_driver"]

_log = logging.getLogger(__name__)
_STEP_SECONDS, _FAILED_STEP_SECONDS = 0.2, 2.0
_MAINTENANCE_SECONDS = 30.0
_WORKLOAD_SECONDS = 3600.0
_CATALOG_SECONDS = 10.0


class Driver:
    """Use as a context manager; `run` calls `step` until it is told to stop."""

    def __init__(self, spark: SparkSession, deployment: Deployment, lease: DriverLease | None = None) -> None:
        self._spark, self._deployment, self._spec = spark, deployment, deployment.data_cluster()
        cloud = deployment.cloud()
        self._lease = lease or DriverLease(cloud)
        self._prefix = subjects.store_api(cloud.name)
        self._connection = connection_to([cloud.url])
        self._warehouse = Warehouse(self._spec.warehouse)
        self._catalog = Catalog(self._connection.connection, cloud.name)
        self._connection.call(self._catalog.prepare())
        self._connection.call(self._catalog.keep_reports())
        self._follow_again()
        self._subscribers = Subscribers()
        self.progress = DriverProgress()
        self._matcher = Matcher(spark, limit=self._spec.channel_seconds)
        self._faults = FaultReports(self._connection, self._catalog, self.progress)
        self._views = DatasetViews(spark)
        self._datasets = DatasetQueries(
            spark, deployment, self._warehouse, self._views, self.progress, self._ingest, self._failed, self._lease
        )
        guard = PlanningGuard(self._warehouse)
        self._channels = ChannelSet(spark, self.progress, self._schedule, self._matcher.remove, guard)
        self._service = ClusterService(
            spark, self._warehouse, self._views, self.progress, self.subscribed, self._catalog, self._connection
        )
        self._unconfirmed = 0  # the revision of the subscriptions that are loaded, while their sites do not know of it
        self._maintained = self._analysed = time.monotonic()
        self._maintenance: threading.Thread | None = None

    def __enter__(self) -> Driver:
        self._lease.take()
        self.step()
        self._service.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._service.stop()
        self._channels.stop()
        self._datasets.stop()
        if self._maintenance is not None:
            self._maintenance.join(60)
        self._lease.release()

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop, or replaced by another driver. Whatever goes wrong, the queries run on."""
        pause = _STEP_SECONDS
        while not stop.wait(pause):
            pause = _STEP_SECONDS
            try:
                self.step()
            except DriverReplacedError:
                raise
            except (BucketError, StreamError) as error:
                _log.warning("the catalog cannot be read: %s", error)
            except Exception as error:
                if is_interruption(error):  # Spark has ended, and a driver without it is of no use
                    raise
                _log.exception("a step of the driver failed; the catalog is read again: %s", error_line(error))
                self._follow_again()
                pause = _FAILED_STEP_SECONDS

    def step(self) -> None:
        """Apply what changed in the catalog, restart queries that stopped, start maintenance when it is due."""
        self._lease.check()
        if datasets := self._changes(DATASETS):
            self._outdated = True
            self._datasets.apply(datasets)
        if channels := self._changes(CHANNELS):
            self._outdated = True
            self._channels.apply(channels)
        subscriptions = self._changes(SUBSCRIPTIONS)
        changed = self._subscribers.apply(subscriptions, time.monotonic())
        if any(key.count(".") == 2 for key, _ in subscriptions):  # not leases, not what was confirmed
            self._unconfirmed = self._followers[SUBSCRIPTIONS].revision
        if self._outdated:
            self._outdated = False
            for name in self._channels.update(self._datasets.specs):
                changed[name] = set(self._subscribers.rows(name))
            for name, ingest in self._datasets.ingests.items():
                ingest.channels = self._channels.continuous(name)
        for name in changed.keys() & self._channels.running.keys():
            self._change(self._channels.running[name], changed[name])
        self._matcher.fold(time.monotonic())
        self._faults.report(self._matcher.faults.take(), self._channels.running)
        # A new scheduled channel notes the position after which records are new to it: before anybody is told to feed.
        self._channels.start()
        if self._unconfirmed:  # what is fed from now on is matched with these subscriptions
            self._connection.call(self._catalog.confirm(self._unconfirmed))
            self._unconfirmed = 0
        # Queries start last: a record read before the channels and their subscribers are known would not be matched.
        self._datasets.start()
        if time.monotonic() - self._maintained > _MAINTENANCE_SECONDS and not (
            self._maintenance and self._maintenance.is_alive()
        ):
            self._maintained = time.monotonic()
            self._maintenance = threading.Thread(target=self._maintain, name="maintenance", daemon=True)
            self._maintenance.start()

    def position(self, dataset: str) -> int:
        """The last sequence of a dataset that is kept."""
        return self._views.position(dataset)

    def subscribed(self) -> dict[str, int]:
        """The rows of each channel's subscription table."""
        return {name: channel.count for name, channel in self._channels.running.items()}

    def analyse(self) -> None:
        """Write the workload tables of the last hour, for the planners."""
        tables = workload_tables(
            self._spark,
            self._deployment,
            self._warehouse,
            self._subscribers.held(),
            _WORKLOAD_SECONDS,
            coordinated=self._connection.call(self._catalog.knows_clients()),
        )
        write_tables(self._warehouse, tables)

    def _follow_again(self) -> None:
        """Read the catalog from its beginning: a step that failed may have taken changes without applying them."""
        self._followers = {name: self._catalog.follow(name) for name in (DATASETS, CHANNELS, SUBSCRIPTIONS)}
        self._outdated = True  # datasets or channels have changed since the last update of the channels

    def _changes(self, bucket: str) -> list[tuple[str, bytes | None]]:
        return self._connection.ask(self._followers[bucket].changes, _CATALOG_SECONDS)

    def _change(self, channel: RunningChannel, keys: Collection[str]) -> None:
        """Take the subscriptions of a channel that came or went. What is wrong with one must stop nothing else."""
        rows = {key: self._subscribers.row(channel.name, key) for key in keys}
        valid, refused = valid_values(channel, {key: row for key, row in rows.items() if row is not None})
        try:
            self._matcher.change(channel, valid, rows.keys() - valid.keys())
        except Exception as error:
            if is_interruption(error):
                raise
            self._matcher.faults.add(ChannelFault(channel.name, error_line(error), off=False))
        for key, reason in refused.items():
            channel.off[key] = reason
            self._matcher.faults.add(ChannelFault(channel.name, reason, key=key))

    def _ingest(self, table: StreamTable) -> DatasetIngest:
        results = self._result_log(f"dataset-{table.spec.name}-{table.spec.created}")
        tasks = partial(publish_by_tasks, self._spark, self._warehouse.location, (self._deployment.cloud().url,))
        return DatasetIngest(
            self._spark, table, self._views, self._matcher, results, self.progress, self._lease.require, tasks
        )

    def _schedule(self, channel: RunningChannel) -> ScheduledChannel:
        spec = channel.validated.spec
        results = self._result_log(f"channel-{spec.name}-{spec.created}")
        return ScheduledChannel(
            channel,
            self._views,
            self._matcher,
            results,
            self._warehouse,
            self.progress,
            self._failed,
            self._lease.require,
        )

    def _result_log(self, producer: str) -> ResultLog:
        return ResultLog(self._warehouse, self._connection, producer, self._prefix)

    def _failed(self, name: str, problem: str) -> None:
        _log.error("%s stopped: %s", name, problem)
        self.progress.note(name, problem=problem)

    def _maintain(self) -> None:
        try:
            self._datasets.tidy()
            oldest = (datetime.now(UTC) - timedelta(seconds=self._spec.keep_results)).strftime("%Y-%m-%d")
            producers: list[Any] = [*self._datasets.ingests.values(), *self._channels.scheduled.values()]
            for producer in producers:
                producer.results.tidy(oldest)
            if self._spec.analyse_every and time.monotonic() - self._analysed > self._spec.analyse_every:
                self._analysed = time.monotonic()
                self.analyse()
        except Exception as error:  # Spark's errors, too: the next maintenance tries again
            _log.warning("maintenance failed: %s", error_line(error))


@contextlib.asynccontextmanager
async def running_driver(spark: SparkSession, deployment: Deployment) -> AsyncIterator[Driver]:
    """A driver in a thread, for asynchronous programs: a benchmark, a test."""
    driver = await asyncio.to_thread(Driver, spark, deployment)
    stop = threading.Event()

    def work() -> None:
        with driver:
            driver.run(stop)

    thread = threading.Thread(target=work, name="data cluster")
    thread.start()
    try:
        yield driver
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
