"""The coordinator's service: registration of sites and clients, and the requests that change something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from nearcast.coordinator.moves import ClientMove, ReplicaMove, TopicMove
from nearcast.coordinator.queries import NameRequest, Queries
from nearcast.domain.topic import TopicSpec, check_pattern, overlaps
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.audit import AuditLog
from nearcast.nats.rpc import CALLER, Endpoint
from nearcast.protocol.control import Assignments, AssignmentsRequest
from nearcast.protocol.registration import ClientRecord, HomeAnswer, RegisterSite
from nearcast.protocol.reports import MOST_CLIENTS

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.control_loop import ControlLoop
    from nearcast.coordinator.executor.executor import Executor
    from nearcast.coordinator.homes import HomePolicy
    from nearcast.coordinator.monitor import Monitor
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.term import Term

__all__ = ["AddTopicRequest", "CoordinatorApi", "ExecutePlanRequest", "MoveRequest"]

_log = logging.getLogger(__name__)
_CHANGES = {"topic-add", "topic-rm", "topic-move", "topic-replicas", "plan-apply", "plan-execute", "client-move"}
_PAGE = 500
_COPY_WAIT = 5.0  # a request is answered by then, whether the copy is done or not
_ShortText = Annotated[str, msgspec.Meta(max_length=200)]


class MoveRequest(msgspec.Struct, frozen=True):
    """Move a topic, or its replicas, to these sites, or a client to one site."""

    name: _ShortText
    to: Annotated[list[_ShortText], msgspec.Meta(min_length=1, max_length=1000)]  # the registry knows which are sites


class ExecutePlanRequest(msgspec.Struct, frozen=True):
    """Execute a plan that was shown. moves: the approved ones, by their places in it; all without it."""

    id: Annotated[str, msgspec.Meta(max_length=200)]
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
        self._registry, self._monitor, self._homes = registry, monitor, homes
        self._executor, self._control_loop, self._term = executor, control_loop, term
        self._queries = Queries(name, registry, monitor, executor, control_loop, term, settings)

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of the service."""
        registry, loop = self._registry, self._control_loop
        handlers: list[tuple[str, str, Any, Callable[[Any], Awaitable[Any]]]] = [
            ("site", "register", RegisterSite, self._register_site),
            ("site", "assignments", AssignmentsRequest, self._assignments),
            ("site", "ls", NameRequest, self._queries.sites),
            ("site", "info", NameRequest, self._queries.site),
            ("client", "register", ClientRecord, self._register_client),
            ("client", "leave", NameRequest, lambda request: registry.remove_client(request.name)),
            ("client", "ls", NameRequest, self._queries.clients),
            ("client", "info", NameRequest, self._queries.client),
            ("client", "move", MoveRequest, self._move_client),
            ("channel", "subscriptions", NameRequest, self._queries.subscriptions),
            ("topic", "ls", NameRequest, self._queries.topics),
            ("topic", "info", NameRequest, self._queries.topic),
            ("topic", "add", AddTopicRequest, self._add_topic),
            ("topic", "rm", NameRequest, lambda request: registry.remove_topic(request.name)),
            ("topic", "move", MoveRequest, self._move_topic),
            ("topic", "replicas", MoveRequest, self._move_replicas),
            ("plan", "show", NameRequest, self._show_plan),
            ("plan", "apply", NameRequest, lambda _: loop.apply_plan()),
            ("plan", "execute", ExecutePlanRequest, lambda request: loop.execute_proposal(request.id, request.moves)),
            ("move", "ls", NameRequest, self._queries.moves),
            ("site", "map", NameRequest, self._queries.site_map),
            ("topic", "figures", NameRequest, self._queries.topic_figures),
            ("coordinator", "status", NameRequest, self._queries.status),
            ("coordinator", "settings", NameRequest, self._queries.settings),
            ("audit", "ls", NameRequest, lambda _: self._audit.entries()),
        ]
        about: dict[str, Callable[[Any], str]] = {
            "site-register": attrgetter("info.name"),
            "client-register": attrgetter("name"),
            "client-leave": attrgetter("name"),
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
            outcome = "failed"
            try:
                answer = await handler(request)
                outcome = "done"
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
        alive = self._queries.alive()
        if not alive:
            raise NearcastError("no site is up")
        coordinates = {
            name: report.coordinate for name, report in monitor.reports.items() if report.coordinate is not None
        }
        known = registry.clients.get(info.name)
        if known is None and len(registry.clients) >= MOST_CLIENTS:
            raise NearcastError(f"{MOST_CLIENTS} clients are registered, and no more are taken")
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

    async def _move_client(self, request: MoveRequest) -> dict[str, Any]:
        client = self._registry.client(request.name)
        if len(request.to) > 1:
            raise InputError(f"client {client.name} can have one home; given: {', '.join(request.to)}")
        target = self._registry.site(request.to[0]).name
        move = ClientMove(self._term.next_move_id(), client.name, client.home, target, "request", "requested")
        (finish,) = await self._executor.run([move])
        return {"client": client.name, "to": target, "error": finish.reason}

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
        _refuse_repeated("managed_by", spec.managed_by)
        _refuse_repeated("replicas", spec.replicas)  # a store counts once towards the quorum
        self._refuse_without_store(spec.replicas)
        if not 0 <= spec.quorum <= len(spec.replicas):
            raise InputError(f"quorum is {spec.quorum}; allowed: 0 to {len(spec.replicas)}, the replicas")
        self._refuse_without_processor(spec.name, spec.managed_by)
        await self._registry.add_topic(spec, tuple(WorkerId(site, "worker-0") for site in spec.managed_by))
        return self._queries.topic_row(self._registry.topic(spec.name))

    def _refuse_without_store(self, sites: Iterable[str]) -> None:
        for site in sites:
            if not self._registry.site(site).store:
                raise InputError(f"site {site} has no store")

    def _refuse_without_processor(self, topic: str, sites: Iterable[str]) -> None:
        """A site that manages a topic without a processor for it would swallow its publications."""
        for site in sites:
            if not self._monitor.can_process(site, topic):
                patterns = ", ".join(self._monitor.reports[site].processors or ()) or "none"
                raise InputError(
                    f"site {site} has no processor for topic {topic!r}; its modules have: {patterns}. "
                    "Add one to the modules of nearcast.toml, or choose another site"
                )

    async def _move_topic(self, request: MoveRequest) -> dict[str, Any]:
        record = self._registry.topic(request.name)
        if not record.members:
            raise InputError(f"topic {request.name!r} has no processor, so it runs at no site")
        for site in request.to:
            self._registry.site(site)
        _refuse_repeated("to", request.to)
        self._refuse_without_processor(request.name, request.to)
        present = dict(record.members)
        after = tuple(WorkerId(site, present.get(site, "worker-0")) for site in request.to)
        if set(after) == set(record.members):
            return {"topic": request.name, "to": request.to, "outcome": "done", "reason": "it runs there already"}
        lost = tuple(name for name in record.members if name.site not in self._queries.alive())
        identity = self._term.next_move_id()
        move = TopicMove(identity, request.name, record.epoch, record.members, after, "request", "requested", lost)
        (finish,) = await self._executor.run([move])
        return {"topic": request.name, "to": request.to, "outcome": finish.outcome, "reason": finish.reason}

    async def _move_replicas(self, request: MoveRequest) -> dict[str, Any]:
        before, after = self._registry.topic(request.name).spec.replicas, tuple(request.to)
        if not before:
            raise InputError(f"topic {request.name!r} has no replicas: no store keeps it")
        self._refuse_without_store(after)
        _refuse_repeated("to", after)
        if len(after) < len(before):  # an old one may have what no other has, and only a new one copies it
            raise InputError(f"to is {', '.join(after)}; allowed: {len(before)} stores or more, as many as keep it now")
        if away := sorted(set(after) - set(before) - self._queries.alive()):
            raise InputError(f"site {away[0]} is lost; choose another one")
        if request.name in self._executor.copies:
            raise InputError(
                f"the replicas of topic {request.name!r} are being moved; `nearcast plan history` has the end"
            )
        answer = {"topic": request.name, "to": request.to}
        if set(after) == set(before):
            return answer | {"outcome": "done", "reason": "it is kept there already"}
        move = ReplicaMove(self._term.next_move_id(), request.name, before, after, "request", "requested")
        copying = self._executor.copy(move)
        await asyncio.wait({copying}, timeout=_COPY_WAIT)
        if not copying.done() or copying.cancelled():  # the next leader goes on with it
            return answer | {"outcome": "copying", "reason": ""}
        finish = copying.result()
        return answer | {"outcome": finish.outcome, "reason": finish.reason}

    async def _show_plan(self, request: NameRequest) -> dict[str, Any]:
        return self._control_loop.show_plan()


def _refuse_repeated(what: str, sites: Sequence[str]) -> None:
    if len(set(sites)) < len(sites):
        raise InputError(f"{what} is {', '.join(sites)}; allowed: each site once")


def _subject_of(request: Any) -> str:
    """What a request is about, and where it is to go."""
    if isinstance(request, ExecutePlanRequest):
        return request.id
    name = request.spec.name if isinstance(request, AddTopicRequest) else request.name
    return f"{name} to {', '.join(request.to)}" if isinstance(request, MoveRequest) else str(name)
