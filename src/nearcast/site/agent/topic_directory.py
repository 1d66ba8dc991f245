"""The topics that a site knows, and the lookup by which clients ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.domain.topic import TopicSpec, overlaps
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, Server
from nearcast.protocol.services import TopicsAnswer, TopicsRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["TopicDirectory"]


class TopicDirectory:
    """The topics of `nearcast.toml`, later those of the registry: whoever learns of them sets `topics`."""

    def __init__(self, site: str, topics: tuple[TopicSpec, ...], connection: Connection) -> None:
        self._site, self.topics = site, topics
        endpoint = Endpoint("topics", subjects.topics_lookup(site), TopicsRequest, self._lookup)
        self._server = Server(connection, [endpoint], "nearcast-topics")

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop answering."""
        await self._server.stop()

    def within(self, pattern: str) -> list[TopicSpec]:
        """The topics that a subscription pattern may match."""
        return [spec for spec in self.topics if overlaps(spec.name, pattern)]

    def stored_here(self) -> list[TopicSpec]:
        """The topics that this site's store keeps."""
        return [spec for spec in self.topics if self._site in spec.replicas]

    async def _lookup(self, request: TopicsRequest) -> TopicsAnswer:
        return TopicsAnswer(self.within(request.pattern))
