"""A site's measurements of one period: its clients' traffic, the figures of its broker, store and workers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.latency_histogram import percentile
from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver, drop
from nearcast.protocol.reports import MOST_CLIENTS, BrokerFigures, ClientReport, SiteReport, WorkerFigures, WorkerTopic
from nearcast.site.agent.aggregation import aggregate
from nearcast.site.servers import fetch_monitoring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from nearcast.coordinates import Coordinate
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.protocol.control import TopicRecord
    from nearcast.protocol.reports import TopicLag
    from nearcast.protocol.worker import TopicWork, WorkerStats
    from nearcast.site.agent.coordinate_agent import CoordinateAgent
    from nearcast.site.agent.worker_processes import WorkerProcesses

__all__ = ["ClientReports", "SiteMeasurement", "broker_figures", "fitting_report", "network_share", "worker_figures"]

_MOST_ARRIVALS = 5_000  # the others are in the next report


class ClientReports:
    """Receives the reports of one site's clients. A client that is silent for `expire_after` seconds is gone.

    on_moved: called when a client says that it has moved, just come, or gone.
    """

    def __init__(self, site: str, connection: Connection, expire_after: float, on_moved: Callable[[], None]) -> None:
        self._site, self._connection, self._expire_after = site, connection, expire_after
        self._on_moved = on_moved
        self._received: dict[str, tuple[float, ClientReport]] = {}

    async def start(self) -> None:
        """Receive from now on."""
        receiver = Receiver("report of a client", ClientReport, "msgpack", self._receive)
        await self._connection.subscribe_raw(subjects.client_reports(self._site, "*"), receiver)

    def current(self) -> dict[str, ClientReport]:
        """The last report of each client that is present."""
        oldest = asyncio.get_running_loop().time() - self._expire_after
        self._received = {name: entry for name, entry in self._received.items() if entry[0] >= oldest}
        return {name: report for name, (_, report) in self._received.items()}

    def _receive(self, subject: str, reply: str, report: ClientReport) -> None:
        if len(self._received) >= MOST_CLIENTS and report.client not in self._received:
            drop("report of a client", subject, f"{MOST_CLIENTS} clients report here already")
            return
        if subject != subjects.client_reports(self._site, report.client):
            drop("report of a client", subject, f"it is about client {report.client}")
            return
        if report.seconds <= 0:  # its last one
            self._received.pop(report.client, None)
        else:
            self._received[report.client] = (asyncio.get_running_loop().time(), report)
        if report.moved or report.seconds <= 0:
            self._on_moved()


class SiteMeasurement:
    """Measures one site; it changes nothing. utilisation: replaces the broker's figures, for tests and maintenance."""

    def __init__(
        self,
        site: SiteSpec,
        connection: Connection,
        clients: ClientReports,
        workers: WorkerProcesses,
        coordinates: CoordinateAgent,
        lags: Callable[[], list[TopicLag]] = list,
        over_limit: Callable[[], dict[str, int]] = dict,
        store_writes: Callable[[], bool] = lambda: True,
    ) -> None:
        self._site, self._connection = site, connection
        self._clients, self._workers, self._coordinates = clients, workers, coordinates
        self._lags, self._over_limit, self._store_writes = lags, over_limit, store_writes
        self.utilisation: dict[str, float] = {}
        self._clock = asyncio.get_running_loop().time
        self._measured_at = self._clock()
        self._varz: dict[str, Any] = {}
        self._work: dict[tuple[str, str], TopicWork] = {}

    async def report(self, revision: int, records: Sequence[TopicRecord], reported_clients: Set[str]) -> SiteReport:
        """The report of the time since the last one. reported_clients: those the coordinator knows of."""
        now = self._clock()
        seconds, self._measured_at = max(now - self._measured_at, 1e-3), now
        clients = self._clients.current()
        coordinate, round_trips = self._coordinates.coordinate, self._coordinates.round_trips
        known = {**self._coordinates.known, self._site.name: coordinate}
        managing = {
            record.spec.name: found for record in records if (found := self._serving(record, known)) is not None
        }
        stats = await self._workers.stats()
        before, self._work = (
            self._work,
            {(worker.worker, name): w for worker in stats for name, w in worker.topics.items()},
        )
        return SiteReport(
            self._site.name,
            revision,
            coordinate,
            await self._broker(seconds),
            await self._store_is_up(),
            [worker_figures(worker, before, seconds) for worker in stats],
            aggregate(
                clients.values(), [record.spec.name for record in records], managing, self._site.name, round_trips
            ),
            sorted(clients.keys() - reported_clients),
            sorted(reported_clients - clients.keys()),
            seconds,
            round_trips,
            self._coordinates.ready,
            lags=self._lags(),
            processors=self._processors(stats),
            over_limit=self._over_limit(),
        )

    def _processors(self, stats: Sequence[WorkerStats]) -> list[str] | None:
        """The patterns that the site's modules can process; none when no worker has told yet."""
        if not self._workers.has_processors:
            return []
        return sorted({pattern for worker in stats for pattern in worker.processors}) if stats else None

    def _serving(self, record: TopicRecord, known: Mapping[str, Coordinate]) -> Coordinate | None:
        """Where a client of this site is served: here if this site manages the topic, else at the first that does."""
        sites = [member.site for member in record.members]
        if self._site.name in sites:
            return known[self._site.name]
        return next((known[site] for site in sites if site in known), None)

    async def _broker(self, seconds: float) -> BrokerFigures:
        varz = await fetch_monitoring(self._site, "varz")
        before, self._varz = self._varz or varz, varz
        mqtt = 0
        if self._site.mqtt_port is not None:
            connections = (await fetch_monitoring(self._site, "connz?limit=65536"))["connections"]
            mqtt = sum(connection.get("type") == "mqtt" for connection in connections)
        figures = broker_figures(varz, before, seconds, mqtt, self._site.bandwidth_mbit)
        return msgspec.structs.replace(figures, **self.utilisation)

    async def _store_is_up(self) -> bool:
        """Whether the site's store is reachable through its broker, and can write; true for a site without one."""
        if self._site.store is None:
            return True
        if not self._store_writes():
            return False
        try:
            await self._connection.jsm(prefix=subjects.store_api(self._site.name), timeout=1).account_info()
        except (NatsError, TimeoutError):
            return False
        return True


