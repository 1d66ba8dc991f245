"""Publishing: the one way by which publications and records leave a client, with or without a write quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearcast.client.acknowledgements import Receipt
from nearcast.client.topic_lookup import look_up_topics
from nearcast.domain.topic import check_topic
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import PayloadTooLargeError
from nearcast.nats.stamp import header_block

if TYPE_CHECKING:
    import asyncio

    from nearcast.client.session import Sessions
    from nearcast.codec import Codec

__all__ = ["Publisher", "Route"]


class Route:
    """How the publications of a topic (or the records of a dataset) leave, and how many did since the last report."""

    __slots__ = ("bytes", "quorum", "replicas", "sent", "subject")

    def __init__(self, subject: str, replicas: tuple[str, ...], quorum: int) -> None:
        self.subject, self.replicas, self.quorum = subject, replicas, quorum
        self.sent = self.bytes = 0


class Publisher:
    """Sends what a client publishes, by its current session. routes: one for each topic published so far."""

    def __init__(self, sessions: Sessions, codec: Codec) -> None:
        self._sessions, self._codec = sessions, codec
        self.routes: dict[str, Route] = {}
        self._dataset_routes: dict[str, Route] = {}

    async def topic_route(self, topic: str) -> Route:
        """The route of a topic that was not published to before."""
        check_topic(topic)
        specs = await look_up_topics(self._sessions.connection, topic)
        replicas, quorum = (specs[0].replicas, specs[0].quorum) if specs else ((), 0)
        route = self.routes[topic] = Route(subjects.publications(topic), replicas, quorum)
        return route

    async def dataset_route(self, dataset: str) -> Route:
        """The route of a dataset; an InputError when it takes no records."""
        route = self._dataset_routes.get(dataset)
        if route is None:
            check_topic(dataset)
            store = await self._sessions.current.channels.find_dataset(dataset)
            route = self._dataset_routes[dataset] = Route(subjects.feed(dataset), (store,), 1)
        return route

    async def send(
        self, name: str, route: Route, data: Any, quorum: int | None, timeout: float
    ) -> Receipt | asyncio.Future[Receipt]:
        """Encode, check, number and send. With a quorum the receipt is in the future."""
        needed = route.quorum if quorum is None else quorum
        if needed and not 0 < needed <= len(route.replicas):
            have = ", ".join(route.replicas) or "no stores"
            raise InputError(f"topic {name}: quorum is {needed}; the topic is kept by {have}")
        payload = data if type(data) is bytes else self._encode(name, data)
        size, session = len(payload), self._sessions.current
        if size > session.largest_payload:
            raise PayloadTooLargeError(name, size, session.largest_payload)
        message_id = session.next_id()
        headers = header_block(message_id.encode())
        route.sent += 1
        route.bytes += size
        if needed:
            return await session.acknowledgements.send(
                name, route.subject, message_id, headers, payload, needed, timeout
            )
        connection = session.connection
        connection.send(route.subject, headers, payload)
        if connection.backlogged:
            await connection.wait_writable()
        return Receipt(message_id)

    def _encode(self, name: str, data: Any) -> bytes:
        try:
            return self._codec.encode(data)
        except Exception as error:
            raise InputError(f"topic {name}: {type(data).__name__} cannot be encoded: {error}") from error
