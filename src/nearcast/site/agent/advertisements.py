"""Which stores keep which topics: each site advertises its own and keeps the table of all (storage planning paper)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.domain.topic import overlaps
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver, drop
from nearcast.nats.rpc import Endpoint
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.control import MOST_SITES
from nearcast.protocol.services import Advertisement, StoresAnswer, TopicsRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["Advertisements"]

_log = logging.getLogger(__name__)
_FIRST_PERIOD, _PERIOD = 0.1, 2.0
_EXPIRE_AFTER = 3 * _PERIOD


class Advertisements:
    """Advertises one site's store, and answers which stores keep a topic.

    readable: gives the topics that can be read here, and those of them that are behind.
    """

    def __init__(
        self,
        site: str,
        connection: Connection,
        directory: TopicDirectory,
        readable: Callable[[], tuple[list[str], list[str]]],
    ) -> None:
        self._site, self._connection, self._directory, self._readable = site, connection, directory, readable
        self._received: dict[str, tuple[float, Advertisement]] = {}  # by site: when, and what
        self.endpoint = Endpoint("stores", subjects.history(site, "find"), TopicsRequest, self._find_stores)
        self._subscription: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen to the other sites, and advertise from now on."""
        self._subscription = await self._connection.subscribe_raw(
            subjects.ADVERTISEMENTS, Receiver("advertisement", Advertisement, "json", self._receive)
        )
        await self._connection.flush()
        self._task = asyncio.create_task(self._advertise(), name=f"{self._site}: advertisements")

    async def stop(self) -> None:
        """Stop advertising."""
        await cancel_and_wait(self._task)
        if self._subscription is not None:
            await self._connection.unsubscribe_raw(self._subscription)

    def publish(self, *, fresh: bool = False) -> None:
        """Advertise what can be read here now. fresh: the other sites are to do the same at once."""
        topics, behind = self._readable()
        message = Advertisement(self._site, topics, fresh, behind)
        self._connection.send(subjects.advertisement(self._site), b"", msgspec.json.encode(message))

    def stores_of(self, topic: str) -> set[str]:
        """The sites whose stores were heard of recently and keep this topic."""
        oldest = asyncio.get_running_loop().time() - _EXPIRE_AFTER
        return {site for site, (came, message) in self._received.items() if came > oldest and topic in message.topics}

    async def _find_stores(self, request: TopicsRequest) -> StoresAnswer:
        oldest = asyncio.get_running_loop().time() - _EXPIRE_AFTER
        stores, behind = [], []
        for site, (received, message) in self._received.items():
            if received > oldest and any(overlaps(topic, request.pattern) for topic in message.topics):
                stores.append(site)
                if any(overlaps(topic, request.pattern) for topic in message.behind):
                    behind.append(site)
        return StoresAnswer(stores, any(topic.replicas for topic in self._directory.within(request.pattern)), behind)

    def _receive(self, subject: str, reply: str, advertisement: Advertisement) -> None:
        if subject != subjects.advertisement(advertisement.site):
            drop("advertisement", subject, f"it is of site {advertisement.site}")
            return
        if len(self._received) >= MOST_SITES and advertisement.site not in self._received:
            drop("advertisement", subject, f"{MOST_SITES} sites advertise already")
            return
        self._received[advertisement.site] = (asyncio.get_running_loop().time(), advertisement)
        if advertisement.fresh:
            self.publish()

    async def _advertise(self) -> None:
        """Often at first, while the sites find each other, then each period."""
        pause = _FIRST_PERIOD
        while True:
            try:
                self.publish(fresh=pause < _PERIOD)
            except NearcastError as error:
                _log.warning("%s: not advertised: %s", self._site, error)
            except Exception:
                _log.exception("%s: not advertised", self._site)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PERIOD)
