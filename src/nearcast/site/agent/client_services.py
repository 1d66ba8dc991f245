"""What a site offers to clients (topic lookup, stores, history, channels, coordinates), and the streams behind it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.rpc import Server
from nearcast.nats.tasks import retry
from nearcast.protocol.reports import TopicLag
from nearcast.site.agent.advertisements import Advertisements
from nearcast.site.agent.catch_up import CatchUp
from nearcast.site.agent.channel_subscriptions import ChannelSubscriptions
from nearcast.site.agent.history_service import HistoryService
from nearcast.site.agent.replica_streams import ReplicaStreams
from nearcast.site.agent.tail_service import TailService
from nearcast.site.agent.topic_directory import TopicDirectory

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.domain.topic import TopicSpec
    from nearcast.protocol.control import TopicRecord
    from nearcast.site.agent.coordinate_agent import CoordinateAgent

__all__ = ["ClientServices"]

_START_LIMIT = 30.0


class ClientServices:
    """The client services of one site. They own no server process and may be restarted at any time."""

    def __init__(
        self, deployment: Deployment, site: SiteSpec, connection: Connection, coordinates: CoordinateAgent
    ) -> None:
        self._site, self._connection, self._coordinates = site, connection, coordinates
        synced = [one.name for one in deployment.sites if one.store is not None and one.store.sync_always]
        self.directory = TopicDirectory(site.name, deployment.topics, synced)
        self._advertisements = Advertisements(site.name, connection, self.directory, self._readable)
        self._channels: ChannelSubscriptions | None = None
        with contextlib.suppress(InputError):  # without a cloud there are no channels
            self._channels = ChannelSubscriptions(connection, site.name, deployment.cloud().name)
        self._store: Connection | None = None
        self._streams: ReplicaStreams | None = None
        self.catch_up: CatchUp | None = None
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Make the streams of the topics stored here, then answer and advertise."""
        endpoints = [self.directory.endpoint, self._advertisements.endpoint, self._coordinates.endpoint]
        async with contextlib.AsyncExitStack() as stack:
            if self._site.store is not None:
                self._store = await self._open_store()
                stack.push_async_callback(self._store.close)
                self._streams = ReplicaStreams(
                    self._site.name, self._connection, self._store, self._advertisements.publish
                )
                stack.push_async_callback(self._streams.stop)
                await self._streams.start(self.directory.stored_here())
                endpoints += HistoryService(self.directory, self._site.name, self._store).endpoints
                self.catch_up = CatchUp(self._site.name, self._connection, self._store, self._stored)
                stack.push_async_callback(self.catch_up.stop)
                await self.catch_up.start()
                endpoints.append(TailService(self.directory, self._site.name, self._store).endpoint)
            if self._channels is not None:
                endpoints += self._channels.endpoints
            server = Server(self._connection, endpoints, "nearcast-agent")
            for service in (server, self._channels, self._advertisements):
                if service is not None:
                    stack.push_async_callback(service.stop)
                    await service.start()
            self._started = stack.pop_all()

    async def stop(self) -> None:
        """Stop answering."""
        await self._started.aclose()

    def lags(self) -> list[TopicLag]:
        """How far the owners of topics that are stored here are behind."""
        found = self.catch_up.lags() if self.catch_up is not None else {}
        return [TopicLag(topic, lag.waiting, lag.oldest) for topic, lag in found.items()]

    def apply_records(self, records: list[TopicRecord]) -> None:
        """The registry's topics replace those known so far; streams are made and retired accordingly."""
        before, self.directory.topics = self.directory.topics, tuple(record.spec for record in records)
        if self._streams is not None:
            self._streams.update(before, self.directory.topics)

    def _readable(self) -> list[str]:
        """The topics whose past can be read here now."""
        if self._store is None or not self._store.is_connected:
            return []
        return [topic.name for topic in self._stored()]

    def _stored(self) -> list[TopicSpec]:
        """The topics of this store whose past is complete."""
        copying = self._streams.copying if self._streams is not None else ()
        return [topic for topic in self.directory.stored_here() if topic.name not in copying]

    async def _open_store(self) -> Connection:
        """A connection to the store, once it is reachable through the broker: only then do publications reach it."""
        name = self._site.name
        store = await open_connection([self._site.store_url], name=f"{name}/agent", timeout=_START_LIMIT)
        manager = self._connection.jsm(prefix=subjects.store_api(name), timeout=1)
        try:
            await retry(manager.account_info, within=_START_LIMIT, on=(NatsError, TimeoutError), pause=0.05)
        except BaseException as error:
            await store.close()
            if isinstance(error, NatsError | TimeoutError):
                raise NearcastError(f"the store of {name} did not join its broker: {error}") from error
            raise
        return store
