"""The datasets of the catalog and the Spark streaming query of each stream dataset, restarted when it stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nearcast.cluster.dataset_ingest import DatasetIngest
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.static_table import StaticTable
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.driver_read import DriverReader
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.cluster.query_starts import QueryStarts
from nearcast.cluster.spark_errors import error_line, failure_reason, is_interruption
from nearcast.cluster.spark_session import query_session
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import drop
from nearcast.nats.catalog import decode_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.driver_lease import DriverLease
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.domain.deployment import Deployment

__all__ = ["DatasetQueries"]

_log = logging.getLogger(__name__)
_GAP_ROWS = 10_000


class DatasetQueries:
    """ingest: makes the DatasetIngest of a stream table. failed: is told the name and the reason of a failure."""

    def __init__(
        self,
        spark: SparkSession,
        deployment: Deployment,
        warehouse: Warehouse,
        views: DatasetViews,
        progress: DriverProgress,
        ingest: Callable[[StreamTable], DatasetIngest],
        failed: Callable[[str, str], None],
        lease: DriverLease,
    ) -> None:
        self._spark, self._deployment, self._spec = spark, deployment, deployment.data_cluster()
        self._warehouse, self._views, self._progress = warehouse, views, progress
        self._make_ingest, self._failed, self._lease = ingest, failed, lease
        self._checkpoints = self._spec.checkpoints or warehouse.uri(warehouse.folder("checkpoints"))
        self.specs: dict[str, DatasetSpec] = {}
        self.ingests: dict[str, DatasetIngest] = {}
        self._queries: dict[str, Any] = {}
        self._starts = QueryStarts()
        spark.dataSource.register(NatsSource)
        self._streams = query_session(spark)

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> None:
        """Take changes of the catalog; `start` starts the queries of new datasets."""
        for name, value in changes:
            before = self.specs.get(name)
            try:
                spec = None if value is None else decode_spec(name, value, DatasetSpec)
            except InputError as error:  # the one that was there continues, and the others do
                drop("dataset", name, error)
                self._progress.note(name, problem=f"its entry in the catalog is unreadable: {error}")
                continue
            if spec == before:
                continue
            if before is not None and (spec is None or spec.created != before.created or not spec.static):
                self._remove(name)
            if spec is not None:
                try:
                    self._add(spec)
                    self.specs[name] = spec
                except Exception as error:  # this dataset does not run; the others do
                    self._report(name, error)

    def start(self) -> None:
        """Start new queries, and those that stopped a while ago, a few at a time: to be called again and again."""
        now = time.monotonic()
        for name, query in list(self._queries.items()):
            if not query.isActive:
                del self._queries[name]
                self._failed(name, failure_reason(query.exception()))
                self._restart_later(name, now)
            elif self._starts.is_starting(name) and not _initializing(query):
                self._starts.started(name, now)
        while (due := self._starts.next(time.monotonic())) is not None:
            self._start_or_report(self.specs[due])

    def stop(self) -> None:
        """Stop all queries."""
        for query in self._queries.values():
            query.stop()
        for table in self._views.tables.values():
            table.close()

    def tidy(self) -> None:
        """Merge small files, delete what has expired, note how far each dataset is behind its stream."""
        for name, table in list(self._views.tables.items()):
            if isinstance(table, StreamTable):
                table.tidy(datetime.now(UTC))
                servers, domain, stream = self._location(table.spec)
                prefix = subjects.store_api(domain) if domain else "$JS.API"
                last = connection_to([servers]).bounds(stream, prefix).last
                self._progress.note(name, lag=last - table.position)

    def _add(self, spec: DatasetSpec) -> None:
        tables = self._views.tables
        if spec.static:
            before = tables.get(spec.name)
            tables[spec.name] = table = StaticTable(self._spark, spec, self._warehouse)
            self._progress.forget(spec.name)
            if table.problem:
                self._failed(spec.name, table.problem)
            if isinstance(before, StaticTable):
                before.close()
            return
        tables[spec.name] = stream = StreamTable(
            self._spark, spec, self._warehouse, self._lease.term, lambda problem: self._failed(spec.name, problem)
        )
        self.ingests[spec.name] = self._make_ingest(stream)
        self._starts.add(spec.name, time.monotonic())

    def _remove(self, name: str) -> None:
        self._starts.remove(name)
        if query := self._queries.pop(name, None):
            query.stop()
        self.ingests.pop(name, None)
        if table := self._views.tables.pop(name, None):
            table.close()
        self.specs.pop(name, None)
        self._progress.forget(name)

    def _start_or_report(self, spec: DatasetSpec) -> None:
        """A query that cannot even start is tried again, too; if its dataset is wrong, not until that changes."""
        try:
            self._start_query(spec)
        except Exception as error:
            self._report(spec.name, error)
            if isinstance(error, InputError):
                self._starts.remove(spec.name)
            else:
                self._restart_later(spec.name, time.monotonic())

    def _restart_later(self, name: str, now: float) -> None:
        _log.info("dataset %s: restarting its query in %g s", name, self._starts.failed(name, now))

    def _report(self, name: str, error: Exception) -> None:
        if isinstance(error, NearcastError):
            self._failed(name, str(error))
        elif is_interruption(error):  # Spark ends
            raise error
        else:
            _log.error("dataset %s", name, exc_info=error)
            self._failed(name, error_line(error))

    def _start_query(self, spec: DatasetSpec) -> None:
        from pyspark.errors import PySparkException

        servers, domain, stream = self._location(spec)
        options = {"servers": servers, "stream": stream, "valueSchema": spec.schema}
        options |= {"maxRowsPerBatch": str(self._spec.batch_rows)}
        options |= {"partitions": str(self._spark.sparkContext.defaultParallelism)}
        if domain:
            options["domain"] = domain
        if spec.source.startswith("pub."):
            options["subject"] = spec.source
        checkpoint = f"{self._checkpoints}/{spec.name}-{spec.created}"
        reader = DriverReader(options, checkpoint)
        table = self._views.tables[spec.name]
        assert isinstance(table, StreamTable)
        table.answered(reader.answered())
        self._fill_gap(table, reader)
        options |= {"startingSequence": str(table.notified + 1)}
        self.ingests[spec.name].query_starts(reader)
        frame = self._streams.readStream.format("nats").options(**options).load()
        writer = frame.writeStream.queryName(f"dataset {spec.name}").foreachBatch(self.ingests[spec.name])
        try:
            self._queries[spec.name] = writer.option("checkpointLocation", checkpoint).start()
        except PySparkException as error:
            raise NearcastError(f"dataset {spec.name}: {error_line(error)}") from error

    def _fill_gap(self, table: StreamTable, reader: DriverReader) -> None:
        """Read again what was answered but not written to the table when the last driver ended."""
        if (gap := table.gap()) is None:
            return
        after, watermarks = gap
        _log.info("dataset %s: records %d to %d are read again", table.spec.name, after + 1, table.notified)
        while after < table.notified:
            last = min(after + _GAP_ROWS, table.notified)
            rows = reader.read_range(after + 1, last)
            if rows is not None:
                batch = table.validator.split(rows, watermarks)
                watermarks = batch.watermarks
                table.fill(replace(batch, last=last))
            after = last

    def _location(self, spec: DatasetSpec) -> tuple[str, str, str]:
        """Servers, domain and stream of a dataset's records: in the cloud, or where its topic is stored."""
        cloud = self._deployment.cloud()
        if spec.source.startswith("fed."):
            return cloud.store_url, "", subjects.feed_stream(spec.name)
        topic = self._deployment.topic(spec.source.removeprefix("pub."))
        if not topic.replicas:
            raise InputError(f"dataset {spec.name}: topic {topic.name} is not stored; give it `replicas`")
        if cloud.name in topic.replicas:
            return cloud.store_url, "", subjects.stream_name(topic.name)
        return cloud.url, topic.replicas[0], subjects.stream_name(topic.name)


def _initializing(query: Any) -> bool:
    """Whether Spark still makes the query's source: its Python process has not answered yet."""
    return str(query.status["message"]).startswith("Initializing")
