"""Publishing: the one way by which publications and records leave a client, with or without a write quorum."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from nearcast.client.acknowledgements import QuorumPublication, Receipt
from nearcast.client.given_up import GivenUpNumbers
from nearcast.client.topic_lookup import look_up
from nearcast.domain.topic import check_topic
from nearcast.errors import InputError, InputTypeError
from nearcast.nats import message_spans, subjects
from nearcast.nats.connection import ConnectionLostError, PayloadTooLargeError
from nearcast.nats.stamp import header_block, parse_stamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from nearcast.client.quota import PublishQuota
    from nearcast.client.session import Session, Sessions
    from nearcast.client.spooling import SpooledPublisher
    from nearcast.codec import Codec
    from nearcast.nats.connection import Connection

__all__ = ["Publisher", "Route"]


class Route:
    """How the publications of a topic (or the records of a dataset) leave, and how many did since the last report.

    numbers: of the publications, from 1 for as long as the client runs; routes to the same subject share them.
    synced: the stores that write through to their disks before they answer.
    """

    __slots__ = ("bytes", "numbers", "quorum", "replicas", "sent", "subject", "synced")

    def __init__(
        self,
        subject: str,
        replicas: tuple[str, ...],
        quorum: int,
        numbers: Iterator[int],
        synced: frozenset[str] = frozenset(),
    ) -> None:
        self.subject, self.replicas, self.quorum, self.numbers = subject, replicas, quorum, numbers
        self.synced = synced
        self.sent = self.bytes = 0


class Publisher:
    """Sends what a client publishes, by its current session. routes: one for each topic published so far.

    spool: keeps publications with a quorum until their stores have them, if the client has one.
    quota: what its user may publish, if that is limited.
    """

    def __init__(self, sessions: Sessions, codec: Codec) -> None:
        self._sessions, self._codec = sessions, codec
        self.spool: SpooledPublisher | None = None
        self.quota: PublishQuota | None = None
        self.routes: dict[str, Route] = {}
        self._dataset_routes: dict[str, Route] = {}
        self._looking_up: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))  # by subject
        self._given_up: defaultdict[str, GivenUpNumbers] = defaultdict(GivenUpNumbers)  # by subject
        sessions.on_failure = self._failed

    def forget_routes(self) -> None:
        """Look topics up again: the broker may be another one, and topics may have changed."""
        self.routes.clear()

    async def topic_route(self, topic: str) -> Route:
        """The route of a topic. Many first publications at once look it up once."""
        check_topic(topic)
        subject = subjects.publications(topic)
        async with self._looking_up[subject]:
            route = self.routes.get(topic)
            if route is None:
                answer = await look_up(self.connection, topic)
                replicas, quorum = (answer.topics[0].replicas, answer.topics[0].quorum) if answer.topics else ((), 0)
                synced = frozenset(answer.synced)
                route = self.routes[topic] = Route(subject, replicas, quorum, self._numbers[subject], synced)
        return route

    async def dataset_route(self, dataset: str) -> Route:
        """The route of a dataset; an InputError when it takes no records."""
        route = self._dataset_routes.get(dataset)
        if route is not None:
            return route
        check_topic(dataset)
        subject = subjects.feed(dataset)
        async with self._looking_up[subject]:
            route = self._dataset_routes.get(dataset)
            if route is None:
                self.connection()
                store = await self._sessions.current.channels.find_dataset(dataset)
                route = self._dataset_routes[dataset] = Route(subject, (store,), 1, self._numbers[subject])
        return route

    def connection(self) -> Connection:
        """To ask an agent through. QuotaError while its user is suspended: brokers close what that one opens."""
        if self.quota is not None:
            self.quota.refuse_if_suspended()
        return self._sessions.connection()

    def send(
        self, name: str, route: Route, data: Any, quorum: int | None, timeout: float
    ) -> Receipt | Awaitable[Receipt | asyncio.Future[Receipt]]:
        """Encode, check, number and send. Not a coroutine: most publications are sent without waiting for anything.

        When there is something to wait for (the socket, room among those in flight), what is returned is to be awaited;
        with a quorum this gives the future of the receipt.
        """
        needed = route.quorum if quorum is None else quorum
        if type(needed) is not int:
            raise InputTypeError(f"topic {name}: quorum is {needed!r}; allowed: a number of stores")
        if needed and not 0 < needed <= len(route.replicas):
            have = ", ".join(route.replicas) or "no stores"
            raise InputError(f"topic {name}: quorum is {needed}; the topic is kept by {have}")
        payload = data if type(data) is bytes else self._encode(name, data)
        if needed:
            return self._send_for_quorum(name, route, payload, needed, timeout)
        session, message_id, encoded = self._number(name, route, payload)
        connection = session.connection
        connection.send(route.subject, header_block(encoded), payload)
        receipt = Receipt(message_id)
        return _when_writable(connection, receipt) if connection.backlogged else receipt

    async def _send_for_quorum(
        self, name: str, route: Route, payload: bytes, needed: int, timeout: float
    ) -> asyncio.Future[Receipt]:
        acknowledgements = self._sessions.current.acknowledgements
        if acknowledgements.full:
            await acknowledgements.wait_for_room()
        # Numbered when it may be sent: numbers leave in order.
        session, message_id, _ = self._number(name, route, payload, self._given_up.get(route.subject))
        publication = QuorumPublication(message_id, name, route.subject, needed, payload)
        if self.spool is not None and route.subject != subjects.feed(name):
            return await self.spool.publish(publication, route.synced)
        try:
            return await session.acknowledgements.send(publication, timeout, route.synced, route.replicas)
        except ConnectionLostError:
            self._failed(route.subject, message_id)
            raise

    def _failed(self, subject: str, message_id: str) -> None:
        """A publication got no quorum and is not sent again: later ones say so to workers. A spool keeps sending."""
        if self.spool is None:
            self._given_up[subject].add(parse_stamp(message_id.encode()).number, asyncio.get_running_loop().time())

    def _number(
        self, name: str, route: Route, payload: bytes, given_up: GivenUpNumbers | None = None
    ) -> tuple[Session, str, bytes]:
        """The session to send by, and the id of the publication that is sent now, as text and as bytes."""
        size, session = len(payload), self._sessions.current
        if size > session.largest_payload:
            raise PayloadTooLargeError(name, size, session.largest_payload)
        if self.quota is not None:
            self.quota.take(size)
        number = next(route.numbers)
        message_id = session.make_id(
            number if not given_up else given_up.number_field(number, asyncio.get_running_loop().time())
        )
        route.sent += 1
        route.bytes += size
        encoded = message_id.encode()
        if message_spans.active is not None:
            message_spans.active.published(encoded, name, size)
        return session, message_id, encoded

    def _encode(self, name: str, data: Any) -> bytes:
        try:
            return self._codec.encode(data)
        except Exception as error:
            raise InputError(f"topic {name}: {type(data).__name__} cannot be encoded: {error}") from error


async def _when_writable(connection: Connection, receipt: Receipt) -> Receipt:
    await connection.wait_writable()
    return receipt
