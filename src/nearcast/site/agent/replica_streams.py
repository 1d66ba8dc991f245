"""The streams of the topics that a site's store keeps: created, filled with the past of another store, retired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import interest_settle
from nearcast.nats.replica_stream import copying_config, is_copying, is_retired, keeps, retired_config, stream_config
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from nats.js.api import StreamInfo, StreamSourceInfo
    from nats.js.manager import JetStreamManager

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["ReplicaStreams"]

_log = logging.getLogger(__name__)
_POLL_PERIOD = 0.2
_RETRY_PAUSE = 2.0
_PARALLEL_COPIES = 8  # a lost store may have kept thousands of topics
_SOURCE_ACTIVE_NS = 5_000_000_000


class ReplicaStreams:
    """The streams of one store. What fails (a server that is starting, a lost source) is tried again.

    changed: called when a topic can be read here from now on, or no longer.
    """

    def __init__(self, site: str, connection: Connection, store: Connection, changed: Callable[[], None]) -> None:
        self._site, self._connection, self._store, self._changed = site, connection, store, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_PARALLEL_COPIES)
        self.copying: set[str] = set()  # topics whose past is not complete here

    async def start(self, topics: Iterable[TopicSpec]) -> None:
        """Create the streams of these topics, or continue with existing ones."""
        for topic in topics:
            if await self._create(topic, []):  # it was being copied when this site was stopped
                self.copying.add(topic.name)
                self._run(topic, partial(self._copy, topic, self._others(topic)))

    async def stop(self) -> None:
        """Stop working on streams; they stay as they are."""
        await cancel_and_wait(*self._tasks.values())

    def update(self, before: Sequence[TopicSpec], topics: Sequence[TopicSpec]) -> None:
        """Create the streams of topics that are to be stored here now, retire those of topics that are not."""
        known = {topic.name: topic for topic in before}
        stored = {topic.name for topic in topics if self._site in topic.replicas}
        for topic in topics:
            old = known.get(topic.name)
            if topic.name in stored and (old is None or self._site not in old.replicas):
                others = self._others(old) if old is not None else []
                if others:
                    self.copying.add(topic.name)
                self._run(topic, partial(self._create_and_copy, topic, others))
        for name, topic in known.items():
            if self._site in topic.replicas and name not in stored:
                self._run(topic, partial(self._retire, topic))

    def _others(self, topic: TopicSpec) -> list[str]:
        return [site for site in topic.replicas if site != self._site]

    def _run(self, topic: TopicSpec, work: Callable[[], Awaitable[None]]) -> None:
        """Work on a topic's stream until it succeeds; earlier work on it is cancelled first."""
        before = self._tasks.get(topic.name)

        async def run() -> None:
            await cancel_and_wait(before)
            level = logging.WARNING
            while True:
                try:
                    await work()
                    self._changed()
                    break
                except NearcastError as error:
                    _log.log(level, "%s; trying again every %g s", error, _RETRY_PAUSE)
                level = logging.DEBUG
                await asyncio.sleep(_RETRY_PAUSE)

        self._tasks[topic.name] = asyncio.create_task(run(), name=f"{self._site}: stream of {topic.name}")

    async def _create_and_copy(self, topic: TopicSpec, others: Sequence[str]) -> None:
        if await self._create(topic, others):
            await self._copy(topic, others)
        self.copying.discard(topic.name)

    async def _create(self, topic: TopicSpec, others: Sequence[str]) -> bool:
        """Create the stream, or update it; whether its past must still be copied from another store.

        others: sites that have its past. A retired stream lacks what came since, and is created anew then.
        """
        config, manager = stream_config(topic, self._site), self._store.jsm(timeout=10)
        name = str(config.name)
        with self._errors(f"no stream for topic {topic.name}"):
            found: StreamInfo | None = None
            with contextlib.suppress(NotFoundError):
                found = await manager.stream_info(name)
            if found is not None and others and is_retired(found.config):
                await manager.delete_stream(name)
                found = None
            if found is None:
                await manager.add_stream(copying_config(config) if others else config)
                return bool(others)
            copying = is_copying(found.config)
            await manager.update_stream(copying_config(config) if copying else config)
            return copying

    async def _copy(self, topic: TopicSpec, others: Sequence[str]) -> None:
        """Copy the past from one of the others, whichever has it and answers; wait as long as none does."""
        config, manager = stream_config(topic, self._site), self._store.jsm(timeout=10)
        with self._errors(f"the past of topic {topic.name} is not copied"):
            while not (source := await self._find_source(topic.name, others)):  # noqa: ASYNC110
                await asyncio.sleep(_RETRY_PAUSE * max(1.0, len(self.copying) / _PARALLEL_COPIES))
            async with self._slots:
                await manager.update_stream(copying_config(config))  # removes a source that was lost
                await manager.update_stream(copying_config(config, source))
                await self._wait_until_copied(manager, str(config.name), source)
                await manager.update_stream(config)
        self.copying.discard(topic.name)

    async def _find_source(self, topic: str, others: Sequence[str]) -> str:
        for site in others:
            with contextlib.suppress(NatsError, TimeoutError):
                if keeps((await self._remote(site).stream_info(subjects.stream_name(topic))).config, topic):
                    return site
        return ""

    async def _wait_until_copied(self, manager: JetStreamManager, name: str, source: str) -> None:
        """Wait until this store has all that the source has.

        Until distant brokers know of this store, what their clients publish comes by the source alone.
        """
        await asyncio.sleep(interest_settle())
        wanted = (await self._remote(source).stream_info(name)).state.messages
        complete = 0
        while complete < 2:  # the lag that a store reports may be a moment old
            await asyncio.sleep(_POLL_PERIOD)
            await self._remote(source).stream_info(name)  # raises when it is lost: another store may have the past
            found = await manager.stream_info(name)
            caught_up = found.state.messages >= wanted and all(map(_has_caught_up, found.sources or []))
            complete = complete + 1 if caught_up else 0

    async def _retire(self, topic: TopicSpec) -> None:
        """Let the stream take nothing more; its past may still be copied by the topic's new stores."""
        manager = self._store.jsm(timeout=10)
        self.copying.discard(topic.name)
        with self._errors(f"stream of topic {topic.name} not retired"), contextlib.suppress(NotFoundError):
            config = (await manager.stream_info(subjects.stream_name(topic.name))).config
            await manager.update_stream(retired_config(config))

    def _remote(self, site: str) -> JetStreamManager:
        return self._connection.jsm(prefix=subjects.store_api(site), timeout=10)

    @contextlib.contextmanager
    def _errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: {problem}: {str(error) or 'no answer'}") from error


def _has_caught_up(source: StreamSourceInfo) -> bool:
    """Whether a source was active just now (it sends something each second) and has nothing more to send."""
    return source.active is not None and 0 <= source.active < _SOURCE_ACTIVE_NS and not source.lag
