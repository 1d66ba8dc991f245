"""The site's control loop: register, report each period, and run what the registry assigns.

While no coordinator answers nothing changes: the site continues with what it has, and asks the other sites whether
one answers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from math import inf
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.lease_times import digest_of_sites
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver
from nearcast.nats.coordinator_rpc import ask_coordinator, call_coordinator
from nearcast.nats.rpc import Endpoint, Server, call
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.control import Assignments, AssignmentsRequest, ReportAnswer, Witness
from nearcast.protocol.registration import RegisterSite, SiteInfo
from nearcast.protocol.reports import SiteReport
from nearcast.site.agent.measurement import SiteMeasurement, fitting_report
from nearcast.site.site_lease import lease_clock

if TYPE_CHECKING:
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.protocol.control import TopicRecord
    from nearcast.protocol.reports import TopicReport
    from nearcast.site.agent.topic_host import TopicHost
    from nearcast.site.site_lease import SiteLeaseMachine

__all__ = ["SiteLoop"]

_log = logging.getLogger(__name__)
_STOP_IDLE_PERIOD = 30.0  # a worker that is idle at two of these checks is stopped
_REQUEST_LIMIT = 5.0
_UNANSWERED_PERIOD = 1.0
_SILENT_PERIODS = 3  # without an answer: no coordinator leads
_MEASURED_FOR = 60.0  # seconds for which a measured latency is shown
_GATHER = 0.1  # an urgent report waits this long, so that there are at most ten a second
_TRANSIENT = (NearcastError, NatsError, TimeoutError, OSError)


class SiteLoop:
    """One site's loop. configured: the records of its configuration, which the registry takes over when it has none."""

    def __init__(
        self,
        site: SiteSpec,
        connection: Connection,
        period: float,
        configured: list[TopicRecord],
        topic_host: TopicHost,
        measurement: SiteMeasurement,
        lease: SiteLeaseMachine,
    ) -> None:
        self._site, self._connection, self._period, self._configured = site, connection, period, configured
        self._topic_host, self._measurement, self._lease = topic_host, measurement, lease
        self._sent = self._registered = -inf  # when the last report and the last registration were sent
        self._answered, self._answered_at = False, -inf  # the last report; when one was
        self._reported_clients: set[str] = set()
        self._periods = 0
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._inbox, self._number = connection.new_inbox(), 0
        self._answer = ReportAnswer(0, -1, False)  # the last one
        self._sites: list[str] = []  # all that have registered
        self._asking: asyncio.Task[None] | None = None
        self._witnessing = Server(
            connection, [Endpoint("witness", subjects.witness(site.name), Witness, self._witness)]
        )
        self.last_report = SiteReport(site.name, -1)
        self._delivered: dict[str, tuple[float, TopicReport]] = {}  # the last with samples, and when

    async def register(self, timeout: float = _REQUEST_LIMIT) -> Assignments:
        """Register the site; all records are returned."""
        spec = self._site
        info = SiteInfo(
            spec.name, spec.url, spec.host, spec.port, spec.kind, spec.workers, spec.store is not None, spec.position,
            spec.limits.max_connections,
        )  # fmt: skip
        host = self._topic_host
        request = RegisterSite(info, host.records if host.revision >= 0 else self._configured)
        self._registered = lease_clock()
        subject = subjects.site_registration(spec.name)
        answer = await ask_coordinator(self._connection, subject, request, Assignments, timeout)
        return await self._remaining_pages(answer, timeout)

    def resume_lease(self, seconds: float) -> None:
        """The records of the last registration are followed from now on."""
        self._lease.resumed(self._registered, seconds)

    async def start(self) -> None:
        """Report from now on."""
        receiver = Receiver("answer to a report", ReportAnswer, "msgpack", self._receive_answer, empty=True)
        await self._connection.subscribe_raw(f"{self._inbox}.*", receiver)
        await self._witnessing.start()
        self._task = asyncio.create_task(self._run(), name=f"{self._site.name}: reports")

    async def stop(self) -> None:
        """Stop reporting."""
        await cancel_and_wait(self._task, self._reconciling, self._asking)
        await self._witnessing.stop()

    @property
    def coordinated(self) -> bool:
        """Whether a coordinator answered one of the last reports."""
        return lease_clock() - self._answered_at < _SILENT_PERIODS * self._period

    def delivered(self) -> list[TopicReport]:
        """What clients measured recently, by topic: a quiet period does not hide what was measured before it."""
        oldest = lease_clock() - _MEASURED_FOR
        return [report for at, report in self._delivered.values() if at > oldest]

    def report_soon(self) -> None:
        """A client has moved: do not wait for the period."""
        self._urgent.set()

    async def _run(self) -> None:
        while True:
            # A site that needs a lease must reach a new leader soon.
            waits = self._answered or not self._lease.required
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period if waits else min(self._period, _UNANSWERED_PERIOD)):
                    await self._urgent.wait()
                    await asyncio.sleep(_GATHER)  # others that move together tell within moments
            urgent = self._urgent.is_set()
            self._urgent.clear()
            try:
                await self._send_report(urgent)
            except _TRANSIENT as error:
                _log.debug("%s: report not sent: %s", self._site.name, error)
            except Exception:  # an odd report of a client must not end those of the site
                _log.exception("%s: report not sent", self._site.name)
            idle = self._asking is None or self._asking.done()
            if idle and self._lease.is_valid(lease_clock()) and self._lease.is_unanswered(lease_clock()):
                self._asking = asyncio.create_task(self._ask_witnesses(), name=f"{self._site.name}: witnesses")

    async def _send_report(self, urgent: bool) -> None:
        """The answer is not awaited: there is none while no coordinator leads, and a site must not fall silent."""
        host = self._topic_host
        report = await self._measurement.report(host.revision, host.records, self._reported_clients)
        report = msgspec.structs.replace(
            report,
            urgent=urgent,
            term=host.term,
            answered_term=self._answer.term,
            answered_clock=self._answer.clock,
            witnessed=self._lease.witnessed(lease_clock()),
            sites=digest_of_sites(self._sites),
        )
        self._number += 1
        self._sent, self._answered = lease_clock(), False
        self.last_report, body = fitting_report(report, self._connection.max_payload)
        oldest, topics = self._sent - _MEASURED_FOR, self.last_report.topics
        self._delivered = {topic: found for topic, found in self._delivered.items() if found[0] > oldest}
        self._delivered |= {one.topic: (self._sent, one) for one in topics if one.samples}
        self._connection.send(subjects.report(self._site.name), b"", body, f"{self._inbox}.{self._number}")

    def _receive_answer(self, subject: str, reply: str, answer: ReportAnswer) -> None:
        if subject != f"{self._inbox}.{self._number}":  # it is late
            return
        self._answered, self._answered_at, self._answer = True, lease_clock(), answer
        self._sites = self._sites if answer.sites is None else answer.sites
        self._lease.renewed(self._sent, answer.lease_s, lease_clock())
        self._reported_clients = (self._reported_clients | set(self.last_report.arrived)) - set(self.last_report.gone)
        if self._reconciling is None or self._reconciling.done():
            self._reconciling = asyncio.create_task(
                self._reconcile(answer, self._sent), name=f"{self._site.name}: reconcile"
            )

    async def _witness(self, request: Witness) -> Witness:
        return Witness(request.site, self._lease.witness(request.site, lease_clock()))

    async def _ask_witnesses(self) -> None:
        """No coordinator may lead: the lease is extended if a majority of the sites has no answers, either."""
        name, asked = self._site.name, lease_clock()
        others = [site for site in self._sites if site != name]

        async def ask(site: str) -> bool:
            subject = subjects.witness(site)
            answer = await call(self._connection, subject, Witness(name), Witness, timeout=_UNANSWERED_PERIOD)
            return answer.witnessed

        answers = await asyncio.gather(*map(ask, others), return_exceptions=True)
        witnesses = [site for site, witnessed in zip(others, answers, strict=True) if witnessed is True]
        if self._lease.extended(asked, [name, *witnesses], self._sites, lease_clock()):
            await self._topic_host.tell_lease()

    async def _reconcile(self, answer: ReportAnswer, sent: float) -> None:
        """Run what the registry assigns, concurrently with the reports: a worker may take long to start."""
        host = self._topic_host
        try:
            lease_s = answer.lease_s
            if not answer.registered or answer.state != host.state:
                assignments = await self.register()
                sent, lease_s = self._registered, assignments.lease_s
                released = await host.apply(assignments)
            elif answer.revision > host.revision or host.revision < 0:
                released = await host.apply(await self._remaining_pages(await self._page(host.revision)))
            else:
                released = await host.reconcile()
            self._lease.require()
            if released and not self._lease.is_valid(lease_clock()):
                self._lease.resumed(sent, lease_s)
                await host.tell_lease()
            await host.ensure_spare_worker()
            self._periods += 1
            if self._periods * self._period >= _STOP_IDLE_PERIOD:
                self._periods = 0
                await host.stop_idle_workers()
        except _TRANSIENT as error:  # the coordinator may have stopped leading meanwhile
            _log.debug("%s: not reconciled: %s", self._site.name, error)
        except Exception:
            _log.exception("%s: not reconciled", self._site.name)

    async def _page(self, revision: int, timeout: float = _REQUEST_LIMIT) -> Assignments:
        request = AssignmentsRequest(revision)
        return await call_coordinator(self._connection, "site", "assignments", request, Assignments, timeout)

    async def _remaining_pages(self, answer: Assignments, timeout: float = _REQUEST_LIMIT) -> Assignments:
        records, lease_s = list(answer.records), answer.lease_s
        while answer.more:
            answer = await self._page(answer.revision, timeout)
            records += answer.records
        return Assignments(answer.term, answer.revision, records, lease_s=lease_s, state=answer.state)
