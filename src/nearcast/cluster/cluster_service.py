"""What a running data cluster answers: its state, quarantined records, and queries that are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.ad_hoc_query import ad_hoc_sql, run_ad_hoc
from nearcast.cluster.catalog_validation import explained_channel, validate_channel, validate_dataset
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, Server
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    ChannelCheck,
    DataClusterState,
    DatasetState,
    ProducerState,
    QuarantinedRecord,
    QuarantineRequest,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection

__all__ = ["ClusterService"]

_SHOWN_BYTES = 2000
_AT_ONCE = 1  # of what needs Spark; channels need the executors, too
_MOST_WAITING = 4
T = TypeVar("T")


class ClusterService:
    """subscribed: the number of subscriptions of each channel."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        views: DatasetViews,
        progress: DriverProgress,
        subscribed: Callable[[], dict[str, int]],
    ) -> None:
        self._spark, self._warehouse, self._views = spark, warehouse, views
        self._progress, self._subscribed = progress, subscribed
        self._server: Server | None = None
        self._turn, self._waiting = asyncio.Semaphore(_AT_ONCE), 0

    def start(self, connection: BlockingConnection) -> None:
        """Answer from now on."""
        endpoints = [
            Endpoint("cluster-state", subjects.data_cluster("state"), None, self._state),
            Endpoint("cluster-quarantine", subjects.data_cluster("quarantine"), QuarantineRequest, self._quarantine),
            Endpoint("cluster-query", subjects.data_cluster("query"), AdHocQuery, self._query),
            Endpoint("cluster-check-dataset", subjects.data_cluster("check-dataset"), DatasetSpec, self._check_dataset),
            Endpoint(
                "cluster-check-channel", subjects.data_cluster("check-channel"), ChannelCheck, self._check_channel
            ),
            Endpoint("cluster-explain-channel", subjects.data_cluster("explain-channel"), ChannelCheck, self._explain),
        ]
        self._server = Server(connection.connection, endpoints)
        connection.call(self._server.start())

    def stop(self, connection: BlockingConnection) -> None:
        """Answer no more."""
        if self._server is not None:
            connection.call(self._server.stop())

    async def _state(self, request: None) -> DataClusterState:
        return await asyncio.to_thread(self._read_state)

    async def _quarantine(self, request: QuarantineRequest) -> list[QuarantinedRecord]:
        return await asyncio.to_thread(self._read_quarantine, request)

    async def _query(self, request: AdHocQuery) -> AdHocAnswer:
        return await self._in_turn(self._run, request)

    async def _check_dataset(self, spec: DatasetSpec) -> str:
        await self._in_turn(validate_dataset, self._spark, spec)
        return ""

    async def _check_channel(self, request: ChannelCheck) -> str:
        await self._in_turn(validate_channel, self._spark, request.channel, _by_name(request.datasets))
        return ""

    async def _explain(self, request: ChannelCheck) -> str:
        return await self._in_turn(explained_channel, self._spark, request.channel, _by_name(request.datasets))

    async def _in_turn(self, work: Callable[..., T], *arguments: object) -> T:
        """Spark's work beside that of channels, one piece after the other, in a thread."""
        if self._waiting >= _MOST_WAITING:
            raise NearcastError(f"{self._waiting} other requests wait; try again in some seconds")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work, *arguments)
        finally:
            self._waiting -= 1

    def _run(self, request: AdHocQuery) -> AdHocAnswer:
        sql = ad_hoc_sql(request.query, self._views.tables.keys(), self._views.whole)
        return run_ad_hoc(self._spark, sql, request.limit)

    def _read_state(self) -> DataClusterState:
        producers = [
            ProducerState(name, one.rows, one.refused, one.results, one.batches, one.lag, one.seconds, one.problem)
            for name, one in self._progress.snapshot().items()
        ]
        tables = [(name, table) for name, table in self._views.tables.items() if isinstance(table, StreamTable)]
        datasets = [
            DatasetState(name, *table.records.contents(), quarantined=table.quarantine.contents()[0])
            for name, table in sorted(tables)
        ]
        return DataClusterState(producers, datasets, self._subscribed())

    def _read_quarantine(self, request: QuarantineRequest) -> list[QuarantinedRecord]:
        table = self._views.tables.get(request.dataset)
        if not isinstance(table, StreamTable):
            known = [name for name, one in self._views.tables.items() if isinstance(one, StreamTable)]
            raise InputError(
                f"there is no stream dataset {request.dataset!r}; there are: {', '.join(sorted(known)) or 'none'}"
            )
        paths = sorted(table.quarantine.paths(), reverse=True)
        parts: list[pa.Table] = []
        for path in paths:  # their names grow with the sequences they have
            parts.append(self._warehouse.read(path))
            if sum(part.num_rows for part in parts) >= request.limit:
                break
        if not parts:
            return []
        found = pa.concat_tables(parts).sort_by([("sequence", "descending")]).slice(0, request.limit)
        times = pc.divide(pc.cast(pc.cast(found["time"], pa.int64()), pa.float64()), 1e6).to_pylist()
        return [
            QuarantinedRecord(
                row["sequence"], moment or 0.0, row["id"] or "", row["reason"] or "",
                (row["payload"] or b"")[:_SHOWN_BYTES].decode(errors="backslashreplace"), row["removed"] or 0,
            )
            for row, moment in zip(found.to_pylist(), times, strict=True)
        ]  # fmt: skip


def _by_name(datasets: list[DatasetSpec]) -> dict[str, DatasetSpec]:
    return {one.name: one for one in datasets}
