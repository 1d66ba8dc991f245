"""The coordinator's service: registration of sites and clients, and the requests of the command line."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from nearcast.coordinator.moves import ClientMove, TopicMove
from nearcast.domain.ranges import Name
from nearcast.domain.topic import TopicSpec, check_pattern, overlaps
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.audit import AuditEntry, AuditLog
from nearcast.nats.rpc import CALLER, Endpoint
from nearcast.protocol.control import Assignments, AssignmentsRequest, TopicRecord
from nearcast.protocol.registration import ClientRecord, HomeAnswer, RegisterSite

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.control_loop import ControlLoop
    from nearcast.coordinator.executor.executor import Executor
    from nearcast.coordinator.homes import HomePolicy
    from nearcast.coordinator.monitor import Monitor
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.term import Term

__all__ = ["AddTopicRequest", "CoordinatorApi", "ExecutePlanRequest", "MoveRequest", "NameRequest"]

_log = logging.getLogger(__name__)
_CHANGES = {"topic-add", "topic-rm", "topic-move", "plan-apply", "plan-execute", "client-move"}
_PAGE = 500


class NameRequest(msgspec.Struct, frozen=True):
    """A request about one site, topic, client or channel."""

    name: Annotated[str, msgspec.Meta(max_length=200)] = ""


class MoveRequest(msgspec.Struct, frozen=True):
    """Move a topic to these sites, or a client to one site."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    to: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=1000)]


class ExecutePlanRequest(msgspec.Struct, frozen=True):
    """Execute a plan that was shown. moves: the approved ones, by their places in it; all without it."""

    id: str
    moves: list[int] | None = None


class AddTopicRequest(msgspec.Struct, frozen=True):
    """Register a topic."""

    spec: TopicSpec


