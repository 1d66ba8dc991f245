"""What the coordinator answers from its registry and monitor: lists, details, figures. Nothing here changes them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from nearcast.protocol.reports import is_channel

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.control_loop import ControlLoop
    from nearcast.coordinator.executor.executor import Executor
    from nearcast.coordinator.monitor import Monitor
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.term import Term
    from nearcast.protocol.control import TopicRecord
    from nearcast.protocol.reports import SiteReport

__all__ = ["NameRequest", "Queries"]

_COUNTS = ("late", "deferred", "dead_letters", "dropped")


class NameRequest(msgspec.Struct, frozen=True):
    """A request about one site, topic, client or channel."""

    name: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Queries:
    """Answers what only asks. Each public coroutine is an endpoint of the service."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        monitor: Monitor,
        executor: Executor,
        control_loop: ControlLoop,
        term: Term,
        settings: CoordinatorSettings,
    ) -> None:
        self._name, self._registry, self._monitor, self._executor = name, registry, monitor, executor
        self._control_loop, self._term, self._settings = control_loop, term, settings

    def alive(self) -> set[str]:
        """The sites whose agents report."""
        lost = self._monitor.lost(asyncio.get_running_loop().time())
        return set(self._registry.sites) - lost

    async def sites(self, request: NameRequest) -> list[dict[str, Any]]:
        """All sites."""
        return [self._site_row(name) for name in sorted(self._registry.sites)]

    def _site_row(self, name: str) -> dict[str, Any]:
        info, report = self._registry.site(name), self._monitor.reports.get(name)
        broker = report.broker if report is not None else None
        return {
            "site": name,
            "kind": info.kind,
            "url": info.url,
            "state": "up" if name in self.alive() else "lost",
            "store_state": self._store_state(name),
            "topics": sum(name in record.spec.managed_by for record in self._registry.topics.values()),
            "workers": len(report.workers) if report is not None else 0,
            "clients": sum(client.home == name for client in self._registry.clients.values()),
            "messages_out": round(broker.messages_out, 1) if broker else 0.0,
            "cpu": round(broker.cpu, 3) if broker else 0.0,
        }

    def _store_state(self, site: str) -> str:
        """Of the last report, while the site reports; a store that is down does not answer, or cannot write."""
        if not self._registry.site(site).store:
            return "none"
        if site not in self._monitor.reports or site not in self.alive():
            return "unknown"
        return "up" if self._monitor.reports[site].store else "down"

    async def site(self, request: NameRequest) -> dict[str, Any]:
        """One site, with its last report."""
        row = self._site_row(request.name)
        report = self._monitor.reports.get(request.name)
        if report is not None:
            row |= msgspec.to_builtins(report, builtin_types=(bytes,))
            row["topics"] = [
                {"topic": topic.topic, "producers": topic.producers, "consumers": topic.consumers,
                 "messages_out": topic.messages_out, "messages_in": topic.messages_in}
                for topic in report.topics
            ]  # fmt: skip
            row["workers"] = msgspec.to_builtins([msgspec.structs.asdict(worker) for worker in report.workers])
        return row

    async def clients(self, request: NameRequest) -> list[dict[str, Any]]:
        """All clients."""
        return [
            {"client": client.name, "home": client.home, "publishes": len(client.publishes),
             "subscribes": len(client.subscribes), "channels": len(client.channels)}
            for client in self._registry.clients.values()
        ]  # fmt: skip

    async def client(self, request: NameRequest) -> dict[str, Any]:
        """One client."""
        return dict(msgspec.to_builtins(self._registry.client(request.name)))

    async def subscriptions(self, request: NameRequest) -> list[dict[str, Any]]:
        """Channel subscriptions; clients with equal parameters share one."""
        homes: dict[str, Counter[str]] = defaultdict(Counter)
        for client in self._registry.clients.values():
            for held in client.channels:
                homes[held][client.home] += 1
        return [
            {"channel": name.partition(".")[0], "key": name.partition(".")[2], "clients": found.total(),
             "sites": sorted(found)}
            for name, found in sorted(homes.items())
            if request.name in ("", name.partition(".")[0])
        ]  # fmt: skip

    def topic_row(self, record: TopicRecord) -> dict[str, Any]:
        """What is configured for a topic, and what keeps it from being processed."""
        spec = record.spec
        lacking = [site for site in spec.managed_by if not self._monitor.can_process(site, spec.name)]
        return {
            "topic": spec.name,
            "members": [str(name) for name in record.members],
            "replicas": list(spec.replicas),
            "quorum": spec.quorum,
            "bound_ms": spec.bound_ms,
            "epoch": record.epoch,
            "problem": f"no processor at {', '.join(lacking)}" if lacking else "",
        }

    def _topic_row_with_lag(self, name: str) -> dict[str, Any]:
        """Also how many publications wait to be processed, and for how long."""
        lag = self._monitor.lag(name)
        return self.topic_row(self._registry.topic(name)) | {
            "waiting": lag.waiting,
            "oldest_s": round(lag.oldest_s, 1),
        }

    async def topics(self, request: NameRequest) -> list[dict[str, Any]]:
        """All topics."""
        return [self._topic_row_with_lag(name) for name in sorted(self._registry.topics)]

    async def topic(self, request: NameRequest) -> dict[str, Any]:
        """One topic, with its figures and how many publications its workers gave up or left to the stores for later."""
        row = self._topic_row_with_lag(request.name)
        dead_letters, deferred = self._monitor.given_up(request.name)
        figures = self._control_loop.topic_figures(request.name).get(request.name, {})
        return row | {"dead_letters": dead_letters, "deferred": deferred, "figures": figures}

    async def site_map(self, request: NameRequest) -> list[dict[str, Any]]:
        """What is drawn on a map: sites with positions, load and limits, and the measured round trips between them."""
        rows = []
        for name in sorted(self._registry.sites):
            info, report = self._registry.sites[name], self._monitor.reports.get(name)
            broker = msgspec.structs.asdict(report.broker) if report is not None else {}
            rows.append(
                {
                    **self._site_row(name),
                    "position": info.position,
                    "store": info.store,
                    "store_up": report.store if report is not None else False,
                    "round_trips_ms": report.round_trips if report is not None else {},
                    "memory": broker.get("memory", 0.0),
                    "network": broker.get("network", 0.0),
                    "busiest_worker": max((worker.busy for worker in report.workers), default=0.0) if report else 0.0,
                    **(_panel_figures(report) if report is not None else {}),
                    "watermark": self._settings.watermark,
                }
            )
        return rows

    async def topic_figures(self, request: NameRequest) -> list[dict[str, Any]]:
        """All topics with their latency and its parts."""
        figures = self._control_loop.topic_figures()
        return [self._topic_row_with_lag(name) | figures.get(name, {}) for name in sorted(self._registry.topics)]

    async def moves(self, request: NameRequest) -> list[dict[str, Any]]:
        """The last finished moves, the oldest first."""
        return [done.to_dict() for done in self._executor.history.finished]

    async def settings(self, request: NameRequest) -> dict[str, Any]:
        """What the leader was started with."""
        return dict(msgspec.to_builtins(self._settings))

    async def status(self, request: NameRequest) -> dict[str, Any]:
        """The leader, and what keeps the deployment from being ready."""
        registry, reports = self._registry, self._monitor.reports
        unready = [f"{site} has not reported" for site in sorted(self.alive() - reports.keys())]
        unready += [f"{site} has not measured all its peers" for site in sorted(reports) if not reports[site].ready]
        return {
            "leader": self._name,
            "term": self._term.number(),
            "automatic": self._settings.automatic,
            "sites": len(registry.sites),
            "lost": sorted(set(registry.sites) - self.alive()),
            "stores_down": sorted(self._monitor.stores_down),
            "ready": not unready,
            "not_ready": unready,
            "topics": len(registry.topics),
            "clients": len(registry.clients),
            "moves_under_way": len(registry.moves),
            "bad_entries": [f"{key}: {reason}" for key, reason in sorted(registry.bad_entries.items())],
            "over_limit": [
                f"{user} at {site}: {count} connections closed"
                for site in sorted(reports)
                for user, count in sorted(reports[site].over_limit.items())
            ],
            "passes": self._control_loop.passes,
            "pass_seconds": round(self._control_loop.pass_seconds, 3),
            "anomalies": dict(Counter(anomaly.kind for anomaly in self._control_loop.anomalies)),
            "moves_ended": _ended_moves(self._executor.history.counts),
            "last_pass": self._control_loop.last_pass,
        }


def _ended_moves(counts: Counter[tuple[str, str, bool]]) -> dict[str, int]:
    """By kind and outcome, such as `topic, done`."""
    found: Counter[str] = Counter()
    for (kind, _, done), number in counts.items():
        found[f"{kind}, {'done' if done else 'failed'}"] += number
    return dict(found)


def _panel_figures(report: SiteReport) -> dict[str, Any]:
    """What the console draws over time. Counts are those of the workers that run now."""
    workers = report.workers
    return {
        "connections": report.broker.connections,
        "bytes_out": round(report.broker.bytes_out, 1),
        "workers_busy": {worker.worker: round(worker.busy, 3) for worker in workers},
        "processed_per_s": round(sum(topic.rate for worker in workers for topic in worker.topics), 2),
        "channels_p90_ms": {
            topic.topic.partition(" ")[2]: round(topic.p90_ms, 1)
            for topic in report.topics
            if is_channel(topic.topic) and topic.samples
        },
        **{name: sum(getattr(worker, name) for worker in workers) for name in _COUNTS},
    }
