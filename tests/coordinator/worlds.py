"""Small made-up worlds on a line: sites, topics and clients at positions in milliseconds."""

from __future__ import annotations

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinates import Coordinate
from nearcast.coordinator.model import Model
from nearcast.coordinator.model.build_model import build_model
from nearcast.coordinator.model.client_columns import client_columns
from nearcast.coordinator.monitor import Monitor
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord
from nearcast.protocol.registration import ClientRecord, SiteInfo
from nearcast.protocol.reports import (
    BrokerFigures,
    ClientReport,
    ClientTopic,
    SiteReport,
    WorkerFigures,
    WorkerTopic,
    channel_row,
)
from nearcast.site.agent.aggregation import aggregate

SETTINGS = CoordinatorSettings()


def at(x: float) -> Coordinate:
    return Coordinate((x, *[0.0] * 7), 1.0)


class World:
    """Sites at x; each client is (name, x, home, topics published, topics subscribed), publishing 10 messages/s."""

    def __init__(self, **sites: float) -> None:
        self.where = sites
        self.lost: set[str] = set()
        self.topics: dict[str, TopicRecord] = {}
        self.clients: dict[str, ClientRecord] = {}
        self.broker: dict[str, BrokerFigures] = {}
        self.workers: dict[str, list[WorkerFigures]] = {}
        self.stores: set[str] = set()
        self.stores_down: set[str] = set()
        self.processors: dict[str, list[str]] = {}  # of sites that have told
        self.rate = 10.0
        self.settings = SETTINGS

    def topic(
        self,
        name: str,
        *sites: str,
        bound: float | None = None,
        replicas: tuple[str, ...] = (),
        worker: str = "worker-0",
    ) -> None:
        spec = TopicSpec(name, sites, replicas, 0, bound)
        self.topics[name] = TopicRecord(spec, 1, tuple(WorkerId(site, worker) for site in sites))

    def client(
        self, name: str, x: float, home: str, publishes: str = "", subscribes: str = "", channels: str = ""
    ) -> None:
        said = (publishes.split(), subscribes.split(), channels.split())
        self.clients[name] = ClientRecord(name, home, at(x), *said)

    def worker(self, site: str, worker: str, *topics: tuple[str, float, float, float]) -> None:
        """Topics are (name, rate, processing_ms, p90_ms)."""
        rows = [WorkerTopic(name, rate, ms, 0, p90) for name, rate, ms, p90 in topics]
        self.workers.setdefault(site, []).append(
            WorkerFigures(worker, sum(r.rate * r.processing_ms / 1000 for r in rows), rows)
        )

    def monitor(self, now: float = 1000.0) -> Monitor:
        """The reports of all sites."""
        # A lost site reported long ago; a lost store was down then, too, in the report of a site that is alive.
        monitor = Monitor(self.settings.site_lost_after)
        then = now - 1000.0
        for site, x in self.where.items():
            homes = [client for client in self.clients.values() if client.home == site]
            said = [
                ClientReport(
                    client.name, 1.0, client.coordinate,
                    [ClientTopic(t, True, False, int(self.rate), 100) for t in client.publishes]
                    + [ClientTopic(t, False, True, 0, 0, int(self.rate), 100) for t in client.subscribes]
                    + [ClientTopic(channel_row(held.partition(".")[0]), False, True, 0, 0, int(self.rate), 100)
                       for held in client.channels],
                )
                for client in homes
            ]  # fmt: skip
            managing = {
                name: at(self.where[record.spec.managed_by[0]])
                for name, record in self.topics.items() if record.spec.managed_by
            }  # fmt: skip
            report = SiteReport(
                site, 1, at(x), self.broker.get(site, BrokerFigures()), site not in self.stores_down,
                self.workers.get(site, []), aggregate(said, list(self.topics), managing),
                processors=self.processors.get(site),
            )  # fmt: skip
            monitor.take(report, then)
            if site not in self.lost:
                monitor.take(report, now)
        return monitor

    def sites(self) -> dict[str, SiteInfo]:
        return {site: SiteInfo(site, f"nats://{site}", site, 1, store=site in self.stores) for site in self.where}

    def model(self, now: float = 1000.0) -> Model:
        sites = self.sites()
        clients = client_columns(self.clients, tuple(sorted(self.topics)), tuple(sorted(sites)))
        return build_model(sites, self.topics, clients, self.monitor(now), now, self.settings)
