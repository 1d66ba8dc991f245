"""The client: connect to the nearest site, publish, subscribe, and ask for the past."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from nearcast.client.channels import ChannelMember, FixedStore
from nearcast.client.history import History, HistoryQuery, StoreFinder, condition_tree, microseconds
from nearcast.client.lookup import Route, look_up
from nearcast.client.quorum import Acknowledgements, Receipt
from nearcast.client.replay import replay_range, replay_then_live
from nearcast.client.subscription import Overflow, Subscription, publications_of
from nearcast.codec import JSON, Codec
from nearcast.domain.site import check_name
from nearcast.domain.topic import TopicSpec, check_pattern, check_topic, covers
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import (
    RESERVED_BYTES,
    Connection,
    PayloadTooLargeError,
    open_connection,
)
from nearcast.nats.stamp import header_block
from nearcast.protocol.services import HistoryRequest

if TYPE_CHECKING:
    from nearcast.client.presence import Presence
    from nearcast.client.subscription import Callback
    from nearcast.coordinates import Coordinate
    from nearcast.filters import Condition

__all__ = ["Client", "connect"]

_log = logging.getLogger(__name__)
_BUFFER = 65_536


class Client:
    """A connection to Nearcast; made by `nearcast.connect` and used as an async context manager.

    name: this client's name, unique among all. home: the site it is connected to.
    """

    def __init__(self, urls: Sequence[str], name: str, codec: Codec, timeout: float) -> None:
        self.name, self._urls, self._codec, self._timeout = name, list(urls), codec, timeout
        self.home = ""
        self.reconnects = 0
        self._connection: Connection | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._channels: ChannelMember | None = None
        self._routes: dict[str, Route] = {}
        self._subscriptions: list[Subscription] = []
        self._choice = random.Random(name)
        self._published = 0
        self._identity = b""
        self._largest = 0
        self._presence: Presence | None = None

    async def __aenter__(self) -> Client:
        if self._presence is not None:
            self._urls = await self._presence.register(self._urls)
        self._connection = await open_connection(
            self._urls, name=self.name, timeout=self._timeout, on_reconnect=self._came_back
        )
        self._settle_in(self._connection)
        self._acknowledgements = Acknowledgements(self._connection)
        await self._acknowledgements.start()
        self._channels = ChannelMember(self.name, self._connection)
        if self._presence is not None:
            await self._presence.start(self._connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._presence is not None:
            await self._presence.stop()
        for subscription in self._subscriptions:
            await subscription.close()
        if self._channels is not None:
            await self._channels.close()
        if self._acknowledgements is not None:
            await self._acknowledgements.stop()
        if self._connection is not None:
            if self._connection.is_connected:
                try:
                    await self._connection.flush(timeout=2)
                except (NatsError, TimeoutError) as error:
                    _log.warning("client %s: closing before all was sent: %s", self.name, error)
            await self._connection.close()

    async def publish(self, topic: str, data: Any, *, quorum: int | None = None, timeout: float = 5.0) -> Receipt:
        """Publish. Bytes go as they are, everything else through the codec.

        Returns when the message is on its way; for a topic with a write quorum (its own or `quorum`), when that many
        stores have it, and raises QuorumError when they do not say so in time.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self._find_route(topic)
        needed = route.quorum if quorum is None else quorum
        if needed:
            return await (await self._send_for_quorum(topic, route, data, needed, timeout))
        payload = data if type(data) is bytes else self._encode(topic, data)
        if len(payload) > self._largest:
            raise PayloadTooLargeError(topic, len(payload), self._largest)
        message_id = self._next_id()
        connection = self._connection
        assert connection is not None
        connection.send(route.subject, header_block(message_id), payload)
        route.sent += 1
        route.bytes += len(payload)
        if connection.backlogged:
            await connection.wait_writable()
        return Receipt(message_id.decode())

    async def submit(
        self, topic: str, data: Any, *, quorum: int | None = None, timeout: float = 5.0
    ) -> asyncio.Future[Receipt]:
        """Publish without waiting for the stores: many may be under way. Await what it returns for the receipt."""
        route = self._routes.get(topic)
        if route is None:
            route = await self._find_route(topic)
        needed = route.quorum if quorum is None else quorum
        if needed:
            return await self._send_for_quorum(topic, route, data, needed, timeout)
        sent: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        sent.set_result(await self.publish(topic, data, quorum=0))
        return sent

    def subscribe(
        self,
        topic: str | None = None,
        *,
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        replay: bool | int | datetime | timedelta | None = None,
        buffer: int = _BUFFER,
        on_overflow: Overflow = "drop_oldest",
    ) -> Subscription:
        """Messages of a topic, or of all topics a pattern stands for (`*` one level, a last `>` all further ones).

        A topic without a processor gives its publications, one with a processor its notifications. `await` the result,
        enter it or iterate it to begin. replay: past messages first; True for all that is kept, a number for the last
        so many, a time or a time span for those since.

        With `channel` and `params` instead of a topic: the results of a channel for these values of its parameters.
        """
        if topic is None:
            if channel is None:
                raise InputError("subscribe needs a topic or a channel")
        elif channel is not None:
            raise InputError(f"subscribe takes a topic or a channel, not both: {topic!r} and {channel!r}")
        else:
            check_pattern(topic)

        async def begin(subscription: Subscription) -> None:
            if channel is not None:
                await self._begin_channel(subscription, channel, params or {}, replay)
            else:
                await self._begin(subscription, replay)

        subscription = Subscription(topic or channel or "", begin, self._codec.decode, callback, buffer, on_overflow)
        subscription.of_channel = channel is not None
        self._subscriptions.append(subscription)
        if self._presence is not None:
            subscription.sampler = self._presence.sample
        return subscription

    async def feed(self, dataset: str, record: Any, *, timeout: float = 5.0) -> Receipt:
        """Give a record to a dataset. Returns when the cloud's store has it; it is then kept once, or quarantined."""
        self._live()
        check_topic(dataset)
        assert self._channels is not None
        assert self._acknowledgements is not None
        await self._channels.know_dataset(dataset)
        payload = record if type(record) is bytes else self._encode(dataset, record)
        if len(payload) > self._largest:
            raise PayloadTooLargeError(dataset, len(payload), self._largest)
        message_id = self._next_id()
        return await (
            await self._acknowledgements.send(
                dataset, subjects.feed(dataset), message_id.decode(), header_block(message_id), payload, 1, timeout
            )
        )

    def dead_letters(self, topic: str) -> Subscription:
        """Publications that a processor could not handle, as they are given up; `message.reason` says why."""
        check_pattern(topic)

        async def begin(subscription: Subscription) -> None:
            connection = self._live()
            await subscription.attach(connection, subjects.dead_letters(topic))
            await connection.flush()

        subscription = Subscription(topic, begin, self._codec.decode, None, _BUFFER, "drop_oldest")
        self._subscriptions.append(subscription)
        return subscription

    def history(
        self,
        topic: str,
        *,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        last: int | None = None,
        where: Condition | None = None,
        publications: bool = False,
    ) -> History:
        """Past messages of a durable topic, from the nearest store that keeps it: `async for message in …`.

        Only messages that pass the whole filter cross the network. Times are those at which the store received a
        message. A processed topic gives its notifications, unless its `publications` are asked for.
        """
        check_pattern(topic)
        if last is not None and (not isinstance(last, int) or last < 1):
            raise InputError(f"last is {last!r}; a whole number, at least 1, is needed")
        request = HistoryRequest(
            topic=topic,
            since_us=microseconds(since, "since"),
            until_us=microseconds(until, "until"),
            last=last,
            where=condition_tree(where),
        )

        async def prepare() -> HistoryQuery:
            connection, specs = self._live(), await self.topics(topic)
            processed = any(spec.processed and covers(spec.name, topic) for spec in specs)
            wanted = msgspec.structs.replace(request, notifications=processed and not publications)
            return HistoryQuery(connection, StoreFinder(connection, self._choice), wanted, self._codec.decode, last)

        return History(prepare)

    async def round_trip(self) -> float:
        """Seconds to the home's broker and back."""
        return float(await self._live().rtt())

    async def flush(self) -> None:
        """Wait until the broker has taken all that was published so far."""
        await self._live().flush()

    def _live(self) -> Connection:
        if self._connection is None:
            raise NearcastError("the client is not connected; use it as: async with nearcast.connect(url) as client")
        return self._connection

    async def _came_back(self) -> None:
        self.reconnects += 1
        self._settle_in(self._live())
        self._routes.clear()
        if self._presence is not None:
            self._presence.came_back()

    def _settle_in(self, connection: Connection) -> None:
        self.home = connection.server_name
        self._identity = f"{self.name}:{self.home}:".encode()
        self._largest = max(connection.max_payload - RESERVED_BYTES, 0)

    def _next_id(self) -> bytes:
        self._published += 1
        return b"%b%d:%d" % (self._identity, time.time_ns() // 1000, self._published)

    def _encode(self, topic: str, data: Any) -> bytes:
        try:
            return self._codec.encode(data)
        except Exception as error:
            raise InputError(f"topic {topic}: {type(data).__name__} cannot be encoded: {error}") from error

    async def _send_for_quorum(
        self, topic: str, route: Route, data: Any, needed: int, timeout: float
    ) -> asyncio.Future[Receipt]:
        if not 0 < needed <= len(route.spec.replicas):
            have = ", ".join(route.spec.replicas) or "no stores"
            raise InputError(f"topic {topic}: quorum is {needed}; the topic is kept by {have}")
        payload = data if type(data) is bytes else self._encode(topic, data)
        if len(payload) > self._largest:
            raise PayloadTooLargeError(topic, len(payload), self._largest)
        message_id = self._next_id()
        route.sent += 1
        route.bytes += len(payload)
        assert self._acknowledgements is not None
        return await self._acknowledgements.send(
            topic, route.subject, message_id.decode(), header_block(message_id), payload, needed, timeout
        )

    async def _find_route(self, topic: str) -> Route:
        self._live()
        check_topic(topic)
        specs = await self.topics(topic)
        route = self._routes[topic] = Route(topic, specs[0] if specs else TopicSpec(topic))
        return route

    async def topics(self, pattern: str) -> list[TopicSpec]:
        """What is configured for the topics within a pattern. A NATS server that is no site's promises nothing."""
        return await look_up(self._live, pattern)

    async def _begin(self, subscription: Subscription, replay: bool | int | datetime | timedelta | None) -> None:
        pattern = subscription.topic
        specs = await self.topics(pattern)
        connection = self._live()  # not earlier: the client may have moved while it asked
        processed = [spec for spec in specs if spec.processed]
        if any(spec.replicas for spec in specs):
            subscription.drop_duplicates()  # a publication may be sent again for its quorum
        wanted = []
        if processed:
            wanted.append(subjects.notifications(pattern))
        if not any(covers(spec.name, pattern) for spec in processed):
            wanted.append(subjects.publications(pattern))
            if processed:
                subscription.exclude(publications_of(processed))
        if replay is None or replay is False:
            for subject in wanted:
                await subscription.attach(connection, subject)
            await connection.flush()
            return
        if len(wanted) != 1 or not any(covers(spec.name, pattern) and spec.replicas for spec in specs):
            raise InputError(
                f"topic {pattern!r}: replay needs one durable topic (with `replicas` in the configuration)"
            )
        since, last = replay_range(replay)
        request = HistoryRequest(pattern, bool(processed), since, None, last)
        query = HistoryQuery(connection, StoreFinder(connection, self._choice), request, self._codec.decode, None)
        await replay_then_live(subscription, connection, wanted[0], query)

    async def _begin_channel(
        self,
        subscription: Subscription,
        channel: str,
        params: Mapping[str, Any],
        replay: bool | int | datetime | timedelta | None,
    ) -> None:
        self._live()
        assert self._channels is not None
        answer = await self._channels.join(channel, params)
        connection = self._live()  # it may have moved while it asked
        name = f"{channel}.{answer.key}"
        subscription.adopt(asyncio.create_task(self._channels.hold(name), name=f"hold {name}"))
        subscription.drop_duplicates()
        subject = subjects.channel_results(channel, answer.key)
        if replay is None or replay is False:
            await subscription.attach(connection, subject)
            await connection.flush()
            return
        since, last = replay_range(replay)
        request = HistoryRequest(name, False, since, None, last, results=True)
        query = HistoryQuery(connection, FixedStore(answer.store), request, self._codec.decode, None)
        await replay_then_live(subscription, connection, subject, query)


def connect(
    urls: str | Sequence[str] = "nats://127.0.0.1:4222",
    *,
    coordinator: str | Sequence[str] | None = None,
    name: str | None = None,
    codec: Codec = JSON,
    timeout: float = 5.0,
    mobile: bool = False,
    coordinate: Coordinate | None = None,
    report_seconds: float = 5.0,
) -> Client:
    """A client of the first broker that answers: `async with nearcast.connect(urls) as client`.

    coordinator: any broker through which a coordinator can be asked; it gives this client a home, learns how it fares
    (each `report_seconds`) and may move it to a better one, without a gap. mobile: this device changes its place, so
    its coordinate is that of the nearest site plus its access delay. coordinate: it knows its place by other means.
    """
    given = urls if coordinator is None else coordinator
    addresses = [given] if isinstance(given, str) else list(given)
    if not addresses:
        raise InputError("urls is empty; name at least one broker, as in nats://127.0.0.1:4222")
    client = Client(addresses, check_name(name or f"c{secrets.token_hex(6)}", "client"), codec, timeout)
    if coordinator is not None:
        # A client without a coordinator does not pay for this.
        from nearcast.client.presence import Presence
        from nearcast.client.whereabouts import Whereabouts

        client._presence = Presence(client, Whereabouts(coordinate, mobile=mobile), report_seconds)
    return client
