"""The streams of the topics that a site's store keeps: made, filled with the past of another store, and retired."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import ExternalStream, RetentionPolicy, StorageType, StreamConfig, StreamSource
from nats.js.errors import NotFoundError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.replica_stream import COPYING, is_copying, keeps, retired
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nats.js.api import StreamInfo, StreamSourceInfo
    from nats.js.manager import JetStreamManager

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["Keeper"]

_log = logging.getLogger(__name__)
_SETTLE = 1.0
_LOOK_EVERY = 0.2
_TRY_AGAIN = 2.0
_AT_ONCE = 8  # topics copied; a store that is lost may have kept thousands
_WINDOW = 120.0  # seconds in which a store knows an id again
_HEARD_NS = 5_000_000_000
_COPYING_WINDOW = 3600.0  # the same while the past is copied: what came live comes again with the past, much later


class Keeper:
    """Of one store. What cannot be done now (a server that is starting, a source that is lost) is tried again.

    changed: called when a topic can be asked for here from now on, or no longer.
    """

    def __init__(self, site: str, connection: Connection, store: Connection, changed: Callable[[], None]) -> None:
        self._site, self._connection, self._store, self._changed = site, connection, store, changed
        self._work: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.copying: set[str] = set()  # topics whose past is not all here yet: not a place to ask about them

    async def start(self, topics: Iterable[TopicSpec]) -> None:
        """Make the streams of these topics, or go on with those that are there."""
        for topic in topics:
            if await self._make(topic, []):  # it was being copied when this site was stopped
                self.copying.add(topic.name)
                others = [site for site in topic.replicas if site != self._site]
                self._begin(topic, partial(self._fill, topic, others))

    async def stop(self) -> None:
        """Leave all as it is."""
        await cancel_and_wait(*self._work.values())

    def follow(self, before: Mapping[str, TopicSpec], topics: Mapping[str, TopicSpec]) -> None:
        """Keep the topics that are to be kept here from now on; take nothing more for those that are not."""
        for name, topic in topics.items():
            known = before.get(name)
            was_here, is_here = known is not None and self._site in known.replicas, self._site in topic.replicas
            if is_here and not was_here:
                others = [site for site in known.replicas if site != self._site] if known is not None else []
                if others:
                    self.copying.add(name)
                self._begin(topic, partial(self._keep, topic, others))
            elif was_here and not is_here:
                self._begin(topic, partial(self._retire, topic))
        for name, topic in before.items():
            if name not in topics and self._site in topic.replicas:
                self._begin(topic, partial(self._retire, topic))

    def _begin(self, topic: TopicSpec, work: Callable[[], Awaitable[None]]) -> None:
        """Work on a topic's stream until it is done; what was begun before ends first."""
        before = self._work.get(topic.name)

        async def turn() -> None:
            await cancel_and_wait(before)
            level = logging.WARNING
            while True:
                try:
                    await work()
                    self._changed()
                    break
                except NearcastError as error:
                    _log.log(level, "%s; trying again until it can be done", error)
                level = logging.DEBUG
                await asyncio.sleep(_TRY_AGAIN)

        self._work[topic.name] = asyncio.create_task(turn(), name=f"{self._site} keeps {topic.name}")

    async def _keep(self, topic: TopicSpec, others: Sequence[str]) -> None:
        if await self._make(topic, others):
            await self._fill(topic, others)
        self.copying.discard(topic.name)

    async def _make(self, topic: TopicSpec, others: Sequence[str]) -> bool:
        """Make the stream, or bring it up to date; whether its past is still to come from another store.

        others: sites that have its past. A stream that was retired here lacks what came since, and is made anew then.
        """
        config, manager = _config(topic), self._store.jsm(timeout=10)
        name = str(config.name)
        try:
            try:
                found: StreamInfo | None = await manager.stream_info(name)
            except NotFoundError:
                found = None
            if found is not None and others and found.config.subjects == [retired(name)]:
                await manager.delete_stream(name)
                found = None
            if found is None:
                await manager.add_stream(_being_copied(config) if others else config)
                return bool(others)
            copying = is_copying(found.config)
            await manager.update_stream(_being_copied(config) if copying else config)
            return copying
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: no stream for topic {topic.name}: {_said(error)}") from error

    async def _fill(self, topic: TopicSpec, others: Sequence[str]) -> None:
        """Copy the past from one of the others, whichever has it and answers; wait as long as none does."""
        config, manager = _config(topic), self._store.jsm(timeout=10)
        name = str(config.name)
        try:
            while True:
                source = await self._one_that_has(topic.name, others)
                if source:
                    break
                await asyncio.sleep(_TRY_AGAIN * max(1.0, len(self.copying) / _AT_ONCE))
            async with self._slots:
                await manager.update_stream(_being_copied(config))  # in case it had a source that was lost
                await manager.update_stream(_being_copied(config, source))
                await self._copied(manager, name, source)
                await manager.update_stream(config)
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: the past of {topic.name} is not here: {_said(error)}") from error
        self.copying.discard(topic.name)

    async def _one_that_has(self, topic: str, others: Sequence[str]) -> str:
        for site in others:
            try:
                config = (await self._theirs(site).stream_info(subjects.stream_name(topic))).config
            except (NatsError, TimeoutError):
                continue
            if keeps(config, topic):
                return site
        return ""

    async def _copied(self, manager: JetStreamManager, name: str, source: str) -> None:
        """Wait until all that the source has and this store has not got by itself is here.

        For a moment brokers far away do not know of this store: what they send then comes by the source alone.
        """
        await asyncio.sleep(_SETTLE)
        wanted = (await self._theirs(source).stream_info(name)).state.messages
        looks = 0
        while looks < 2:  # what a store says of its lag may be a moment old
            await asyncio.sleep(_LOOK_EVERY)
            await self._theirs(source).stream_info(name)  # fails when it is lost: another one may have the past, too
            found = await manager.stream_info(name)
            looks = looks + 1 if found.state.messages >= wanted and all(map(_is_even, found.sources or [])) else 0

    async def _retire(self, topic: TopicSpec) -> None:
        """Keep what the stream has, and let it take nothing more: its past may still be wanted by its new stores."""
        name, manager = subjects.stream_name(topic.name), self._store.jsm(timeout=10)
        self.copying.discard(topic.name)
        try:
            config = (await manager.stream_info(name)).config
            await manager.update_stream(config.evolve(subjects=[retired(name)], sources=None))
        except NotFoundError:
            pass  # it never came to be
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: stream of {topic.name} not retired: {_said(error)}") from error

    def _theirs(self, site: str) -> JetStreamManager:
        return self._connection.jsm(prefix=subjects.store_api(site), timeout=10)