def broker_figures(
    varz: Mapping[str, Any], before: Mapping[str, Any], seconds: float, mqtt: int, bandwidth_mbit: float | None
) -> BrokerFigures:
    """From two answers of the broker's `/varz`, some seconds apart."""
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    messages_in, messages_out, bytes_in, bytes_out = ((varz[name] - before[name]) / seconds for name in names)
    return BrokerFigures(
        varz["connections"],
        mqtt,
        messages_in,
        messages_out,
        bytes_in,
        bytes_out,
        cpu=varz["cpu"] / 100 / max(1, varz["cores"]),
        memory=varz["mem"] / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        network=network_share(bytes_in, bytes_out, bandwidth_mbit),
    )


def network_share(bytes_in: float, bytes_out: float, bandwidth_mbit: float | None) -> float:
    """The used share of a link, in the busier direction; 0 when its bandwidth is not known."""
    return 8 * max(bytes_in, bytes_out) / (1e6 * bandwidth_mbit) if bandwidth_mbit else 0.0


def worker_figures(stats: WorkerStats, before: Mapping[tuple[str, str], TopicWork], seconds: float) -> WorkerFigures:
    """What a worker did since the last measurement. before: that of all workers, by worker and topic."""
    topics, busy = [], 0.0
    for name, work in stats.topics.items():
        old = before.get((stats.worker, name))
        if old is None or old.processed > work.processed:  # new here, or the worker was restarted
            continue
        processed, busy_s = work.processed - old.processed, work.busy_s - old.busy_s
        latency = [now - then for now, then in zip(work.latency, old.latency, strict=True)]
        busy += busy_s / seconds
        processing_ms = 1000 * busy_s / processed if processed else 0.0
        p90 = percentile(latency, 0.9)
        topics.append(
            WorkerTopic(name, processed / seconds, processing_ms, work.waiting, p90, work.dead_letters, work.deferred)
        )
    return WorkerFigures(stats.worker, busy, topics, stats.late, stats.deferred, stats.dead_letters, stats.dropped)


def fitting_report(report: SiteReport, largest: int) -> tuple[SiteReport, bytes]:
    """The report and its bytes, at most so many: its broker must take it, or the site would be taken for lost.

    Topics with fewest clients are left out of one that is too large.
    """
    report = msgspec.structs.replace(report, arrived=report.arrived[:_MOST_ARRIVALS], gone=report.gone[:_MOST_ARRIVALS])
    body = msgspec.msgpack.encode(report)
    by_clients = sorted(report.topics, key=lambda topic: (-topic.producers - topic.consumers, topic.topic))
    while len(body) > largest and by_clients:
        by_clients = by_clients[: len(by_clients) // 2]
        report = msgspec.structs.replace(report, topics=sorted(by_clients, key=lambda topic: topic.topic))
        body = msgspec.msgpack.encode(report)
    return report, body
