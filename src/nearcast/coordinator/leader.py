"""What a coordinator has while it leads: built for one term from the state, dropped at its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nearcast.coordinator.api import CoordinatorApi
from nearcast.coordinator.control_loop import ControlLoop
from nearcast.coordinator.executor.executor import Executor
from nearcast.coordinator.homes import HomePolicy
from nearcast.coordinator.monitor import Monitor
from nearcast.coordinator.term import DeposedError, highest_of_most
from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver, drop
from nearcast.nats.rpc import Server
from nearcast.protocol.control import ReportAnswer
from nearcast.protocol.reports import SiteReport

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.goals import Goal
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.term import Term
    from nearcast.nats.audit import AuditLog
    from nearcast.nats.connection import Connection

__all__ = ["Leader"]

_log = logging.getLogger(__name__)


class Leader:
    """Receives reports, answers requests, finishes the moves of its predecessor and runs the control loop."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        registry: Registry,
        term: Term,
        settings: CoordinatorSettings,
        goals: tuple[Goal, ...],
        audit: AuditLog,
    ) -> None:
        self._connection, self._term = connection, term
        self.registry = registry
        self.monitor = Monitor(settings.site_lost_after)
        self.homes = HomePolicy(settings)
        self.executor = Executor(registry, connection, settings, term, self.monitor.leases)
        self.control_loop = ControlLoop(registry, self.monitor, self.homes, self.executor, term, settings, goals)
        self._api = CoordinatorApi(
            name, registry, self.monitor, self.homes, self.executor, self.control_loop, term, settings, audit
        )

    async def run(self, ready: asyncio.Event) -> None:
        """Lead until cancelled, or until a step finds that the term is over. ready: set when requests are answered."""
        for site in self.registry.sites:
            self.monitor.expect(site, asyncio.get_running_loop().time())
        reports = await self._connection.subscribe_raw(
            subjects.REPORTS, Receiver("report of a site", SiteReport, "msgpack", self._handle_report)
        )
        service = Server(self._connection, self._api.endpoints(), "nearcast-coordinator")
        await service.start()
        await self._connection.flush()
        ready.set()
        try:
            await self.executor.resume()
            await self.control_loop.run()
        finally:
            ready.clear()
            await self.executor.stop()
            with contextlib.suppress(Exception):  # the connection may be lost
                await self._connection.unsubscribe_raw(reports)
                await service.stop()

    def copy_candidates(self, site: str) -> list[str]:
        """The sites whose stores may hold a copy of the state that the store of `site` has."""
        now = asyncio.get_running_loop().time()
        away = self.monitor.lost(now) | self.monitor.stores_down.keys() | {site}
        return sorted(name for name, info in self.registry.sites.items() if info.store and name not in away)

    def _shows_a_late_topic(self, report: SiteReport) -> bool:
        topics = self.registry.topics
        return any(
            part.samples
            and (record := topics.get(part.topic)) is not None
            and part.p90_ms > (record.spec.bound_ms or inf)
            for part in report.topics
        )

    def _handle_report(self, subject: str, reply: str, report: SiteReport) -> None:
        """Reports are publications with an optional answer, not requests: a store may keep them, too."""
        if subject != subjects.report(report.site):
            drop("report of a site", subject, f"it is of site {report.site}")
            return
        now = asyncio.get_running_loop().time()
        known = report.site in self.registry.sites
        if known:
            self.monitor.take(report, now)
            current = report.answered_term == self._term.last
            answered = report.answered_clock if current else -inf
            self.monitor.leases.told(report.site, answered, report.witnessed, report.sites)
            if report.urgent or self._shows_a_late_topic(report):
                self.control_loop.wake()
        for client in report.gone:
            record = self.registry.clients.get(client)
            if record is not None and record.home == report.site:  # not if it has moved to another home
                self.monitor.departed.setdefault(client, now)
        for client in report.arrived:
            self.monitor.departed.pop(client, None)
        if reply:
            with contextlib.suppress(DeposedError):
                lease_s = self.monitor.leases.grant(report.site) if known else 0.0
                seen = highest_of_most([one.term for one in self.monitor.reports.values()])
                if seen > self._term.number():  # the state was lost since
                    self._term.exceed(seen)
                registry = self.registry
                leases = self.monitor.leases
                sites = sorted(leases.sites) if known and report.sites != leases.digest else None
                answer = ReportAnswer(
                    self._term.number(), registry.revision, known, lease_s, registry.identity, now, sites
                )
                self._connection.answer(reply, b"", msgspec.msgpack.encode(answer))
