"""The data cluster as a whole: follows the registry and keeps the right queries running. One driver runs it."""

from __future__ import annotations

import logging
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.cluster.check import check_query
from nearcast.cluster.fetch import link_to
from nearcast.cluster.lease import DriverLease
from nearcast.cluster.matching import Matcher, RunningChannel
from nearcast.cluster.producers import Clockwork, Ingest, Views
from nearcast.cluster.progress import Progress
from nearcast.cluster.records import first_line
from nearcast.cluster.results import ResultLog
from nearcast.cluster.short import ShortBatches
from nearcast.cluster.source import NatsSource
from nearcast.cluster.subscribers import Subscribers
from nearcast.cluster.tables import StaticTable, StreamTable
from nearcast.cluster.tail import Tail
from nearcast.cluster.warehouse import Warehouse
from nearcast.cluster.workload import workload_tables, write_tables
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.catalog import CHANNELS, DATASETS, SUBSCRIPTIONS, Catalog
from nearcast.nats.streams import StreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.domain.cluster import ClusterSpec
    from nearcast.domain.deployment import Deployment

__all__ = ["Engine"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 0.2
_TIDY_EVERY = 30.0
_START_AGAIN_AFTER = 2.0
_WORKLOAD_SECONDS = 3600.0


class Engine:
    """Use as a context manager, and call `step` again and again; `run` does that until it is told to stop."""

    def __init__(
        self, spark: SparkSession, spec: ClusterSpec, deployment: Deployment, lease: DriverLease | None = None
    ) -> None:
        self._spark, self._spec, self._deployment = spark, spec, deployment
        self._cloud = deployment.cloud()
        self._lease = lease or DriverLease(self._cloud)
        self._prefix = subjects.store_api(self._cloud.name)
        self._link = link_to([self._cloud.url])
        self._warehouse = Warehouse(spec.warehouse)
        self._checkpoints = spec.checkpoints or self._warehouse.uri(self._warehouse.folder("checkpoints"))
        self._registry = Catalog(self._link.connection, self._cloud.name)
        self._link.call(self._registry.prepare())
        self._link.call(self._registry.keep_reports())
        self._tails = {name: Tail(self._link, name, self._prefix) for name in (DATASETS, CHANNELS, SUBSCRIPTIONS)}
        self._subscribers = Subscribers()
        self._datasets: dict[str, DatasetSpec] = {}
        self._specs: dict[str, ChannelSpec] = {}
        self._running: dict[str, RunningChannel] = {}
        self._refused: dict[str, ChannelSpec] = {}
        self._ingests: dict[str, Ingest] = {}
        self._queries: dict[str, Any] = {}
        self._to_start: list[DatasetSpec] = []
        self._clocks: dict[str, Clockwork] = {}
        self._again: dict[str, float] = {}
        self._tidied = time.monotonic()
        self._tidying: threading.Thread | None = None
        self._analysed = time.monotonic()
        self.progress = Progress()
        self._matcher = Matcher(spark)
        self._views = Views(spark)
        spark.dataSource.register(NatsSource)

    def __enter__(self) -> Engine:
        self._lease.take()
        self.step()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for clock in self._clocks.values():
            clock.stop()
        for query in self._queries.values():
            query.stop()
        self._lease.release()

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop. A registry that cannot be reached for a while changes nothing that runs."""
        while not stop.wait(_LOOK_EVERY):
            try:
                self.step()
            except StreamError as error:
                _log.warning("the registry cannot be read just now: %s", error)

    def step(self) -> None:
        """Look once: what changed in the registry, which queries stopped, what is to be tidied."""
        self._lease.check()
        changed = self._follow_datasets()
        changed |= self._follow_channels()
        touched = self._subscribers.apply(self._tails[SUBSCRIPTIONS].changes(), time.monotonic())
        if changed:
            touched |= self._arrange_channels()
        for name in touched & self._running.keys():
            self._matcher.load(self._running[name], self._subscribers.rows(name))
        # Only now: a record that came before the channels and their subscribers were known would be lost to them.
        while self._to_start:
            self._start_query(self._to_start.pop())
        for clock in self._clocks.values():
            clock.start()
        self._watch_queries()
        if time.monotonic() - self._tidied > _TIDY_EVERY and not (self._tidying and self._tidying.is_alive()):
            self._tidied = time.monotonic()
            self._tidying = threading.Thread(target=self._tidy, name="tidy", daemon=True)
            self._tidying.start()

    def position(self, dataset: str) -> int:
        """The last sequence of a dataset that is kept."""
        return int(getattr(self._views.tables.get(dataset), "position", 0))

    def subscribed(self) -> dict[str, int]:
        """The rows of each channel's subscription table."""
        return {name: len(channel.rows) for name, channel in self._running.items()}

    def analyse(self) -> None:
        """Write the workload tables of the last hour, for the planners."""
        held = self._subscribers.held()
        write_tables(
            self._warehouse,
            workload_tables(
                self._spark,
                self._deployment,
                self._warehouse,
                held,
                _WORKLOAD_SECONDS,
                coordinated=self._link.call(self._registry.knows_clients()),
            ),
        )

    def _follow_datasets(self) -> bool:
        changes = self._tails[DATASETS].changes()
        for name, value in changes:
            before = self._datasets.get(name)
            spec = None if value is None else msgspec.json.decode(value, type=DatasetSpec)
            if spec == before:
                continue
            if before is not None and (spec is None or spec.created != before.created):
                self._stop_dataset(name)
            if spec is not None:
                self._datasets[name] = spec
                self._start_dataset(spec)
        return bool(changes)

    def _start_dataset(self, spec: DatasetSpec) -> None:
        if spec.static:
            before = self._views.tables.get(spec.name)
            self._views.tables[spec.name] = StaticTable(self._spark, spec, self._warehouse)
            if isinstance(before, StaticTable):
                before.close()
            return
        table = StreamTable(self._spark, spec, self._warehouse)
        self._views.tables[spec.name] = table
        results = ResultLog(self._warehouse, self._link, f"dataset-{spec.name}-{spec.created}", self._prefix)
        self._ingests[spec.name] = Ingest(table, self._views, self._matcher, results, self.progress)
        self._to_start.append(spec)

    def _start_query(self, spec: DatasetSpec) -> None:
        from pyspark.errors import PySparkException

        servers, domain, stream = self._where(spec)
        options = {"servers": servers, "stream": stream, "valueSchema": spec.schema}
        options |= {"maxRowsPerBatch": str(self._spec.batch_rows)}
        options |= {"startingSequence": str(self.position(spec.name) + 1)}
        if domain:
            options["domain"] = domain
        if spec.source.startswith("pub."):
            options["subject"] = spec.source
        checkpoint = f"{self._checkpoints}/{spec.name}-{spec.created}"
        ingest = self._ingests[spec.name]
        ingest.begin_again(ShortBatches(options, checkpoint))
        frame = self._spark.readStream.format("nats").options(**options).load()
        writer = frame.writeStream.queryName(f"dataset {spec.name}").foreachBatch(ingest)
        writer = writer.option("checkpointLocation", checkpoint)
        try:
            self._queries[spec.name] = writer.start()
        except PySparkException as error:
            raise NearcastError(f"dataset {spec.name}: {first_line(error)}") from error

    def _where(self, spec: DatasetSpec) -> tuple[str, str, str]:
        """Servers, domain and stream that hold a dataset's records: at the cloud, or where its topic is kept."""
        if spec.source.startswith("fed."):
            return self._cloud.store_url, "", subjects.feed_stream(spec.name)
        topic = self._deployment.topic(spec.source.removeprefix("pub."))
        if not topic.replicas:
            raise NearcastError(f"dataset {spec.name}: topic {topic.name} is kept nowhere; give it `replicas`")
        if self._cloud.name in topic.replicas:
            return self._cloud.store_url, "", subjects.stream_name(topic.name)
        return self._cloud.url, topic.replicas[0], subjects.stream_name(topic.name)

    def _stop_dataset(self, name: str) -> None:
        self._to_start = [spec for spec in self._to_start if spec.name != name]
        if query := self._queries.pop(name, None):
            query.stop()
        self._ingests.pop(name, None)
        self._views.tables.pop(name, None)
        self._datasets.pop(name, None)
        self.progress.forget(name)

    def _follow_channels(self) -> bool:
        changes = self._tails[CHANNELS].changes()
        for name, value in changes:
            self._specs.pop(name, None)
            if value is not None:
                self._specs[name] = msgspec.json.decode(value, type=ChannelSpec)
        return bool(changes)

    def _arrange_channels(self) -> set[str]:
        """Run the channels that the registry has, and no others; returns those that are new."""
        for name in [name for name, channel in self._running.items() if self._specs.get(name) != channel.checked.spec]:
            del self._running[name]
            if clock := self._clocks.pop(name, None):
                clock.stop()
                self.progress.forget(name)
        fresh = set()
        for name, spec in self._specs.items():
            if name in self._running or self._refused.get(name) == spec:
                continue
            try:
                checked = check_query(self._spark, spec, self._datasets)
            except NearcastError as error:
                # It was checked when it was added; a dataset must have changed since.
                self._refused[name] = spec
                _log.error("%s", error)
                self.progress.note(name, problem=str(error).splitlines()[0])
                continue
            self._running[name] = channel = RunningChannel(checked)
            fresh.add(name)
            if not spec.continuous:
                results = ResultLog(self._warehouse, self._link, f"channel-{name}-{spec.created}", self._prefix)
                self._clocks[name] = Clockwork(
                    channel, self._views, self._matcher, results, self._warehouse, self.progress, self._failed
                )
        for name, ingest in self._ingests.items():
            ingest.channels = [
                c for c in self._running.values() if c.checked.spec.continuous and c.checked.spec.new == name
            ]
        return fresh

    def _watch_queries(self) -> None:
        """Start again what stopped, after a while, and say why it did."""
        now = time.monotonic()
        for name, query in list(self._queries.items()):
            if query.isActive:
                continue
            if name not in self._again:
                problem = _reason(query.exception())
                self._failed(name, problem)
                self._again[name] = now + _START_AGAIN_AFTER
            elif now > self._again[name]:
                del self._again[name]
                _log.info("dataset %s: starting again", name)
                self._start_query(self._datasets[name])

    def _failed(self, name: str, problem: str) -> None:
        _log.error("%s stopped: %s", name, problem)
        self.progress.note(name, problem=problem)

    def _tidy(self) -> None:
        try:
            for name, table in list(self._views.tables.items()):
                if isinstance(table, StreamTable):
                    table.tidy(datetime.now(UTC))
                    servers, domain, stream = self._where(table.spec)
                    prefix = subjects.store_api(domain) if domain else "$JS.API"
                    self.progress.note(name, lag=link_to([servers]).state(stream, prefix).last - table.position)
            oldest = (datetime.now(UTC) - timedelta(seconds=self._spec.keep_results)).strftime("%Y-%m-%d")
            producers: list[Ingest | Clockwork] = [*self._ingests.values(), *self._clocks.values()]
            for producer in producers:
                producer.results.tidy(oldest)
            if self._spec.analyse_every and time.monotonic() - self._analysed > self._spec.analyse_every:
                self._analysed = time.monotonic()
                self.analyse()
        except NearcastError as error:
            _log.warning("not tidied: %s", error)


def _reason(error: Any) -> str:
    """The one line of a failed query that tells a user something."""
    text = str(error or "it ended")
    known = re.search(r"(?:StreamError|StorageError|InputError|ConnectionLostError): ([^\n]*)", text)
    if known:
        return known[1]
    if re.search(r"offsets?.*(malformed|corrupt|empty)|Incomplete log file|UnexpectedEnd|JsonParse|log file", text):
        return "its checkpoint is damaged: remove its folder below `checkpoints`; it goes on where its records end"
    if "No space left on device" in text:
        return "the disk is full"
    lines = [line for line in text.splitlines() if line.strip()]
    return first_line(Exception(lines[0])) if lines else text
