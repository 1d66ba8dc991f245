"""The datasets of the catalog and the Spark streaming query of each stream dataset, restarted when it stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.cluster.dataset_ingest import DatasetIngest
from nearcast.cluster.datasets.dataset_tables import StaticTable, StreamTable
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.driver_read import DriverReader
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.cluster.spark_errors import error_line, failure_reason
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import NearcastError
from nearcast.nats import subjects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.domain.deployment import Deployment

__all__ = ["DatasetQueries"]

_log = logging.getLogger(__name__)
_RESTART_AFTER = 2.0


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
    ) -> None:
        self._spark, self._deployment, self._spec = spark, deployment, deployment.data_cluster()
        self._warehouse, self._views, self._progress = warehouse, views, progress
        self._make_ingest, self._failed = ingest, failed
        self._checkpoints = self._spec.checkpoints or warehouse.uri(warehouse.folder("checkpoints"))
        self.specs: dict[str, DatasetSpec] = {}
        self.ingests: dict[str, DatasetIngest] = {}
        self._pending: list[DatasetSpec] = []
        self._queries: dict[str, Any] = {}
        self._restart_at: dict[str, float] = {}
        spark.dataSource.register(NatsSource)

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> None:
        """Take changes of the catalog; `start` starts the queries of new datasets."""
        for name, value in changes:
            before = self.specs.get(name)
            spec = None if value is None else msgspec.json.decode(value, type=DatasetSpec)
            if spec == before:
                continue
            if before is not None and (spec is None or spec.created != before.created):
                self._remove(name)
            if spec is not None:
                self.specs[name] = spec
                self._add(spec)

    def start(self) -> None:
        """Start new queries, and those that stopped a while ago."""
        while self._pending:
            self._start_query(self._pending.pop())
        now = time.monotonic()
        for name, query in list(self._queries.items()):
            if query.isActive:
                continue
            if name not in self._restart_at:
                self._failed(name, failure_reason(query.exception()))
                self._restart_at[name] = now + _RESTART_AFTER
            elif now > self._restart_at[name]:
                del self._restart_at[name]
                _log.info("dataset %s: restarting its query", name)
                self._start_query(self.specs[name])

    def stop(self) -> None:
        """Stop all queries."""
        for query in self._queries.values():
            query.stop()

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
            tables[spec.name] = StaticTable(self._spark, spec, self._warehouse)
            if isinstance(before, StaticTable):
                before.close()
            return
        tables[spec.name] = table = StreamTable(self._spark, spec, self._warehouse)
        self.ingests[spec.name] = self._make_ingest(table)
        self._pending.append(spec)

    def _remove(self, name: str) -> None:
        self._pending = [spec for spec in self._pending if spec.name != name]
        if query := self._queries.pop(name, None):
            query.stop()
        self.ingests.pop(name, None)
        self._views.tables.pop(name, None)
        self.specs.pop(name, None)
        self._progress.forget(name)

    def _start_query(self, spec: DatasetSpec) -> None:
        from pyspark.errors import PySparkException

        servers, domain, stream = self._location(spec)
        options = {"servers": servers, "stream": stream, "valueSchema": spec.schema}
        options |= {"maxRowsPerBatch": str(self._spec.batch_rows)}
        options |= {"startingSequence": str(self._views.position(spec.name) + 1)}
        if domain:
            options["domain"] = domain
        if spec.source.startswith("pub."):
            options["subject"] = spec.source
        checkpoint = f"{self._checkpoints}/{spec.name}-{spec.created}"
        ingest = self.ingests[spec.name]
        ingest.query_starts(DriverReader(options, checkpoint))
        frame = self._spark.readStream.format("nats").options(**options).load()
        writer = frame.writeStream.queryName(f"dataset {spec.name}").foreachBatch(ingest)
        try:
            self._queries[spec.name] = writer.option("checkpointLocation", checkpoint).start()
        except PySparkException as error:
            raise NearcastError(f"dataset {spec.name}: {error_line(error)}") from error

    def _location(self, spec: DatasetSpec) -> tuple[str, str, str]:
        """Servers, domain and stream of a dataset's records: in the cloud, or where its topic is stored."""
        cloud = self._deployment.cloud()
        if spec.source.startswith("fed."):
            return cloud.store_url, "", subjects.feed_stream(spec.name)
        topic = self._deployment.topic(spec.source.removeprefix("pub."))
        if not topic.replicas:
            raise NearcastError(f"dataset {spec.name}: topic {topic.name} is not stored; give it `replicas`")
        if cloud.name in topic.replicas:
            return cloud.store_url, "", subjects.stream_name(topic.name)
        return cloud.url, topic.replicas[0], subjects.stream_name(topic.name)
