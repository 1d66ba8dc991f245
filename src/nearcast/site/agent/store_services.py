"""What a site does for its store: the streams of its topics, their index, repair, history and beacons."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.tasks import retry
from nearcast.site.agent.history_service import HistoryService
from nearcast.site.agent.repair import Repair
from nearcast.site.agent.replica_streams import ReplicaStreams
from nearcast.site.agent.store_index import StoreIndex
from nearcast.site.agent.store_tail import StoreTail
from nearcast.site.agent.tips import Tips

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from nearcast.domain.site import SiteSpec
    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.rpc import Endpoint
    from nearcast.nats.streams import StoredEntry
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["StoreServices", "open_store_services"]

_START_LIMIT = 30.0


class StoreServices:
    """The services of one site's store. connection: the one to the store.

    heard: the sites whose stores say that they keep a topic. changed: called when what can be read here changed.
    """

    def __init__(
        self,
        site: SiteSpec,
        connection: Connection,
        store: Connection,
        index: StoreIndex,
        directory: TopicDirectory,
        heard: Callable[[str], set[str]],
        changed: Callable[[], None],
    ) -> None:
        self.connection, self._directory = store, directory
        self.streams = ReplicaStreams(site.name, store, changed)
        self.tail = StoreTail(store, index, self._wanted, self._stored, self._rescanned)
        self.repair = Repair(site.name, connection, store, self.tail, directory.stored_here, heard, self._complete)
        self._history = HistoryService(directory, site.name, self.tail, self.repair.behind)
        self._tips = Tips(site.name, connection, self.repair.behind, self._followed_for)
        self._changed = changed

    @property
    def endpoints(self) -> list[Endpoint]:
        """For clients, and for other stores."""
        return [*self._history.endpoints, *self.repair.contents.endpoints]

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Make the streams of the topics stored here, and follow them. The stack stops it all."""
        stack.push_async_callback(self.streams.stop)
        await self.streams.start(self._directory.stored_here())
        for service in (self.tail, self.repair, self._tips):
            stack.push_async_callback(service.stop)
            await service.start()

    def store_returned(self) -> None:
        """The store was away, perhaps with its disk."""
        self.streams.restore(self._directory.stored_here())
        self.tail.store_returned()
        self.repair.store_returned()

    def readable(self) -> tuple[list[str], list[str]]:
        """The topics that can be read here now, and those of them that lack something."""
        if not self.connection.is_connected:
            return [], []
        topics = [topic.name for topic in self._directory.stored_here()]
        return topics, [topic for topic in topics if self.repair.behind(topic)]

    def _complete(self, topic: TopicSpec) -> None:
        self.streams.complete(topic)
        self._changed()

    def _wanted(self, existing: Iterable[str]) -> set[str]:
        """The streams of topics stored here, and those of channels, which nobody else keeps."""
        topics = {subjects.stream_name(topic.name) for topic in self._directory.stored_here()}
        return {name for name in existing if name in topics or name.startswith(subjects.channel_stream(""))}

    def _stored(self, stream: str, entries: Sequence[StoredEntry]) -> None:
        for topic in self._directory.stored_here():
            if subjects.stream_name(topic.name) == stream:
                self._tips.stored(topic, entries)

    def _followed_for(self, topic: str) -> float:
        return self.tail.followed_for(subjects.stream_name(topic))

    def _rescanned(self, stream: str) -> None:
        for topic in self._directory.stored_here():
            if subjects.stream_name(topic.name) == stream:
                self.repair.rescanned(topic.name)


@contextlib.asynccontextmanager
async def open_store_services(
    site: SiteSpec,
    connection: Connection,
    folder: Path,
    directory: TopicDirectory,
    heard: Callable[[str], set[str]],
    changed: Callable[[], None],
) -> AsyncIterator[StoreServices]:
    """Connect to the store and start its services. folder: for the index."""
    services: list[StoreServices] = []

    async def returned() -> None:
        for one in services:
            one.store_returned()

    async with contextlib.AsyncExitStack() as stack:
        store = await _open_store(site, connection, returned)
        stack.push_async_callback(store.close)
        index = stack.enter_context(contextlib.closing(StoreIndex(folder / "store-index.sqlite")))
        found = StoreServices(site, connection, store, index, directory, heard, changed)
        await found.start(stack)
        services.append(found)
        yield found


async def _open_store(
    site: SiteSpec, connection: Connection, on_reconnect: Callable[[], Awaitable[None]]
) -> Connection:
    """A connection to the store, once it is reachable through the broker: only then do publications reach it."""
    store = await open_connection(
        [site.store_url],
        name=f"{site.name}/agent",
        timeout=_START_LIMIT,
        on_reconnect=on_reconnect,
        credentials=connection.credentials,
    )
    manager = connection.jsm(prefix=subjects.store_api(site.name), timeout=1)
    try:
        await retry(manager.account_info, within=_START_LIMIT, on=(NatsError, TimeoutError), pause=0.05)
    except BaseException as error:
        await store.close()
        if isinstance(error, NatsError | TimeoutError):
            raise NearcastError(f"the store of {site.name} did not join its broker: {error}") from error
        raise
    return store
