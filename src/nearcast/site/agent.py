"""The site's agent: tells clients what is promised for topics, makes the store's streams and advertises them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.topic import overlaps
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import Advertisement, StoresAnswer, TopicsAnswer, TopicsRequest
from nearcast.site.channels import ChannelDesk
from nearcast.site.history import HistoryService
from nearcast.site.keeper import Keeper

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.protocol.control import TopicRecord

__all__ = ["Agent"]

_log = logging.getLogger(__name__)
_ADVERTISE_FIRST, _ADVERTISE_EVERY = 0.1, 2.0
_FORGET_AFTER = 3 * _ADVERTISE_EVERY
_START_LIMIT = 30.0


class Agent:
    """Answers for one site. It owns no server; it may be restarted at any time."""

    def __init__(self, deployment: Deployment, site: SiteSpec, connection: Connection) -> None:
        self._deployment, self._site, self._connection = deployment, site, connection
        self._advertised: dict[str, tuple[float, list[str]]] = {}
        self._store_connection: Connection | None = None
        self._history: HistoryService | None = None
        self._desk: ChannelDesk | None = None
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._keeper: Keeper | None = None

    async def start(self) -> None:
        """Make the streams of the topics kept here, then answer and advertise."""
        name = self._site.name
        if self._site.store is not None:
            self._store_connection = await open_connection(
                [self._site.store_url], name=f"{name}/agent", timeout=_START_LIMIT
            )
            await self._store_is_joined()
            self._keeper = Keeper(name, self._connection, self._store_connection, self._announce)
            await self._keeper.start(self._deployment.stored_at(name))
            self._history = HistoryService(self._deployment, name, self._connection, self._store_connection)
            await self._history.start()
        endpoints = [
            Endpoint("topics", subjects.topics_lookup(name), TopicsRequest, self._topics),
            Endpoint("stores", subjects.history(name, "find"), TopicsRequest, self._stores),
        ]
        self._server = Server(self._connection, endpoints, "nearcast-agent")
        await self._server.start()
        await self._connection.subscribe_raw(subjects.ADVERTISEMENTS, self._heard)
        with contextlib.suppress(InputError):  # without a cloud there are no channels
            self._desk = ChannelDesk(self._connection, name, self._deployment.cloud().name)
            await self._desk.start()
        await self._connection.flush()
        self._task = asyncio.create_task(self._advertise(), name=f"advertise {name}")

    async def stop(self) -> None:
        """Stop answering."""
        await cancel_and_wait(self._task)
        if self._server is not None:
            await self._server.stop()
        if self._keeper is not None:
            await self._keeper.stop()
        if self._desk is not None:
            await self._desk.stop()
        if self._history is not None:
            await self._history.stop()
        if self._store_connection is not None:
            await self._store_connection.close()

    def follow(self, records: list[TopicRecord]) -> None:
        """The registry's topics take the place of the configured ones; those it keeps here now get their stream."""
        before = {topic.name: topic for topic in self._deployment.topics}
        self._deployment = dataclasses.replace(self._deployment, topics=tuple(record.spec for record in records))
        if self._history is not None:
            self._history.deployment = self._deployment
        if self._keeper is not None:
            self._keeper.follow(before, {topic.name: topic for topic in self._deployment.topics})

    async def _topics(self, request: TopicsRequest) -> TopicsAnswer:
        return TopicsAnswer(list(self._deployment.topics_within(request.pattern)))

    async def _stores(self, request: TopicsRequest) -> StoresAnswer:
        """Which stores advertise a topic: the advertisement table of paper 003, kept at every site."""
        now = asyncio.get_running_loop().time()
        stores = [
            site
            for site, (heard, topics) in self._advertised.items()
            if now - heard < _FORGET_AFTER and any(overlaps(topic, request.pattern) for topic in topics)
        ]
        configured = any(topic.replicas for topic in self._deployment.topics_within(request.pattern))
        return StoresAnswer(stores, configured)

    def _heard(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            advertisement = msgspec.json.decode(payload, type=Advertisement)
        except msgspec.DecodeError as error:
            _log.warning("advertisement on %s is unreadable: %s", subject, error)
            return
        self._advertised[advertisement.site] = (asyncio.get_running_loop().time(), advertisement.topics)
        if advertisement.fresh:  # a new site wants to know the others now
            self._announce()

    async def _advertise(self) -> None:
        """Often at first, while the sites find each other, then now and then."""
        pause = _ADVERTISE_FIRST
        while True:
            try:
                self._announce(fresh=pause < _ADVERTISE_EVERY)
            except NearcastError as error:
                _log.warning("%s: not advertised: %s", self._site.name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _ADVERTISE_EVERY)

    def _announce(self, *, fresh: bool = False) -> None:
        stored = self._deployment.stored_at(self._site.name)
        copying = self._keeper.copying if self._keeper is not None else ()
        topics = [topic.name for topic in stored if topic.name not in copying]
        reachable = self._store_connection is not None and self._store_connection.is_connected
        message = Advertisement(self._site.name, topics if reachable else [], fresh)
        self._connection.send(subjects.advertisement(self._site.name), b"", msgspec.json.encode(message))

    async def _store_is_joined(self) -> None:
        """Wait until the store is reachable through the broker: only then do publications reach it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _START_LIMIT
        manager = self._connection.jsm(prefix=subjects.store_api(self._site.name), timeout=1)
        while True:
            try:
                await manager.account_info()
                return
            except (NatsError, TimeoutError) as error:
                if clock() > deadline:
                    raise NearcastError(f"the store of {self._site.name} did not join its broker: {error}") from error
                await asyncio.sleep(0.05)
