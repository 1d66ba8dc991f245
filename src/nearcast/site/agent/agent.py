"""A site's agent: all its services, on one connection to the site's broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearcast.metrics import LoopCollector, MetricsServer
from nearcast.nats import subjects
from nearcast.nats.coordinator_rpc import CoordinatorError
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.tasks import retry
from nearcast.protocol.control import TermClaim
from nearcast.protocol.registration import SiteStanding
from nearcast.site.agent.assignments import configured_records
from nearcast.site.agent.client_services import ClientServices
from nearcast.site.agent.coordinate_agent import CoordinateAgent
from nearcast.site.agent.measurement import ClientReports, SiteMeasurement
from nearcast.site.agent.site_loop import SiteLoop
from nearcast.site.agent.site_metrics import site_metrics
from nearcast.site.agent.term_check import TermCheck
from nearcast.site.agent.topic_host import TopicHost
from nearcast.site.agent.worker_processes import WorkerProcesses
from nearcast.site.servers import fetch_monitoring
from nearcast.site.site_lease import SiteLeaseMachine, lease_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.protocol.control import Assignments

__all__ = ["Agent"]

_REGISTER_LIMIT = 5.0
_SILENT_PERIODS = 4  # after which a client is gone


class Agent:
    """Builds the services of one site and starts and stops them in order. folder: for logs, spools and assignments.

    worker_credentials: the file that workers connect with. over_limit: users of whom connections were closed, and how
    many. store_writes: whether its store takes messages, as far as is known. metrics: whether it serves the site's.
    """

    def __init__(
        self,
        deployment: Deployment,
        site: SiteSpec,
        connection: Connection,
        folder: Path,
        search_path: Sequence[str],
        worker_credentials: str = "",
        over_limit: Callable[[], dict[str, int]] = dict,
        store_writes: Callable[[], bool] = lambda: True,
        *,
        metrics: bool = True,
    ) -> None:
        configured, period = configured_records(deployment), deployment.report_seconds
        self.coordinates = CoordinateAgent(site, deployment.peers(site.name), connection)
        self.client_services = ClientServices(deployment, site, connection, self.coordinates, folder)
        self.lease = SiteLeaseMachine(lease_clock())
        self.workers = WorkerProcesses(
            site,
            connection,
            folder,
            deployment.modules,
            search_path,
            self.lease,
            worker_credentials,
            deployment.processor_limits,
        )
        terms = TermCheck(connection, _state_stores(deployment))
        self.topic_host = TopicHost(
            site.name,
            connection,
            self.workers,
            configured,
            folder,
            self.coordinates.settle,
            self.client_services.apply_records,
            terms,
        )
        self._client_reports = ClientReports(
            site.name, connection, _SILENT_PERIODS * period, lambda: self._loop.report_soon()
        )
        self.measurement = SiteMeasurement(
            site,
            connection,
            self._client_reports,
            self.workers,
            self.coordinates,
            self.client_services.lags,
            over_limit,
            store_writes,
        )
        claims = Endpoint("term", subjects.term_claim(site.name), TermClaim, terms.answer)
        self._discovery = Server(
            connection, [Endpoint("discover", subjects.SITE_DISCOVERY, None, self._describe), claims]
        )
        self.connection = connection
        self._sites = [peer.name for peer in deployment.sites]
        self._site = site
        self._serves_metrics = metrics
        self._metrics: MetricsServer | None = None
        self._loop = SiteLoop(site, connection, period, configured, self.topic_host, self.measurement, self.lease)

    async def start(self) -> None:
        """Answer clients, start the workers, then report."""
        await self.client_services.start()
        assignments = None
        if self.topic_host.has_saved_assignments:  # what was assigned here before may have gone elsewhere
            self.lease.require()
            self.topic_host.load_saved()
            assignments = await self._registered()
        await self.topic_host.start(assignments)
        await self._discovery.start()
        await self.coordinates.start()
        await self._client_reports.start()
        await self._loop.start()
        if self._serves_metrics:
            collector = LoopCollector(self._collect)
            self._metrics = MetricsServer(collector, self._site.metrics_host, self._site.metrics_port)

    async def stop(self) -> None:
        """Stop in reverse order."""
        if self._metrics is not None:
            await self._metrics.stop_from_loop()
        for part in (self._loop, self.coordinates, self._discovery, self.topic_host, self.client_services):
            await part.stop()

    async def _collect(self) -> list[Metric]:
        try:
            varz: dict[str, Any] = await fetch_monitoring(self._site, "varz")
        except OSError:  # it is being restarted
            varz = {}
        topics = [record.spec for record in self.topic_host.records]
        loop = self._loop
        return site_metrics(
            loop.last_report, loop.delivered(), loop.coordinated, varz, await self.workers.stats(), topics
        )

    async def _describe(self, request: None) -> SiteStanding:
        return SiteStanding(self._site.name, self._sites, self.topic_host.term)

    async def _registered(self) -> Assignments | None:
        """The registry's assignments, if a coordinator answers soon; the broker may still be joining the others."""
        try:
            assignments = await retry(lambda: self._loop.register(1.0), within=_REGISTER_LIMIT, on=CoordinatorError)
        except CoordinatorError:
            return None
        self._loop.resume_lease(assignments.lease_s)
        return assignments


def _state_stores(deployment: Deployment) -> list[str]:
    """The sites that may hold the coordinators' state: the cloud first."""
    stores = [site for site in deployment.sites if site.store is not None]
    return [site.name for site in sorted(stores, key=lambda site: site.kind != "cloud")]
