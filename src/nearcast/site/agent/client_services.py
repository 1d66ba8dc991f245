"""What a site offers to clients (topic lookup, stores, history, channels, coordinates), and the streams behind it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nearcast.errors import InputError
from nearcast.nats.rpc import Server
from nearcast.protocol.reports import TopicLag
from nearcast.site.agent.advertisements import Advertisements
from nearcast.site.agent.catch_up import CatchUp
from nearcast.site.agent.channel_subscriptions import ChannelSubscriptions
from nearcast.site.agent.mqtt_publications import MqttPublications
from nearcast.site.agent.processing_progress import ProcessingProgress
from nearcast.site.agent.store_services import StoreServices, open_store_services
from nearcast.site.agent.topic_directory import TopicDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.protocol.control import TopicRecord
    from nearcast.site.agent.coordinate_agent import CoordinateAgent

__all__ = ["ClientServices"]


class ClientServices:
    """The client services of one site. They own no server process and may be restarted at any time."""

    def __init__(
        self,
        deployment: Deployment,
        site: SiteSpec,
        connection: Connection,
        coordinates: CoordinateAgent,
        folder: Path,
    ) -> None:
        self._site, self._connection, self._coordinates, self._folder = site, connection, coordinates, folder
        synced = [one.name for one in deployment.sites if one.store is not None and one.store.sync_always]
        self.directory = TopicDirectory(site.name, deployment.topics, synced)
        self._advertisements = Advertisements(site.name, connection, self.directory, self._readable)
        self._channels: ChannelSubscriptions | None = None
        with contextlib.suppress(InputError):  # without a cloud there are no channels
            self._channels = ChannelSubscriptions(connection, site.name, deployment.cloud().name)
        self.store: StoreServices | None = None
        self.catch_up: CatchUp | None = None
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Make the streams of the topics stored here, then answer and advertise."""
        endpoints = [self.directory.endpoint, self._advertisements.endpoint, self._coordinates.endpoint]
        async with contextlib.AsyncExitStack() as stack:
            if self._site.store is not None:
                adverts = self._advertisements
                self.store = await stack.enter_async_context(
                    open_store_services(
                        self._site, self._connection, self._folder, self.directory, adverts.stores_of, adverts.publish
                    )
                )
                endpoints += self.store.endpoints
                self.catch_up = CatchUp(
                    self._site.name,
                    self._connection,
                    self.store.connection,
                    self.directory.stored_here,
                    self.store.repair.repairing,
                )
                stack.push_async_callback(self.catch_up.stop)
                await self.catch_up.start()
                if self._site.mqtt_port is not None:
                    mqtt = MqttPublications(self._site.name, self._connection, self.store.connection, self.directory)
                    stack.push_async_callback(mqtt.stop)
                    await mqtt.start()
            endpoints += ProcessingProgress(self._site.name, self._connection, self.directory, self.catch_up).endpoints
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
        if self.store is not None:
            self.store.streams.update(before, self.directory.topics)

    def _readable(self) -> tuple[list[str], list[str]]:
        """The topics whose past can be read here now, and those of them that lack something."""
        return self.store.readable() if self.store is not None else ([], [])
