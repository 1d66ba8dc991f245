"""A site's report, each period: its clients' traffic, its broker's and workers' figures; and following the answer.

While no coordinator answers nothing changes: the site goes on with what it has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.latency_histogram import percentile
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.control import Assignments, AssignmentsRequest, ReportAnswer
from nearcast.protocol.registration import RegisterSite, SiteInfo
from nearcast.protocol.reports import BrokerFigures, ClientReport, SiteReport, WorkerFigures, WorkerTopic
from nearcast.site.aggregation import aggregate
from nearcast.site.hosting import configured_records

if TYPE_CHECKING:
    from nearcast.coordinates import Coordinate
    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.protocol.worker import TopicWork, WorkerStats
    from nearcast.site.hosting import Hosting
    from nearcast.site.place import CoordinateAgent

__all__ = ["Reporting"]

_log = logging.getLogger(__name__)
_LOOK_FOR_IDLE = 30.0  # seconds; idle at two looks, a worker is ended
_FORGET_AFTER = 4  # periods without a word from a client


class Reporting:
    """One site's reports. `utilisation` may replace what the broker says, for tests and planned works."""

    def __init__(
        self, deployment: Deployment, site: SiteSpec, connection: Connection, hosting: Hosting, place: CoordinateAgent
    ) -> None:
        self._site, self._connection, self._hosting, self._place = site, connection, hosting, place
        self._configured = configured_records(deployment)
        self.period = deployment.report_seconds
        self.utilisation: dict[str, float] = {}
        self._clients: dict[str, tuple[float, ClientReport]] = {}
        self._told: set[str] = set()  # clients the coordinator has been told of
        self._before: dict[str, Any] = {}
        self._worked: dict[tuple[str, str], TopicWork] = {}
        self._at = 0.0
        self._idle_rounds = 0
        self._decode = msgspec.msgpack.Decoder(ClientReport).decode
        self._task: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._inbox, self._number = connection.new_inbox(), 0
        self._last = SiteReport(site.name, -1)

    async def register(self, timeout: float) -> Assignments:
        """Make the site known; all records are returned."""
        spec = self._site
        info = SiteInfo(
            spec.name, spec.url, spec.host, spec.port, spec.kind, spec.workers, spec.store is not None, spec.position,
            spec.limits.max_connections,
        )  # fmt: skip
        request = RegisterSite(info, self._configured)
        answer = await call_coordinator(self._connection, "site", "register", request, Assignments, timeout)
        return await self._the_rest(answer, timeout)

    async def _the_rest(self, answer: Assignments, timeout: float) -> Assignments:
        records = list(answer.records)
        while answer.more:
            request = AssignmentsRequest(answer.revision)
            answer = await call_coordinator(self._connection, "site", "assignments", request, Assignments, timeout)
            records += answer.records
        return Assignments(answer.term, answer.revision, records)

    async def start(self) -> None:
        """Listen to clients, and report from now on."""
        await self._connection.subscribe_raw(subjects.client_reports(self._site.name), self._heard)
        await self._connection.subscribe_raw(f"{self._inbox}.*", self._answered)
        self._task = asyncio.create_task(self._report_on(), name=f"reports of {self._site.name}")

    async def stop(self) -> None:
        """Stop reporting."""
        await cancel_and_wait(self._task, self._following)

    def _heard(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            report = self._decode(payload)
        except msgspec.DecodeError as error:
            _log.warning("a client's report is unreadable: %s", error)
            return
        if report.seconds <= 0:  # its last word
            self._clients.pop(report.client, None)
        else:
            self._clients[report.client] = (asyncio.get_running_loop().time(), report)

    async def _report_on(self) -> None:
        self._at = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self.period)
            try:
                await self._report_once()
            except (NearcastError, NatsError, TimeoutError, OSError) as error:
                _log.debug("%s: no report: %s", self._site.name, error)

    async def _report_once(self) -> None:
        """Nobody waits for the answer: it comes when it comes, and none while no coordinator leads."""
        self._last = await self._report()
        self._number += 1
        body = msgspec.msgpack.encode(self._last)
        self._connection.send(subjects.report(self._site.name), b"", body, f"{self._inbox}.{self._number}")

    def _answered(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        if not payload or subject != f"{self._inbox}.{self._number}":  # nobody is there, or it is late
            return
        answer = msgspec.msgpack.decode(payload, type=ReportAnswer)
        self._told = (self._told | set(self._last.arrived)) - set(self._last.gone)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow(answer), name=f"{self._site.name} follows")

    async def _follow(self, answer: ReportAnswer) -> None:
        """Do what the registry says, beside the reports: a worker may take long to start, and a site not be silent."""
        try:
            if not answer.registered:
                await self._hosting.follow(await self.register(5.0))
            elif answer.revision > self._hosting.revision or self._hosting.revision < 0:
                request = AssignmentsRequest(self._hosting.revision)
                first = await call_coordinator(self._connection, "site", "assignments", request, Assignments)
                await self._hosting.follow(await self._the_rest(first, 5.0))
            else:
                await self._hosting.reconcile()
            self._idle_rounds += 1
            if self._idle_rounds * self.period >= _LOOK_FOR_IDLE:
                self._idle_rounds = 0
                await self._hosting.retire_idle_workers()
        except (NearcastError, NatsError, TimeoutError, OSError) as error:  # it may have stopped leading in between
            _log.debug("%s: the registry cannot be followed now: %s", self._site.name, error)
        except Exception:
            _log.exception("%s: the registry cannot be followed", self._site.name)

    async def _report(self) -> SiteReport:
        now = asyncio.get_running_loop().time()
        seconds, self._at = max(now - self._at, 1e-3), now
        for client, (heard, _) in list(self._clients.items()):
            if now - heard > _FORGET_AFTER * self.period:
                del self._clients[client]
        present = set(self._clients)
        records = self._hosting.records
        managing = {record.spec.name: where for record in records if (where := self._where(record.members)) is not None}
        self._hosting.settle = max(1.0, 4 * max(self._place.round_trips.values(), default=0.0) / 1000)
        stats = await self._hosting.stats()
        return SiteReport(
            self._site.name,
            self._hosting.revision,
            self._place.coordinate,
            await self._broker(seconds),
            await self._store_answers(),
            [self._worker(worker, seconds) for worker in stats],
            aggregate(
                [report for _, report in self._clients.values()], [record.spec.name for record in records], managing
            ),
            sorted(present - self._told),
            sorted(self._told - present),
        )

    def _where(self, members: tuple[WorkerId, ...]) -> Coordinate | None:
        """The managing site that a client here would be served by: this one, or else the first."""
        sites = [member.site for member in members]
        if self._site.name in sites:
            return self._place.coordinate
        return next((self._place.known[site] for site in sites if site in self._place.known), None)

    def _worker(self, stats: WorkerStats, seconds: float) -> WorkerFigures:
        topics, busy = [], 0.0
        for name, work in stats.topics.items():
            before = self._worked.get((stats.worker, name))
            self._worked[stats.worker, name] = work
            if before is None or before.processed > work.processed:  # new here, or the worker was restarted
                continue
            processed, busy_s = work.processed - before.processed, work.busy_s - before.busy_s
            latency = [now - then for now, then in zip(work.latency, before.latency, strict=True)]
            busy += busy_s / seconds
            topics.append(
                WorkerTopic(
                    name,
                    processed / seconds,
                    1000 * busy_s / processed if processed else 0.0,
                    work.waiting,
                    percentile(latency, 0.9),
                )
            )
        return WorkerFigures(stats.worker, busy, topics)

    async def _broker(self, seconds: float) -> BrokerFigures:
        address = f"http://{self._site.host}:{self._site.monitor_port}"
        varz = await asyncio.to_thread(_fetch, f"{address}/varz")
        before, self._before = self._before or varz, varz
        rate = {
            name: (varz[name] - before[name]) / seconds for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
        }
        mqtt = 0
        if self._site.mqtt_port is not None:
            connections = (await asyncio.to_thread(_fetch, f"{address}/connz?limit=65536"))["connections"]
            mqtt = sum(connection.get("type") == "mqtt" for connection in connections)
        share = {
            "cpu": varz["cpu"] / 100 / max(1, varz["cores"]),
            "memory": varz["mem"] / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
            "network": network_share(rate["in_bytes"], rate["out_bytes"], self._site.bandwidth_mbit),
        } | self.utilisation
        return BrokerFigures(
            varz["connections"],
            mqtt,
            rate["in_msgs"],
            rate["out_msgs"],
            rate["in_bytes"],
            rate["out_bytes"],
            share["cpu"],
            share["memory"],
            share["network"],
        )

    async def _store_answers(self) -> bool:
        """Whether the site's store is reachable through its broker; true for a site that should have none."""
        if self._site.store is None:
            return True
        try:
            await self._connection.jsm(prefix=subjects.store_api(self._site.name), timeout=1).account_info()
        except (NatsError, TimeoutError):
            return False
        return True


def network_share(bytes_in: float, bytes_out: float, bandwidth_mbit: float | None) -> float:
    """How much of a link is used, in the busier direction; 0 when nobody said what it carries."""
    return 8 * max(bytes_in, bytes_out) / (1e6 * bandwidth_mbit) if bandwidth_mbit else 0.0


def _fetch(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=2) as answer:
        return json.load(answer)
