"""The topics that a site knows, and the lookup by which clients ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from nearcast.domain.topic import TopicSpec, overlaps
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint
from nearcast.protocol.services import TopicsAnswer, TopicsRequest

__all__ = ["TopicDirectory"]


class TopicDirectory:
    """The topics of `nearcast.toml`, later those of the registry: `topics` is set when they change."""

    def __init__(self, site: str, topics: tuple[TopicSpec, ...], synced: Sequence[str] = ()) -> None:
        """synced: the sites whose stores write each message through to the disk."""
        self._site, self.topics, self._synced = site, topics, list(synced)
        self.endpoint = Endpoint("topics", subjects.topics_lookup(site), TopicsRequest, self._lookup)

    def within(self, pattern: str) -> list[TopicSpec]:
        """The topics that a subscription pattern may match."""
        return [spec for spec in self.topics if overlaps(spec.name, pattern)]

    def stored_here(self) -> list[TopicSpec]:
        """The topics that this site's store keeps."""
        return [spec for spec in self.topics if self._site in spec.replicas]

    async def _lookup(self, request: TopicsRequest) -> TopicsAnswer:
        return TopicsAnswer(self.within(request.pattern), self._synced)
