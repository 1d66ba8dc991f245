"""The streams of the topics that a site's store keeps: created, retired. Repair fills them with the past."""

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
from nearcast.nats.replica_stream import copying_config, is_copying, is_retired, retired_config, stream_config
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from nats.js.api import StreamInfo

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["ReplicaStreams"]

_log = logging.getLogger(__name__)
_RETRY_PAUSE = 2.0


class ReplicaStreams:
    """The streams of one store. What fails (a server that is starting) is tried again.

    changed: called when a stream is there from now on, or no longer.
    """

    def __init__(self, site: str, store: Connection, changed: Callable[[], None]) -> None:
        self._site, self._store, self._changed = site, store, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, topics: Iterable[TopicSpec]) -> None:
        """Create the streams of these topics, or continue with existing ones."""
        for topic in topics:
            await self._create(topic)

    async def stop(self) -> None:
        """Stop working on streams; they stay as they are."""
        await cancel_and_wait(*self._tasks.values())

    def restore(self, topics: Iterable[TopicSpec]) -> None:
        """The store was away, perhaps with its disk: create the streams that it no longer has."""
        for topic in topics:
            self._run(topic, partial(self._create, topic))

    def update(self, before: Sequence[TopicSpec], topics: Sequence[TopicSpec]) -> None:
        """Create the streams of topics that are to be stored here now, retire those of topics that are not."""
        known = {topic.name: topic for topic in before}
        stored = {topic.name for topic in topics if self._site in topic.replicas}
        for topic in topics:
            old = known.get(topic.name)
            if topic.name in stored and (old is None or self._site not in old.replicas):
                self._run(topic, partial(self._create, topic))
        for name, topic in known.items():
            if self._site in topic.replicas and name not in stored:
                self._run(topic, partial(self._retire, topic))

    def complete(self, topic: TopicSpec) -> None:
        """The stream has its past: let the coordinator see it."""
        self._run(topic, partial(self._complete, topic))

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
                except Exception:
                    _log.exception("%s: stream of %s; trying again", self._site, topic.name)
                level = logging.DEBUG
                await asyncio.sleep(_RETRY_PAUSE)

        self._tasks[topic.name] = asyncio.create_task(run(), name=f"{self._site}: stream of {topic.name}")

    async def _create(self, topic: TopicSpec) -> None:
        """Create the stream, or update it. One that is new, and not the only one, has no past yet."""
        config, manager = stream_config(topic, self._site), self._store.jsm(timeout=10)
        with self._errors(f"no stream for topic {topic.name}"):
            found: StreamInfo | None = None
            with contextlib.suppress(NotFoundError):
                found = await manager.stream_info(str(config.name))
            if found is None:
                await manager.add_stream(copying_config(config) if len(topic.replicas) > 1 else config)
            else:
                lacking = is_copying(found.config) or is_retired(found.config)
                await manager.update_stream(copying_config(config) if lacking and len(topic.replicas) > 1 else config)

    async def _complete(self, topic: TopicSpec) -> None:
        config, manager = stream_config(topic, self._site), self._store.jsm(timeout=10)
        with self._errors(f"stream of topic {topic.name} not updated"):
            if is_copying((await manager.stream_info(str(config.name))).config):
                await manager.update_stream(config)

    async def _retire(self, topic: TopicSpec) -> None:
        """Let the stream take nothing more; its past may still be asked for by the topic's new stores."""
        manager = self._store.jsm(timeout=10)
        with self._errors(f"stream of topic {topic.name} not retired"), contextlib.suppress(NotFoundError):
            config = (await manager.stream_info(subjects.stream_name(topic.name))).config
            await manager.update_stream(retired_config(config))

    @contextlib.contextmanager
    def _errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: {problem}: {str(error) or 'no answer'}") from error