class CoordinatorApi:
    """Answers requests for a coordinator that leads."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        monitor: Monitor,
        homes: HomePolicy,
        executor: Executor,
        control_loop: ControlLoop,
        term: Term,
        settings: CoordinatorSettings,
        audit: AuditLog,
    ) -> None:
        self._audit = audit
        self._name, self._registry, self._monitor, self._homes = name, registry, monitor, homes
        self._executor, self._control_loop, self._term, self._settings = executor, control_loop, term, settings

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of the service."""
        handlers: list[tuple[str, str, Any, Callable[[Any], Awaitable[Any]]]] = [
            ("site", "register", RegisterSite, self._register_site),
            ("site", "assignments", AssignmentsRequest, self._assignments),
            ("site", "ls", NameRequest, self._sites),
            ("site", "info", NameRequest, self._site),
            ("client", "register", ClientRecord, self._register_client),
            ("client", "leave", NameRequest, self._client_leaves),
            ("client", "ls", NameRequest, self._clients),
            ("client", "info", NameRequest, self._client),
            ("client", "move", MoveRequest, self._move_client),
            ("channel", "subscriptions", NameRequest, self._subscriptions),
            ("topic", "ls", NameRequest, self._topics),
            ("topic", "info", NameRequest, self._topic),
            ("topic", "add", AddTopicRequest, self._add_topic),
            ("topic", "rm", NameRequest, self._remove_topic),
            ("topic", "move", MoveRequest, self._move_topic),
            ("plan", "show", NameRequest, self._show_plan),
            ("plan", "apply", NameRequest, self._apply_plan),
            ("plan", "execute", ExecutePlanRequest, self._execute_plan),
            ("move", "ls", NameRequest, self._moves),
            ("site", "map", NameRequest, self._site_map),
            ("topic", "figures", NameRequest, self._topic_figures),
            ("coordinator", "status", NameRequest, self._status),
            ("audit", "ls", NameRequest, self._audit_entries),
        ]
        about: dict[str, Callable[[Any], str]] = {
            "site-register": lambda request: str(request.info.name),
            "client-register": _name,
            "client-leave": _name,
        }
        return [
            Endpoint(
                name, subjects.coordinator(noun, verb), request, self._audited(name, handler), scope=about.get(name)
            )
            for noun, verb, request, handler in handlers
            for name in (f"{noun}-{verb}",)
        ]

    def _audited(self, name: str, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The handler; of one that changes something it is noted who asked for what, and what came of it."""
        if name not in _CHANGES:
            return handler

        async def handle(request: Any) -> Any:
            outcome = "done"
            try:
                answer = await handler(request)
                if isinstance(answer, dict) and (why := answer.get("reason") or answer.get("error")):
                    outcome = f"{answer.get('outcome', 'not done')}: {why}"
                return answer
            except NearcastError as error:
                outcome = f"refused: {error}"
                raise
            finally:
                try:
                    await self._audit.note(CALLER.get(), name.replace("-", " "), _subject_of(request), outcome)
                except NearcastError as error:
                    _log.warning("not in the audit log: %s of %s: %s", name, _subject_of(request), error)

        return handle

    async def _audit_entries(self, request: NameRequest) -> list[AuditEntry]:
        return await self._audit.entries()

    async def _register_site(self, request: RegisterSite) -> Assignments:
        await self._registry.put_site(request.info, request.topics)
        self._monitor.expect(request.info.name, asyncio.get_running_loop().time())
        answer = await self._assignments(AssignmentsRequest(-1))
        return msgspec.structs.replace(answer, lease_s=self._monitor.leases.grant(request.info.name))

    async def _assignments(self, request: AssignmentsRequest) -> Assignments:
        records, revision, more = self._registry.changes_after(request.revision, _PAGE)
        return Assignments(self._term.number(), revision, records, more, state=self._registry.identity)

    async def _register_client(self, info: ClientRecord) -> HomeAnswer:
        registry, monitor = self._registry, self._monitor
        alive = self._alive()
        if not alive:
            raise NearcastError("no site is up")
        coordinates = {
            name: report.coordinate for name, report in monitor.reports.items() if report.coordinate is not None
        }
        known = registry.clients.get(info.name)
        home = info.home or (known.home if known is not None else "")
        silent = sorted(alive - monitor.reports.keys())
        if silent and not home and not info.round_trips:  # nothing is known of its distances until sites reported
            raise NearcastError(f"no report yet from {', '.join(silent)}; try again in a moment")
        homes = self._homes.homes(info, alive, coordinates, home)
        record = msgspec.structs.replace(info, home=info.home or homes[0])
        if info.tried and (known is None or known.tried != info.tried):
            _log.warning("client %s could not reach %s; its home is %s", info.name, ", ".join(info.tried), record.home)
        moved = known is not None and known.round_trips != record.round_trips
        await registry.put_client(record)
        if moved:
            self._control_loop.wake()
        return HomeAnswer(self._term.number(), [(name, registry.sites[name].url) for name in homes])

    async def _client_leaves(self, request: NameRequest) -> None:
        await self._registry.remove_client(request.name)

    def _alive(self) -> set[str]:
        lost = self._monitor.lost(asyncio.get_running_loop().time())
        return set(self._registry.sites) - lost

    async def _sites(self, request: NameRequest) -> list[dict[str, Any]]:
        return [self._site_row(name) for name in sorted(self._registry.sites)]

    def _site_row(self, name: str) -> dict[str, Any]:
        info, report = self._registry.site(name), self._monitor.reports.get(name)
        broker = report.broker if report is not None else None
        return {
            "site": name,
            "kind": info.kind,
            "url": info.url,
            "state": "up" if name in self._alive() else "lost",
            "topics": sum(name in record.spec.managed_by for record in self._registry.topics.values()),
            "workers": len(report.workers) if report is not None else 0,
            "clients": sum(client.home == name for client in self._registry.clients.values()),
            "messages_out": round(broker.messages_out, 1) if broker else 0.0,
            "cpu": round(broker.cpu, 3) if broker else 0.0,
        }

    async def _site(self, request: NameRequest) -> dict[str, Any]:
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

    async def _clients(self, request: NameRequest) -> list[dict[str, Any]]:
        return [
            {"client": client.name, "home": client.home, "publishes": len(client.publishes),
             "subscribes": len(client.subscribes), "channels": len(client.channels)}
            for client in self._registry.clients.values()
        ]  # fmt: skip

    async def _client(self, request: NameRequest) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self._registry.client(request.name)))

    async def _subscriptions(self, request: NameRequest) -> list[dict[str, Any]]:
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

    async def _move_client(self, request: MoveRequest) -> dict[str, Any]:
        client = self._registry.client(request.name)
        if len(request.to) > 1:
            raise InputError(f"client {client.name} can have one home; given: {', '.join(request.to)}")
        target = self._registry.site(request.to[0]).name
        move = ClientMove(self._term.next_move_id(), client.name, client.home, target, "request", "requested")
        (finish,) = await self._executor.run([move])
        return {"client": client.name, "to": target, "error": finish.reason}

    def _topic_row(self, record: TopicRecord) -> dict[str, Any]:
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

    async def _topics(self, request: NameRequest) -> list[dict[str, Any]]:
        loop, topics = self._control_loop, self._registry.topics
        return [self._topic_row(topics[name]) | loop.topic_lag(name) for name in sorted(topics)]

    async def _topic(self, request: NameRequest) -> dict[str, Any]:
        record = self._registry.topic(request.name)
        lag = self._control_loop.topic_lag(request.name)
        losses = self._control_loop.topic_losses(request.name)
        return self._topic_row(record) | lag | losses | {"figures": self._control_loop.topic_figures(request.name)}

    async def _add_topic(self, request: AddTopicRequest) -> dict[str, Any]:
        spec = request.spec
        check_pattern(spec.name)
        if spec.name in self._registry.topics:
            raise InputError(f"topic {spec.name!r} is registered already")
        for other in self._registry.topics:
            if overlaps(other, spec.name):
                raise InputError(f"topic {spec.name!r} overlaps {other!r}; a message belongs to one topic")
        for site in (*spec.managed_by, *spec.replicas):
            self._registry.site(site)
        for site in spec.replicas:
            if not self._registry.sites[site].store:
                raise InputError(f"site {site} has no store")
        if not 0 <= spec.quorum <= len(spec.replicas):
            raise InputError(f"quorum is {spec.quorum}; allowed: 0 to {len(spec.replicas)}, the replicas")
        self._refuse_without_processor(spec.name, spec.managed_by)
        await self._registry.add_topic(spec, tuple(WorkerId(site, "worker-0") for site in spec.managed_by))
        return self._topic_row(self._registry.topic(spec.name))

    def _refuse_without_processor(self, topic: str, sites: Iterable[str]) -> None:
        """A site that manages a topic without a processor for it would swallow its publications."""
        for site in sites:
            if not self._monitor.can_process(site, topic):
                patterns = ", ".join(self._monitor.reports[site].processors or ()) or "none"
                raise InputError(
                    f"site {site} has no processor for topic {topic!r}; its modules have: {patterns}. "
                    "Add one to the modules of nearcast.toml, or choose another site"
                )

    async def _remove_topic(self, request: NameRequest) -> None:
        await self._registry.remove_topic(request.name)

    async def _move_topic(self, request: MoveRequest) -> dict[str, Any]:
        record = self._registry.topic(request.name)
        if not record.members:
            raise InputError(f"topic {request.name!r} has no processor, so it runs at no site")
        for site in request.to:
            self._registry.site(site)
        self._refuse_without_processor(request.name, request.to)
        present = dict(record.members)
        after = tuple(WorkerId(site, present.get(site, "worker-0")) for site in request.to)
        if set(after) == set(record.members):
            return {"topic": request.name, "to": request.to, "outcome": "done", "reason": "it runs there already"}
        lost = tuple(name for name in record.members if name.site not in self._alive())
        identity = self._term.next_move_id()
        move = TopicMove(identity, request.name, record.epoch, record.members, after, "request", "requested", lost)
        (finish,) = await self._executor.run([move])
        return {"topic": request.name, "to": request.to, "outcome": finish.outcome, "reason": finish.reason}

    async def _show_plan(self, request: NameRequest) -> dict[str, Any]:
        return self._control_loop.show_plan()

    async def _apply_plan(self, request: NameRequest) -> dict[str, Any]:
        return await self._control_loop.apply_plan()

    async def _execute_plan(self, request: ExecutePlanRequest) -> dict[str, Any]:
        return await self._control_loop.execute_proposal(request.id, request.moves)

    async def _site_map(self, request: NameRequest) -> list[dict[str, Any]]:
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
                    "watermark": self._settings.watermark,
                }
            )
        return rows

    async def _topic_figures(self, request: NameRequest) -> list[dict[str, Any]]:
        """All topics with their latency and its parts."""
        figures, topics = self._control_loop.all_topic_figures(), self._registry.topics
        return [
            self._topic_row(topics[name]) | self._control_loop.topic_lag(name) | figures.get(name, {})
            for name in sorted(topics)
        ]

    async def _moves(self, request: NameRequest) -> list[dict[str, Any]]:
        """The last finished moves, the oldest first."""
        return [done.to_dict() for done in self._executor.history.finished]

    async def _status(self, request: NameRequest) -> dict[str, Any]:
        registry, reports = self._registry, self._monitor.reports
        unready = [f"{site} has not reported" for site in sorted(self._alive() - reports.keys())]
        unready += [f"{site} has not measured all its peers" for site in sorted(reports) if not reports[site].ready]
        return {
            "leader": self._name,
            "term": self._term.number(),
            "automatic": self._settings.automatic,
            "sites": len(registry.sites),
            "lost": sorted(set(registry.sites) - self._alive()),
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
            "last_pass": self._control_loop.last_pass,
        }


def _subject_of(request: Any) -> str:
    """What a request is about, and where it is to go."""
    if isinstance(request, ExecutePlanRequest):
        return request.id
    name = request.spec.name if isinstance(request, AddTopicRequest) else request.name
    return " ".join([name, *(f"to {', '.join(request.to)}" for _ in (0,) if isinstance(request, MoveRequest))])


def _name(request: ClientRecord | NameRequest) -> str:
    return request.name
