"""A coordinator: it waits for the lease, and while it holds it, it listens, plans and moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from typing import TYPE_CHECKING

import msgspec

from nearcast.coordinator.api import Api
from nearcast.coordinator.executor.shell import DeposedError, Executor
from nearcast.coordinator.goals import GOALS, Goal
from nearcast.coordinator.homes import HomePolicy
from nearcast.coordinator.monitor import Monitor
from nearcast.coordinator.planning import Planning
from nearcast.coordinator.registry import Registry
from nearcast.coordinator.state import CoordinatorState
from nearcast.nats import subjects
from nearcast.nats.kv import Bucket, BucketError, ConflictError
from nearcast.nats.lease import LeaseKeeper, LeaseMachine
from nearcast.nats.rpc import Server
from nearcast.nats.tasks import cancel_and_wait, gather_or_cancel
from nearcast.protocol.control import ReportAnswer
from nearcast.protocol.reports import SiteReport

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.nats.connection import Connection

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)


class Coordinator:
    """One of several; at most one of them acts. `site` is the one whose store keeps their state."""

    def __init__(
        self, connection: Connection, site: str, settings: CoordinatorSettings, goals: tuple[Goal, ...] = GOALS
    ) -> None:
        self.name = f"coordinator-{secrets.token_hex(4)}"
        self.connection, self._site, self.settings, self.goals = connection, site, settings, goals
        self.lease = LeaseMachine(self.name, settings.lease)
        self.monitor = Monitor(settings.site_lost_after)
        self.leading = asyncio.Event()  # set while this one answers and plans
        self._led = asyncio.Event()
        self._numbers = itertools.count(1)
        self._silent: dict[str, float] = {}  # clients whose site says they are gone, since when

    async def run(self) -> None:
        """Take part until cancelled."""
        # Two views of the state: the lease is kept up whatever the registry is doing.
        bucket = await Bucket(self.connection, self._site, subjects.STATE_BUCKET).create(within=30.0)
        keeper = LeaseKeeper(bucket, self.lease)
        self.registry = Registry(await CoordinatorState.open(self.connection, self._site))
        # No TaskGroup: it cancels a task once, and the writer of the lease may take that for its own time limit.
        await gather_or_cancel(keeper.keep(self._lease_changed), self._lead_whenever_elected())

    async def _lead_whenever_elected(self) -> None:
        while True:
            await self._led.wait()
            leading = asyncio.create_task(self._lead(), name="lead")
            lost = asyncio.create_task(self._until_deposed(), name="until deposed")
            try:
                await asyncio.wait((leading, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_wait(leading, lost)
                self.leading.clear()
            problem = leading.exception() if leading.done() and not leading.cancelled() else None
            if isinstance(problem, (DeposedError, BucketError, ConflictError)):
                _log.warning("%s stops leading: %s", self.name, problem)
                await asyncio.sleep(self.settings.lease / 8)
            elif problem is not None:
                raise problem

    def term(self) -> int:
        """The term to act in."""
        if not self.lease.leads(asyncio.get_running_loop().time()):
            raise DeposedError(f"{self.name} does not lead any more")
        return self.lease.term

    def next_move_id(self) -> str:
        """An id no other move has or had."""
        return f"{self.lease.term}-{next(self._numbers)}"

    def _lease_changed(self, leads: bool) -> None:
        _log.info("%s %s (term %d)", self.name, "leads" if leads else "does not lead", self.lease.term)
        if leads:
            self._led.set()
        else:
            self._led.clear()

    async def _until_deposed(self) -> None:
        while self._led.is_set():  # noqa: ASYNC110 - an event for the opposite would say the same twice
            await asyncio.sleep(self.settings.lease / 16)

    async def _lead(self) -> None:
        clock = asyncio.get_running_loop().time
        self.monitor = Monitor(self.settings.site_lost_after)
        await self.registry.load()
        for site in self.registry.sites:
            self.monitor.expect(site, clock())
        self.executor = Executor(self.registry, self.connection, self.settings, self.term)
        self.planning = Planning(self)
        self.homes = HomePolicy(self.settings)
        reports = await self.connection.subscribe_raw(subjects.REPORTS, self._reported)
        service = Server(self.connection, Api(self).endpoints(), "nearcast-coordinator")
        await service.start()
        await self.connection.flush()
        self.leading.set()
        try:
            await self.executor.resume()
            while True:
                await self._expire_clients()
                try:
                    await self.planning.step()
                except (DeposedError, BucketError, ConflictError):
                    raise
                except Exception:
                    _log.exception("a pass failed; the next one looks again")
                await asyncio.sleep(self.settings.period)
        finally:
            await self.executor.stop()
            with contextlib.suppress(Exception):  # the connection may be the reason why it ends
                await self.connection.unsubscribe_raw(reports)
                await service.stop()

    def _reported(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            report = msgspec.msgpack.decode(payload, type=SiteReport)
        except msgspec.DecodeError as error:
            _log.warning("report on %s is unreadable: %s", subject, error)
            return
        now = asyncio.get_running_loop().time()
        known = report.site in self.registry.sites
        if known:
            self.monitor.take(report, now)
        for client in report.gone:
            record = self.registry.clients.get(client)
            if record is not None and record.home == report.site:  # not when it has moved on
                self._silent.setdefault(client, now)
        for client in report.arrived:
            self._silent.pop(client, None)
        if reply and self.lease.leads(now):
            answer = ReportAnswer(self.lease.term, self.registry.revision, known)
            self.connection.send(reply, b"", msgspec.msgpack.encode(answer))

    async def _expire_clients(self) -> None:
        """Clients that came back at another site registered there; the others are forgotten."""
        now = asyncio.get_running_loop().time()
        for client, since in list(self._silent.items()):
            if now - since > self.settings.client_lost_after:
                del self._silent[client]
                await self.registry.remove_client(client)