def _config(topic: TopicSpec) -> StreamConfig:
    """The stream keeps what is published and, for a processed topic, what subscribers were told."""
    kept = [subjects.publications(topic.name)]
    if topic.processed:
        kept.append(subjects.notifications(topic.name))
    return StreamConfig(
        name=subjects.stream_name(topic.name),
        description=f"topic {topic.name}",
        subjects=kept,
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_age=topic.keep_seconds or 0,
        max_bytes=topic.keep_bytes or -1,
        allow_direct=True,
        duplicate_window=min(_WINDOW, topic.keep_seconds or _WINDOW),
    )


def _being_copied(config: StreamConfig, source: str = "") -> StreamConfig:
    """The stream as it is until its past is all there; without a source for as long as none is known to answer.

    (A server whose source is lost looks for it again after pauses that grow to two minutes.)
    """
    past = StreamSource(name=str(config.name), external=ExternalStream(api=subjects.store_api(source)))
    return config.evolve(
        metadata={COPYING: "yes"},
        sources=[past] if source else None,
        duplicate_window=min(_COPYING_WINDOW, config.max_age or _COPYING_WINDOW),
    )


def _is_even(source: StreamSourceInfo) -> bool:
    """Whether a source was heard from just now (it says something each second) and has nothing more to send."""
    return source.active is not None and 0 <= source.active < _HEARD_NS and not source.lag


def _said(error: Exception) -> str:
    return str(error) or "no answer"
