"""What a running data cluster answers: its state, quarantined records, queries that are asked once, and what only Spark
can say about datasets and channels that are to be added, altered, loaded, tried or replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.ad_hoc_query import ad_hoc_sql, run_ad_hoc
from nearcast.cluster.catalog_validation import validate_channel, validate_columns, validate_dataset, with_new_dataset
from nearcast.cluster.channel_trials import (
    checked_datasets,
    explain_channel,
    present_subscriptions,
    replay_messages,
    replayed_results,
    tried_rows,
)
from nearcast.cluster.channels.time_limit import TimeLimit, TimeLimitError
from nearcast.cluster.datasets.backfill import backfill
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.static_table import load_static
from nearcast.cluster.spark_errors import error_line
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, Server
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    ChannelCheck,
    ChannelReplay,
    ChannelTrial,
    ColumnsCheck,
    DataClusterState,
    DatasetLoad,
    DatasetState,
    ProducerState,
    QuarantinedRecord,
    QuarantineRequest,
    ReplayAnswer,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
    from nearcast.nats.catalog import Catalog

__all__ = ["ClusterService"]

_SHOWN_BYTES = 2000
_AT_ONCE = 1  # of what needs Spark; channels need the executors, too
_MOST_WAITING = 4
_TRIAL_SECONDS = 50.0
_ANSWER_BYTES = 500_000  # of results; a broker takes a megabyte
_LONGEST_REQUEST = 120.0
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
        catalog: Catalog,
        connection: BlockingConnection,
    ) -> None:
        self._spark, self._warehouse, self._views = spark, warehouse, views
        self._progress, self._subscribed, self._catalog = progress, subscribed, catalog
        self._connection = connection
        self._server: Server | None = None
        self._turn, self._waiting = asyncio.Semaphore(_AT_ONCE), 0

    def start(self) -> None:
        """Answer from now on."""
        handlers: dict[str, tuple[Any, Callable[..., Any]]] = {
            "state": (None, lambda request: asyncio.to_thread(self._state, request)),
            "quarantine": (QuarantineRequest, lambda request: asyncio.to_thread(self._quarantine, request)),
            "query": (AdHocQuery, partial(self._in_turn, self._query)),
            "check-dataset": (DatasetSpec, partial(self._in_turn, self._check_dataset)),
            "check-columns": (ColumnsCheck, partial(self._in_turn, self._check_columns)),
            "check-channel": (ChannelCheck, partial(self._in_turn, self._check_channel)),
            "explain-channel": (ChannelCheck, partial(self._in_turn, self._explain)),
            "test-channel": (ChannelTrial, partial(self._in_turn, self._limited, self._try)),
            "replay-channel": (ChannelReplay, self._replay),
            "load-dataset": (DatasetLoad, partial(self._in_turn, self._load)),
            "backfill-dataset": (DatasetLoad, partial(self._in_turn, self._backfill)),
        }
        endpoints = [
            Endpoint(f"cluster-{verb}", subjects.data_cluster(verb), request, handler)
            for verb, (request, handler) in handlers.items()
        ]
        self._server = Server(self._connection.connection, endpoints)
        self._connection.call(self._server.start())

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._connection.call(self._server.stop())

    def _query(self, request: AdHocQuery) -> AdHocAnswer:
        sql = ad_hoc_sql(request.query, self._views.tables.keys(), self._views.whole)
        return run_ad_hoc(self._spark, sql, request.limit)

    def _check_dataset(self, spec: DatasetSpec) -> str:
        validate_dataset(self._spark, spec)
        return ""

    def _check_columns(self, request: ColumnsCheck) -> str:
        return validate_columns(request.dataset, request.columns).schema

    def _check_channel(self, request: ChannelCheck) -> str:
        """The dataset whose records are new to the channel."""
        datasets = checked_datasets(request.datasets)
        channel = with_new_dataset(request.channel, datasets)
        validate_channel(self._spark, channel, datasets)
        return channel.new

    def _explain(self, request: ChannelCheck) -> str:
        return explain_channel(self._spark, request.channel, checked_datasets(request.datasets))

    def _try(self, request: ChannelTrial) -> list[dict[str, Any]]:
        return tried_rows(self._spark, request, _ANSWER_BYTES)

    async def _replay(self, request: ChannelReplay) -> ReplayAnswer:
        rows = await present_subscriptions(self._catalog, request.channel.name) if request.values is None else {}
        found = await self._in_turn(self._limited, replayed_results, self._spark, self._warehouse, request, rows)
        if request.publish:
            await asyncio.to_thread(self._connection.publish, replay_messages(found))
        shown, size = [], 0
        for payload in found["payload"].slice(0, request.limit).to_pylist():
            size += len(payload.encode())
            if size > _ANSWER_BYTES:
                break
            shown.append(payload)
        return ReplayAnswer(shown, found.num_rows)

    def _load(self, request: DatasetLoad) -> int:
        return load_static(self._warehouse, check_dataset(request.dataset), request.file)

    def _backfill(self, request: DatasetLoad) -> int:
        return backfill(self._warehouse, check_dataset(request.dataset), request.file)

    async def _in_turn(self, work: Callable[..., T], *arguments: object) -> T:
        """Spark's work beside that of channels, one piece after the other, in a thread.

        Nothing can end a plan that Spark makes: it keeps its turn, and who asked is told after a while.
        """
        if self._waiting >= _MOST_WAITING:
            raise NearcastError(f"{self._waiting} other requests wait; try again in some seconds")
        self._waiting += 1
        try:
            async with asyncio.timeout(_LONGEST_REQUEST):
                await self._turn.acquire()
                running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
                running.add_done_callback(self._finished)
                return await asyncio.shield(running)
        except TimeoutError:
            raise NearcastError(
                f"no answer within {_LONGEST_REQUEST:g} s: the data cluster is busy with this or another request"
            ) from None
        finally:
            self._waiting -= 1

    def _limited(self, work: Callable[..., T], *arguments: object) -> T:
        """Work whose Spark jobs are stopped after a time."""
        try:
            with TimeLimit(self._spark, _TRIAL_SECONDS):
                return work(*arguments)
        except NearcastError:
            raise
        except TimeLimitError:
            raise NearcastError(f"stopped after {_TRIAL_SECONDS:g} s") from None
        except Exception as error:  # Spark's errors have no common kind
            raise InputError(f"the channel fails: {error_line(error)}") from None

    def _finished(self, running: asyncio.Future[T]) -> None:
        self._turn.release()
        if not running.cancelled():
            running.exception()  # who asked may be gone

    def _state(self, request: None) -> DataClusterState:
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

    def _quarantine(self, request: QuarantineRequest) -> list[QuarantinedRecord]:
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
