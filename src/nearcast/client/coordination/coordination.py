"""A client's part in the control plane: it registers with the coordinator, and reports to its home."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.client.coordination.delivery_statistics import DeliveryStatistics
from nearcast.client.coordination.neighbourhood import HomePing, Neighbourhood, is_usual
from nearcast.client.coordination.rehoming_executor import RehomingExecutor
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.coordinator_rpc import CoordinatorError, ask_coordinator, ask_coordinator_until_known
from nearcast.nats.tasks import TaskSet
from nearcast.protocol.control import Rehome
from nearcast.protocol.registration import ClientRecord, HomeAnswer
from nearcast.protocol.reports import ClientReport, ClientTopic, is_channel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearcast.client.coordination.client_coordinate import ClientCoordinate
    from nearcast.client.publishing import Route
    from nearcast.client.session import Sessions
    from nearcast.client.subscription import Subscription
    from nearcast.nats.connection import Connection

__all__ = ["Coordination"]

_log = logging.getLogger(__name__)
_FIRST_ROUNDS = 5
_REGISTER_EVERY = 60  # reports; a client that was silent for long may have been forgotten
_AWAY_PAUSE = 0.2
_PING_EVERY = 1.0


class Coordination:
    """One client's part in the control plane.

    rehoming: its moves. registered: what the coordinator was told last, once it answered. position: latitude and
    longitude, as the application says.
    """

    def __init__(
        self,
        sessions: Sessions,
        subscriptions: set[Subscription],
        routes: Mapping[str, Route],
        coordinate: ClientCoordinate,
        period: float,
    ) -> None:
        self._sessions, self._routes, self._coordinate, self._period = sessions, routes, coordinate, period
        self.rehoming = RehomingExecutor(sessions, subscriptions, lambda: self._neighbourhood.round_trips)
        self.registered: ClientRecord | None = None
        self.position: tuple[float, float] | None = None
        self._registration = subjects.client_request("register", sessions.name)
        self._deliveries: dict[Subscription, DeliveryStatistics] = {}
        self._offered: list[str] = []
        self._tried: list[str] = []  # homes it was given and could not reach, or lost
        self._reported_at = time.monotonic()
        self._since_registered = 0
        self._neighbourhood, self._ping = Neighbourhood(), HomePing()
        self._moved = asyncio.Event()  # the way to the home has changed, or the home: measure and report at once
        self._tasks = TaskSet()
        self.rehoming.on_moved = self._rehomed
        sessions.on_reconnect.append(self._reconnected)

    async def register(self) -> None:
        """Ask for a home through any broker; from then on the client connects there, or to the next nearest sites.

        While no coordinator answers, the given brokers will do: the client asks again with each report.
        """
        session = await self._sessions.open(self._sessions.urls)
        try:
            await self._measure(session.connection, _FIRST_ROUNDS)
            coordinate, round_trips = self._coordinate.coordinate, self._neighbourhood.round_trips
            record = ClientRecord(self._sessions.name, coordinate=coordinate, round_trips=round_trips)
            answer = await ask_coordinator_until_known(session.connection, self._registration, record, HomeAnswer)
        except CoordinatorError as error:
            _log.warning(
                "client %s uses the first broker that answers until it is given a home: %s", self._sessions.name, error
            )
            return
        finally:
            await self._sessions.discard(session)
        self.registered = record
        self._offered = [name for name, _ in answer.homes]
        self._sessions.urls = [url for _, url in answer.homes]

    async def start(self) -> None:
        """Listen for commands and report, through the first session."""
        session = self._sessions.current
        self.rehoming.adopt_home(session.home)
        if session.home in self._offered:
            self._tried = self._offered[: self._offered.index(session.home)]
        await self.rehoming.listen(session)
        await session.connection.flush()
        self._moved.set()  # its site tells the coordinator of it at once
        self._tasks.spawn(self._report_forever(), name=f"reports of {self._sessions.name}")
        self._tasks.spawn(self._ping_forever(), name=f"pings of {self._sessions.name}")

    async def stop(self) -> None:
        """Stop moving and reporting, and deregister."""
        await self.rehoming.stop()
        await self._tasks.cancel()
        with contextlib.suppress(NearcastError, NatsError, TimeoutError):
            name = self._sessions.name
            self._send_report(self._sessions.home, ClientReport(name, 0.0))
            connection = self._sessions.connection()
            await ask_coordinator(connection, subjects.client_request("leave", name), {"name": name}, object, 0.5)

    def observe(self, subscription: Subscription) -> None:
        """Report what a subscription receives, until it is closed."""
        self._deliveries[subscription] = DeliveryStatistics(subscription, self._sessions.clock.now_us)
        subscription.on_close(lambda: self._deliveries.pop(subscription, None))

    def _reconnected(self) -> None:
        self._since_registered = _REGISTER_EVERY  # it may have been away for long
        self._rehomed("")

    def _rehomed(self, old_home: str) -> None:
        """The client has another home: what was measured through the old one is over, and both should know."""
        self._ping.reset()
        if old_home:
            with contextlib.suppress(NearcastError):
                self._send_report(old_home, ClientReport(self._sessions.name, 0.0))
        self._way_changed()

    def _way_changed(self) -> None:
        for statistics in self._deliveries.values():
            statistics.reset()
        self._neighbourhood.reset()
        self._coordinate.moved()
        self._moved.set()

    async def _ping_forever(self) -> None:
        """Notice within about a second that the way to the home has changed."""
        while True:
            await asyncio.sleep(_PING_EVERY)
            for statistics in self._deliveries.values():
                statistics.renew_budget()
            try:
                await self._ping_home()
            except (NatsError, TimeoutError, OSError, AttributeError) as error:
                _log.debug("client %s: no ping: %s", self._sessions.name, error)
            except Exception:
                _log.exception("client %s: no ping", self._sessions.name)

    async def _ping_home(self) -> None:
        connection = self._sessions.connection()
        if self._coordinate.fixed is not None or not connection.is_connected:
            return
        ping = await _ping_ms(connection)
        if self._ping.suspicious(ping):
            pings = [ping, await _ping_ms(connection), await _ping_ms(connection)]
            if connection is self._sessions.connection() and self._ping.confirmed(pings):
                _log.info("client %s: its round trip to %s has changed", self._sessions.name, self._sessions.home)
                self._way_changed()

    async def _measure(self, connection: Connection, rounds: int) -> None:
        if self._coordinate.fixed is None:
            self._coordinate.update(await self._neighbourhood.measure(connection, rounds))
            self._sessions.clock.correct(self._neighbourhood.clock_offset_us)

    async def _report_forever(self) -> None:
        while True:
            if not self._sessions.connection().is_connected:  # what has moved is told when a broker answers again
                await asyncio.sleep(_AWAY_PAUSE)
                continue
            try:
                await self._report_once()
            except (NearcastError, NatsError, TimeoutError, OSError) as error:
                _log.debug("client %s: not reported: %s", self._sessions.name, error)
            except Exception:
                _log.exception("client %s: not reported", self._sessions.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._moved.wait()

    async def _report_once(self) -> None:
        rehoming, home = self.rehoming, self._sessions.home
        if not rehoming.moving and rehoming.home != home:  # its connection found another broker
            self._tried = list(dict.fromkeys((rehoming.home, *self._tried)))
            rehoming.adopt_home(home)
        moved = self._moved.is_set()
        self._moved.clear()
        await self._measure(self._sessions.connection(), rounds=2 if moved else 1)
        session, home = self._sessions.current, self._sessions.home  # it may have moved meanwhile
        report = self._report(moved)
        self._send_report(home, report)
        record = ClientRecord(
            self._sessions.name,
            home,
            self._coordinate.coordinate if self.registered is None else self.registered.coordinate,
            sorted(part.topic for part in report.topics if part.publishes),
            sorted({part.topic for part in report.topics if part.subscribes and not is_channel(part.topic)}),
            session.channels.held,
            [site for site in self._tried if site != home],
            self._told_round_trips(),
        )
        self._since_registered += 1
        if record != self.registered or self._since_registered >= _REGISTER_EVERY:
            await self._register_again(record)

    async def _register_again(self, record: ClientRecord) -> None:
        """Something changed, or the client may be forgotten."""
        record = msgspec.structs.replace(
            record, coordinate=self._coordinate.coordinate, round_trips=self._neighbourhood.round_trips
        )
        connection = self._sessions.connection()
        if self.registered is not None:
            await ask_coordinator(connection, self._registration, record, HomeAnswer)
        else:  # nobody answered when it came: it asks for a home now
            homeless = msgspec.structs.replace(record, home="")
            answer = await ask_coordinator(connection, self._registration, homeless, HomeAnswer)
            home, url = answer.homes[0]
            record = msgspec.structs.replace(record, home=home)
            self._tasks.spawn(self._move_to(Rehome(answer.term, home, url)), name=f"move to {home}")
        self.registered, self._since_registered = record, 0

    async def _move_to(self, command: Rehome) -> None:
        try:
            await self.rehoming.rehome(command)
        except NearcastError as error:
            _log.warning("client %s: not moved to %s: %s", self._sessions.name, command.home, error)

    def _told_round_trips(self) -> dict[str, float]:
        """The round trips as they were told last, unless one of them has really changed."""
        measured, told = self._neighbourhood.round_trips, self.registered.round_trips if self.registered else {}
        same = measured.keys() == told.keys() and all(is_usual(measured[site], told[site]) for site in told)
        return told if same else measured

    def _report(self, moved: bool) -> ClientReport:
        """Since the last one. Counts start again."""
        now = time.monotonic()
        seconds, self._reported_at = max(now - self._reported_at, 1e-3), now
        topics = []
        for topic, route in self._routes.items():
            topics.append(ClientTopic(topic, publishes=True, messages_out=route.sent, bytes_out=route.bytes))
            route.sent = route.bytes = 0
        topics += [statistics.take() for statistics in self._deliveries.values()]
        coordinate, round_trips = self._coordinate.coordinate, self._neighbourhood.round_trips
        return ClientReport(self._sessions.name, seconds, coordinate, topics, round_trips, moved, self.position)

    def _send_report(self, home: str, report: ClientReport) -> None:
        subject = subjects.client_reports(home, self._sessions.name)
        self._sessions.connection().send(subject, b"", msgspec.msgpack.encode(report))


async def _ping_ms(connection: Connection) -> float:
    return 1000 * float(await connection.rtt())
