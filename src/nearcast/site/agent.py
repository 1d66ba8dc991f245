"""The site's agent: tells clients what is promised for topics, makes the store's streams and advertises them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import ExternalStream, RetentionPolicy, StorageType, StreamConfig, StreamSource
from nats.js.errors import NotFoundError

from nearcast.domain.errors import InputError, NearcastError
from nearcast.domain.topic import overlaps
from nearcast.site.channels import ChannelDesk
from nearcast.site.history import HistoryService
from nearcast.wire import subjects
from nearcast.wire.connection import Connection, open_connection
from nearcast.wire.services import Advertisement, StoresAnswer, TopicsAnswer, TopicsRequest
from nearcast.wire.tasks import end

if TYPE_CHECKING:
    from nats.js.manager import JetStreamManager

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.domain.topic import TopicSpec
    from nearcast.wire.control import TopicRecord

__all__ = ["Agent"]

_log = logging.getLogger(__name__)
_ADVERTISE_FIRST, _ADVERTISE_EVERY = 0.1, 2.0
_FORGET_AFTER = 3 * _ADVERTISE_EVERY
_START_LIMIT = 30.0
_SETTLE = 1.0
_COPY_LIMIT = 600.0


class Agent:
    """Answers for one site. It owns no server; it may be restarted at any time."""

    def __init__(self, deployment: Deployment, site: SiteSpec, connection: Connection) -> None:
        self._deployment, self._site, self._connection = deployment, site, connection
        self._advertised: dict[str, tuple[float, list[str]]] = {}
        self._store_connection: Connection | None = None
        self._history: HistoryService | None = None
        self._desk: ChannelDesk | None = None
        self._task: asyncio.Task[None] | None = None
        self._rearranging: set[asyncio.Task[None]] = set()
        self._copying: set[str] = set()  # topics whose past is not all here yet: not a place to ask about them

    async def start(self) -> None:
        """Make the streams of the topics kept here, then answer and advertise."""
        name = self._site.name
        if self._site.store is not None:
            self._store_connection = await open_connection(
                [self._site.store_url], name=f"{name}/agent", timeout=_START_LIMIT
            )
            await self._store_is_joined()
            for topic in self._deployment.stored_at(name):
                await self._make_stream(topic)
            self._history = HistoryService(self._deployment, name, self._connection, self._store_connection)
            await self._history.start()
        await self._connection.attach(subjects.topics_lookup(name), self._topics_asked)
        await self._connection.attach(subjects.history(name, "find"), self._stores_asked)
        await self._connection.attach(subjects.ADVERTISEMENTS, self._heard)
        with contextlib.suppress(InputError):  # without a cloud there are no channels
            self._desk = ChannelDesk(self._connection, name, self._deployment.cloud().name)
            await self._desk.start()
        await self._connection.flush()
        self._task = asyncio.create_task(self._advertise(), name=f"advertise {name}")

    async def stop(self) -> None:
        """Stop answering."""
        await end(*self._rearranging, self._task)
        if self._desk is not None:
            await self._desk.stop()
        if self._history is not None:
            await self._history.stop()
        if self._store_connection is not None:
            await self._store_connection.close()

    def follow(self, records: list[TopicRecord]) -> None:
        """The registry's topics take the place of the configured ones; those it keeps here now get their stream."""
        before = {topic.name: topic for topic in self._deployment.topics}
        topics = tuple(record.spec for record in records)
        self._deployment = dataclasses.replace(self._deployment, topics=topics)
        if self._history is not None:
            self._history.deployment = self._deployment
        if self._store_connection is not None:
            task = asyncio.create_task(self._rearrange(before), name=f"replicas of {self._site.name}")
            self._rearranging.add(task)
            task.add_done_callback(self._rearranging.discard)

    async def _rearrange(self, before: dict[str, TopicSpec]) -> None:
        """Make the streams of topics that are to be kept here from now on; stop filling those that are not."""
        name = self._site.name
        for topic in self._deployment.topics:
            known = before.get(topic.name)
            was_here, is_here = known is not None and name in known.replicas, name in topic.replicas
            try:
                if is_here and not was_here:
                    others = [site for site in known.replicas if site != name] if known is not None else []
                    if others:
                        self._copying.add(topic.name)
                    await self._make_stream(topic, others[0] if others else "")
                    self._copying.discard(topic.name)
                elif was_here and not is_here:
                    await self._retire_stream(topic)
                else:
                    continue
                self._announce(fresh=False)  # who asks for the past should hear of it soon
            except NearcastError as error:
                _log.warning("%s", error)

    def _topics_asked(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            pattern = msgspec.json.decode(payload, type=TopicsRequest).pattern
        except msgspec.DecodeError as error:
            self._connection.send(reply, b"", msgspec.json.encode(TopicsAnswer(error=str(error))))
            return
        topics = list(self._deployment.topics_within(pattern))
        self._connection.send(reply, b"", msgspec.json.encode(TopicsAnswer(topics=topics)))

    def _stores_asked(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        """Which stores advertise a topic: the advertisement table of paper 003, kept at every site."""
        try:
            pattern = msgspec.json.decode(payload, type=TopicsRequest).pattern
        except msgspec.DecodeError as error:
            self._connection.send(reply, b"", msgspec.json.encode(StoresAnswer(error=str(error))))
            return
        now = asyncio.get_running_loop().time()
        stores = [
            site
            for site, (heard, topics) in self._advertised.items()
            if now - heard < _FORGET_AFTER and any(overlaps(topic, pattern) for topic in topics)
        ]
        configured = any(topic.replicas for topic in self._deployment.topics_within(pattern))
        self._connection.send(reply, b"", msgspec.json.encode(StoresAnswer(stores, configured)))

    def _heard(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            advertisement = msgspec.json.decode(payload, type=Advertisement)
        except msgspec.DecodeError as error:
            _log.warning("advertisement on %s is unreadable: %s", subject, error)
            return
        self._advertised[advertisement.site] = (asyncio.get_running_loop().time(), advertisement.topics)
        if advertisement.fresh:  # a new site wants to know the others now
            self._announce(fresh=False)

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

    def _announce(self, *, fresh: bool) -> None:
        stored = self._deployment.stored_at(self._site.name)
        topics = [topic.name for topic in stored if topic.name not in self._copying]
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

    async def _make_stream(self, topic: TopicSpec, source: str = "") -> None:
        """The stream keeps what is published and, for a processed topic, what subscribers were told.

        source: a site whose store has the topic's past, which is copied; ids drop what comes both ways. A stream that
        was retired here lacks what came since, and is copied anew.
        """
        assert self._store_connection is not None
        kept = [subjects.publications(topic.name)]
        if topic.processed:
            kept.append(subjects.notifications(topic.name))
        config = StreamConfig(
            name=subjects.stream_name(topic.name),
            description=f"topic {topic.name}",
            subjects=kept,
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=topic.keep_seconds or 0,
            max_bytes=topic.keep_bytes or -1,
            allow_direct=True,
            duplicate_window=min(120.0, topic.keep_seconds or 120.0),
        )
        manager = self._store_connection.jsm(timeout=10)
        name = str(config.name)
        past = StreamSource(name=name, external=ExternalStream(api=subjects.store_api(source)))
        try:
            try:
                found = (await manager.stream_info(name)).config
            except NotFoundError:
                found = None
            if found is not None and source and found.subjects == [_retired(name)]:
                await manager.delete_stream(name)
                found = None
            if found is None:
                await manager.add_stream(config.evolve(sources=[past]) if source else config)
            if source and (found is None or found.sources):  # new, or its copy was cut short
                await self._copied(manager, name, source)
                await manager.update_stream(config)
            elif found is not None:
                await manager.update_stream(config.evolve(sources=found.sources))
        except NatsError as error:
            raise NearcastError(f"site {self._site.name}: no stream for topic {topic.name}: {error}") from error

    async def _copied(self, manager: JetStreamManager, name: str, source: str) -> None:
        """Wait until all that the source has and this store has not got by itself is here.

        For a moment brokers far away do not know of this store: what they send then comes by the source alone.
        """
        theirs = self._connection.jsm(prefix=subjects.store_api(source), timeout=10)
        await asyncio.sleep(_SETTLE)
        wanted = (await theirs.stream_info(name)).state.messages
        clock = asyncio.get_running_loop().time
        deadline = clock() + _COPY_LIMIT
        looks = 0
        while clock() < deadline:
            found = await manager.stream_info(name)
            lags = [source_info.lag for source_info in found.sources or []]
            looks = looks + 1 if found.state.messages >= wanted and not any(lags) else 0
            if looks > 1:  # what a store says of its lag may be a moment old
                return
            await asyncio.sleep(0.2)
        raise NearcastError(f"site {self._site.name}: the past of {name} was not copied from {source} in time")

    async def _retire_stream(self, topic: TopicSpec) -> None:
        """Keep what the stream has, and let it take nothing more: its past may still be wanted by its new stores."""
        assert self._store_connection is not None
        name = subjects.stream_name(topic.name)
        manager = self._store_connection.jsm(timeout=10)
        try:
            config = (await manager.stream_info(name)).config
            await manager.update_stream(config.evolve(subjects=[_retired(name)]))
        except NatsError as error:
            raise NearcastError(f"site {self._site.name}: stream of {topic.name} not retired: {error}") from error


def _retired(stream: str) -> str:
    """The subject of a stream that keeps what it has and takes nothing more."""
    return f"retired.{stream}"
