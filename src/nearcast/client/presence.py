"""A client known to the coordinator: it registers, reports to its home, and moves to another one when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.client import rehoming as rh
from nearcast.client.quorum import Acknowledgements
from nearcast.domain.latency_histogram import bucket
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, ConnectionLostError, open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.rpc import Endpoint, Server, StaleTermError
from nearcast.nats.stamp import parse_stamp, stamp_of
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.control import Rehome
from nearcast.protocol.registration import ClientRecord, HomeAnswer
from nearcast.protocol.reports import ClientReport, ClientTopic, channel_row, is_channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.client.client import Client
    from nearcast.client.subscription import Subscription
    from nearcast.client.whereabouts import Whereabouts

__all__ = ["Presence"]

_log = logging.getLogger(__name__)
_FIRST_ROUNDS = 5
_SETTLE = 0.5  # until other sites have heard of new subscriptions; more when round trips are long
_DRAIN_LIMIT = 30.0
_REGISTER_EVERY = 60  # reports; a client that was silent for long may have been forgotten


class Presence:
    """One client's dealings with the control plane."""

    def __init__(self, client: Client, whereabouts: Whereabouts, period: float) -> None:
        self._client, self._whereabouts, self._period = client, whereabouts, period
        self._machine = rh.Rehoming("")
        self._told: ClientRecord | None = None
        self._offered: list[str] = []
        self._tried: list[str] = []  # homes it was given and could not reach, or lost
        self._sent: dict[str, tuple[int, int]] = {}
        self._received: dict[int, int] = {}
        self._sampled: dict[int, list[int]] = {}  # by subscription: samples and their bytes
        self._latency: dict[int, Counter[int]] = {}
        self._at = time.monotonic()
        self._since_registered = 0
        self._reporter: asyncio.Task[None] | None = None
        self._moving: set[asyncio.Task[None]] = set()
        self._spare: dict[Connection, Acknowledgements | None] = {}  # open, but not yet or no longer the client's own
        self._servers: dict[Connection, Server] = {}
        self._leaving = False
        self.moves = 0

    async def register(self, urls: Sequence[str]) -> list[str]:
        """Ask for a home through any broker; the addresses to try are returned, best first.

        While no coordinator answers, these brokers will do: the client asks again with each report.
        """
        client = self._client
        connection = await open_connection(urls, name=client.name, timeout=client._timeout)
        try:
            await self._whereabouts.measure(connection, _FIRST_ROUNDS)
            told = ClientRecord(client.name, coordinate=self._whereabouts.coordinate)
            answer = await call_coordinator(connection, "client", "register", told, HomeAnswer)
        except CoordinatorError as error:
            _log.warning(
                "client %s is at the first broker that answers until it is given a home: %s", client.name, error
            )
            return list(urls)
        finally:
            await connection.close()
        self._told = told
        self._offered = [name for name, _ in answer.homes]
        return [url for _, url in answer.homes]

    async def start(self, connection: Connection) -> None:
        """Listen for commands and report, on the connection to the home."""
        home = self._machine.home = connection.server_name
        if home in self._offered:
            self._tried = self._offered[: self._offered.index(home)]
        await self._listen(connection)
        await connection.flush()
        self._reporter = asyncio.create_task(self._report_on(), name=f"reports of {self._client.name}")

    def came_back(self) -> None:
        """The connection was lost for a while, perhaps for long."""
        self._since_registered = _REGISTER_EVERY

    async def stop(self) -> None:
        """Say goodbye."""
        self._leaving = True
        await cancel_and_wait(self._reporter, *self._moving)
        for connection in list(self._spare):  # a move was under way
            await self._discard(connection)
        for server in self._servers.values():
            await server.stop()
        with contextlib.suppress(NearcastError, NatsError, TimeoutError):
            client = self._client
            last = msgspec.msgpack.encode(ClientReport(client.name, 0.0))
            client._live().send(subjects.client_reports(client.home), b"", last)
            await call_coordinator(client._live(), "client", "leave", {"name": client.name}, object, 0.5)

    def sample(self, subscription: Subscription, payload: bytes, headers: bytes) -> None:
        """One message in 16 of a subscription: its size, and how long it took."""
        key = id(subscription)
        sizes = self._sampled.setdefault(key, [0, 0])
        sizes[0] += 1
        sizes[1] += len(payload)
        published_us = parse_stamp(stamp_of(headers)).published_us
        if published_us:
            latency_ms = (time.time_ns() // 1000 - published_us) / 1000
            self._latency.setdefault(key, Counter())[bucket(latency_ms)] += 1

    async def _listen(self, connection: Connection) -> None:
        endpoint = Endpoint("rehome", subjects.client_command(self._client.name), Rehome, self._rehome)
        self._servers[connection] = Server(connection, [endpoint])
        await self._servers[connection].start()

    async def _report_on(self) -> None:
        while True:
            try:
                await self._report_once()
            except (NearcastError, NatsError, TimeoutError, OSError) as error:
                _log.debug("client %s: not reported: %s", self._client.name, error)
            await asyncio.sleep(self._period)

    async def _report_once(self) -> None:
        client, connection = self._client, self._client._live()
        if not connection.is_connected:
            return
        if not self._moving and self._machine.home != client.home:  # it has found another broker by itself
            self._tried = list(dict.fromkeys((self._machine.home, *self._tried)))
            self._machine.home = client.home
        tried = [site for site in self._tried if site != client.home]
        await self._whereabouts.measure(connection)
        report = self._report()
        connection.send(subjects.client_reports(client.home), b"", msgspec.msgpack.encode(report))
        info = ClientRecord(
            client.name,
            client.home,
            self._whereabouts.coordinate if self._told is None else self._told.coordinate,
            sorted(part.topic for part in report.topics if part.publishes),
            sorted({part.topic for part in report.topics if part.subscribes and not is_channel(part.topic)}),
            client._channels.held if client._channels is not None else [],
            tried,
        )
        self._since_registered += 1
        if info != self._told or self._since_registered >= _REGISTER_EVERY:  # something changed, or it may be forgotten
            info = msgspec.structs.replace(info, coordinate=self._whereabouts.coordinate)
            asked = info if self._told is not None else msgspec.structs.replace(info, home="")
            answer = await call_coordinator(connection, "client", "register", asked, HomeAnswer)
            if self._told is None:  # nobody answered when it came
                info = msgspec.structs.replace(info, home=answer.homes[0][0])
                self._begin_move(rh.Commanded(answer.term, *answer.homes[0]), None)
            self._told, self._since_registered = info, 0

    def _report(self) -> ClientReport:
        client, now = self._client, time.monotonic()
        seconds, self._at = max(now - self._at, 1e-3), now
        parts = []
        for topic, route in client._routes.items():
            sent, size = self._sent.get(topic, (0, 0))
            if route.sent < sent:
                sent = size = 0
            parts.append(ClientTopic(topic, True, False, route.sent - sent, route.bytes - size))
            self._sent[topic] = (route.sent, route.bytes)
        for subscription in client._subscriptions:
            if subscription._closed or not subscription._begun:
                continue
            key = id(subscription)
            received = subscription.received - self._received.get(key, 0)
            self._received[key] = subscription.received
            samples, size = self._sampled.pop(key, [0, 0])
            parts.append(
                ClientTopic(
                    channel_row(subscription.topic) if subscription.of_channel else subscription.topic,
                    False,
                    True,
                    messages_in=received,
                    bytes_in=received * size // samples if samples else 0,
                    latency=dict(self._latency.pop(key, {})),
                )
            )
        return ClientReport(client.name, seconds, self._whereabouts.coordinate, parts)

    async def _rehome(self, command: Rehome) -> None:
        """Answers as soon as publications leave by the new connection; the old one is drained afterwards."""
        if self._leaving:
            raise NearcastError(f"client {self._client.name} is closing")
        answered: asyncio.Future[rh.Answer] = asyncio.get_running_loop().create_future()
        self._begin_move(rh.Commanded(command.term, command.home, command.url), answered)
        answer = await answered
        if answer.term > command.term:
            raise StaleTermError(answer.error, answer.term)
        if answer.error:
            raise NearcastError(answer.error)

    def _begin_move(self, event: rh.Commanded, answered: asyncio.Future[rh.Answer] | None) -> None:
        task = asyncio.create_task(self._move(event, answered))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def _move(self, event: rh.Event, answered: asyncio.Future[rh.Answer] | None) -> None:
        """Do what the machine says until it says nothing more."""
        old, new = self._client._live(), None
        events: list[rh.Event] = [event]
        while events:
            for instruction in self._machine.handle(events.pop(0)):
                match instruction:
                    case rh.Answer():
                        if answered is not None and not answered.done():
                            answered.set_result(instruction)
                    case rh.Open(url):
                        new, outcome = await self._open(url)
                        events.append(outcome)
                    case rh.Subscribe():
                        assert new is not None
                        events.append(await self._subscribe(old, new))
                    case rh.Switch():
                        assert new is not None
                        await self._switch(old, new)
                    case rh.Wait():
                        await asyncio.sleep(max(_SETTLE, 4 * await _round_trip(old)))
                        events.append(rh.Settled())
                    case rh.Close("new"):
                        assert new is not None
                        await self._discard(new)
                    case rh.Close("old"):
                        await self._drain(old)
                        await self._discard(old)

    async def _open(self, url: str) -> tuple[Connection | None, rh.Event]:
        client = self._client
        try:
            connection = await open_connection(
                [url, *client._urls], name=client.name, timeout=client._timeout, on_reconnect=client._came_back
            )
        except ConnectionLostError as error:
            return None, rh.Lost(str(error))
        if connection.server_name != self._machine.target:
            await connection.close()
            return None, rh.Lost("does not answer")
        self._spare[connection] = None
        return connection, rh.Opened()

    async def _subscribe(self, old: Connection, new: Connection) -> rh.Event:
        try:
            for subscription in self._client._subscriptions:
                await subscription.follow(old, new)
            await self._listen(new)
            acknowledgements = self._spare[new] = Acknowledgements(new)
            await acknowledgements.start()
            await new.flush(timeout=10)
        except Exception as error:  # whatever it is, the machine must hear of it, or the client moves never again
            return rh.Lost(str(error) or type(error).__name__)
        return rh.Subscribed()

    async def _switch(self, old: Connection, new: Connection) -> None:
        """From here on publications leave by the new connection; what waits for stores is still answered on the old."""
        client = self._client
        with contextlib.suppress(NatsError, TimeoutError):
            await old.flush(timeout=2)  # in order: the old broker has all before the new one gets the next
        self._spare[old], client._acknowledgements = client._acknowledgements, self._spare.pop(new)
        client._connection = new
        client._settle_in(new)
        if client._channels is not None:
            with contextlib.suppress(NearcastError):  # renewed in a while
                await client._channels.move(new)
        self.moves += 1

    async def _drain(self, old: Connection) -> None:
        client, acknowledgements = self._client, self._spare[old]
        try:
            async with asyncio.timeout(_DRAIN_LIMIT):
                if acknowledgements is not None:
                    await acknowledgements.drain()
                for subscription in client._subscriptions:
                    await subscription.past_is_read()
                new = client._live()
                if late := [subscription for subscription in client._subscriptions if subscription.lags(old, new)]:
                    for subscription in late:
                        await subscription.follow(old, new)
                    await new.flush(timeout=10)
                    await asyncio.sleep(_SETTLE)
                for subscription in client._subscriptions:
                    await subscription.let_go(old)
                await old.flush(timeout=2)
        except Exception as error:  # the old connection is closed all the same
            _log.warning("client %s: left its old home in a hurry: %s", client.name, str(error) or type(error).__name__)

    async def _discard(self, connection: Connection) -> None:
        acknowledgements = self._spare[connection]
        if acknowledgements is not None:
            await acknowledgements.stop()
        if (server := self._servers.pop(connection, None)) is not None:
            await server.stop()
        await connection.close()
        del self._spare[connection]  # not before: whoever is cancelled in the middle leaves it to `stop`


async def _round_trip(connection: Connection) -> float:
    try:
        return float(await connection.rtt())
    except (NatsError, TimeoutError, AttributeError):
        return 0.0
