"""Messages of a user of console and REST: published, fed, followed and asked for on the user's own connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from nearcast.client.client import Client
from nearcast.client.publishing import Publisher
from nearcast.client.session import SharedSession
from nearcast.codec import JSON
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.client import Receipt, Subscription
    from nearcast.message import Message
    from nearcast.nats.connection import Connection

__all__ = ["UserClient"]

_HISTORY_BYTES = 8 << 20
_FED_AT_ONCE = 1000
_BUFFER = 1000  # messages of a stream that a browser does not take


class UserClient:
    """Begins with its first use: most users only look at the console."""

    def __init__(self, name: str, connection: Connection) -> None:
        sessions = SharedSession(name, connection)
        self._publisher = Publisher(sessions, JSON)
        self._client = Client(sessions, self._publisher, set(), JSON, None)
        self._beginning, self._begun = asyncio.Lock(), contextlib.AsyncExitStack()
        self._has_begun = False

    async def publish(self, topic: str, data: Any, quorum: int | None) -> Receipt:
        """Publish, and wait for the stores, or for the broker if there are none to wait for."""
        client = await self._begin()
        self._publisher.forget_routes()  # topics change while a console runs
        receipt = await client.publish(topic, data, quorum=quorum)
        if not receipt.stores:
            await client.flush()
        return receipt

    async def feed(self, dataset: str, records: Sequence[dict[str, Any]]) -> int:
        """Give records to a dataset; the cloud's store acknowledges each. Returns how many there were."""
        client = await self._begin()
        await client.feed(dataset, records[0])  # alone: if there is no such dataset, one error is enough
        for start in range(1, len(records), _FED_AT_ONCE):
            some = records[start : start + _FED_AT_ONCE]
            await asyncio.gather(*(client.feed(dataset, record) for record in some))
        return len(records)

    async def history(
        self, topic: str, since: float | None, until: float | None, last: int, *, publications: bool
    ) -> list[Message]:
        """The last past messages of a durable topic, the oldest first."""
        client, found, size = await self._begin(), [], 0
        if not any(spec.replicas for spec in await client.topics(topic)):
            raise InputError(f"topic {topic!r} is not stored; give it `replicas` first")
        async for message in client.history(topic, since=since, until=until, last=last, publications=publications):
            found.append(message)
            size += len(message.payload)
            if size > _HISTORY_BYTES:
                raise InputError(f"the last {last} messages have more than {_HISTORY_BYTES >> 20} MiB; ask for fewer")
        return found

    async def subscribe(self, topic: str) -> Subscription:
        """Messages of a topic as they come. Who reads too slowly misses the oldest."""
        return await (await self._begin()).subscribe(topic, buffer=_BUFFER)

    async def close(self) -> None:
        """End what is under way; the connection stays open."""
        await self._begun.aclose()

    async def _begin(self) -> Client:
        async with self._beginning:
            if not self._has_begun:
                await self._begun.enter_async_context(self._client)
                self._has_begun = True
        return self._client
