"""The client: connect to the nearest site, publish, subscribe, and ask for the past."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from nearcast.client.channels import ChannelMember, FixedStore
from nearcast.client.history import HistoryQuery, StoreFinder, condition_tree, microseconds
from nearcast.client.quorum import Acknowledgements, Receipt
from nearcast.client.replay import replay_then_live
from nearcast.client.subscription import Overflow, Subscription
from nearcast.domain.errors import InputError, NearcastError
from nearcast.domain.site import check_name
from nearcast.domain.topic import TopicSpec, check_pattern, check_topic, covers, matches
from nearcast.wire import subjects
from nearcast.wire.codec import JSON, Codec
from nearcast.wire.connection import (
    RESERVED_BYTES,
    Connection,
    ConnectionLostError,
    PayloadTooLargeError,
    open_connection,
)
from nearcast.wire.services import HistoryRequest, TopicsAnswer, TopicsRequest
from nearcast.wire.stamp import header_block

if TYPE_CHECKING:
    from nearcast.client.subscription import Callback
    from nearcast.wire.predicate import Condition

__all__ = ["Client", "connect"]

_log = logging.getLogger(__name__)
_BUFFER = 65_536
_AGENT_LIMIT = 10.0
_BARE_SERVER = re.compile("N[A-Z2-7]{55}")  # the key a nats-server is named after when nobody named it


class _Route:
    """How a topic's publications leave this client."""

    __slots__ = ("quorum", "spec", "subject")

    def __init__(self, topic: str, spec: TopicSpec) -> None:
        self.subject, self.spec, self.quorum = subjects.publications(topic), spec, spec.quorum


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
        self._routes: dict[str, _Route] = {}
        self._subscriptions: list[Subscription] = []
        self._choice = random.Random(name)
        self._published = 0
        self._identity = b""
        self._largest = 0

    async def __aenter__(self) -> Client:
        self._connection = await open_connection(
            self._urls, name=self.name, timeout=self._timeout, on_reconnect=self._came_back
        )
        self._settle_in(self._connection)
        self._acknowledgements = Acknowledgements(self._connection)
        await self._acknowledgements.start()
        self._channels = ChannelMember(self.name, self._connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
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
        if connection.crowded:
            await connection.room()
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
        if (topic is None) == (channel is None):
            raise InputError("subscribe needs a topic or a channel, and not both")
        if topic is not None:
            check_pattern(topic)

        async def begin(subscription: Subscription) -> None:
            if channel is not None:
                await self._begin_channel(subscription, channel, params or {}, replay)
            else:
                await self._begin(subscription, replay)

        subscription = Subscription(topic or channel or "", begin, self._codec.decode, callback, buffer, on_overflow)
        self._subscriptions.append(subscription)
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
    ) -> _LazyHistory:
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
        return _LazyHistory(self, request, publications)

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
        self, topic: str, route: _Route, data: Any, needed: int, timeout: float
    ) -> asyncio.Future[Receipt]:
        if not 0 < needed <= len(route.spec.replicas):
            have = ", ".join(route.spec.replicas) or "no stores"
            raise InputError(f"topic {topic}: quorum is {needed}; the topic is kept by {have}")
        payload = data if type(data) is bytes else self._encode(topic, data)
        if len(payload) > self._largest:
            raise PayloadTooLargeError(topic, len(payload), self._largest)
        message_id = self._next_id()
        assert self._acknowledgements is not None
        return await self._acknowledgements.send(
            topic, route.subject, message_id.decode(), header_block(message_id), payload, needed, timeout
        )

    async def _find_route(self, topic: str) -> _Route:
        self._live()
        check_topic(topic)
        specs = await self.topics(topic)
        route = self._routes[topic] = _Route(topic, specs[0] if specs else TopicSpec(topic))
        return route

    async def topics(self, pattern: str) -> list[TopicSpec]:
        """What is configured for the topics within a pattern. A NATS server that is no site's promises nothing."""
        request = msgspec.json.encode(TopicsRequest(pattern))
        clock = asyncio.get_running_loop().time
        deadline = clock() + _AGENT_LIMIT
        while True:
            try:
                reply = await self._live().request(subjects.topics_lookup(self.home or "none"), request, timeout=1.0)
                break
            except (NatsError, TimeoutError) as error:
                if isinstance(error, NoRespondersError) and _BARE_SERVER.fullmatch(self.home):
                    return []
                if clock() > deadline:
                    if not self._live().is_connected:
                        raise ConnectionLostError(f"topic {pattern}: no broker answers to ask about it") from error
                    raise NearcastError(
                        f"topic {pattern}: the agent of site {self.home} does not answer; is `nearcast site run` up?"
                    ) from error
            await asyncio.sleep(0.1)  # a site that has just come back: its agent follows its broker
        answer = msgspec.json.decode(reply.data, type=TopicsAnswer)
        if answer.error:
            raise InputError(answer.error)
        return answer.topics

    async def _begin(self, subscription: Subscription, replay: bool | int | datetime | timedelta | None) -> None:
        connection, pattern = self._live(), subscription.topic
        specs = await self.topics(pattern)
        processed = [spec for spec in specs if spec.processed]
        if any(spec.replicas for spec in specs):
            subscription.drop_duplicates()  # a publication may be sent again for its quorum
        wanted = []
        if processed:
            wanted.append(subjects.notifications(pattern))
        if not any(covers(spec.name, pattern) for spec in processed):
            wanted.append(subjects.publications(pattern))
            if processed:
                subscription.exclude(_publications_of(processed))
        if replay is None or replay is False:
            for subject in wanted:
                await subscription.attach(connection, subject)
            await connection.flush()
            return
        if len(wanted) != 1 or not any(covers(spec.name, pattern) and spec.replicas for spec in specs):
            raise InputError(
                f"topic {pattern!r}: replay needs one durable topic (with `replicas` in the configuration)"
            )
        since, last = _replay_range(replay)
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
        connection = self._live()
        assert self._channels is not None
        answer = await self._channels.join(channel, params)
        name = f"{channel}.{answer.key}"
        subscription.adopt(asyncio.create_task(self._channels.hold(name), name=f"hold {name}"))
        subscription.drop_duplicates()
        subject = subjects.channel_results(channel, answer.key)
        if replay is None or replay is False:
            await subscription.attach(connection, subject)
            await connection.flush()
            return
        since, last = _replay_range(replay)
        request = HistoryRequest(name, False, since, None, last, results=True)
        query = HistoryQuery(connection, FixedStore(answer.store), request, self._codec.decode, None)
        await replay_then_live(subscription, connection, subject, query)


class _LazyHistory:
    """A history query that learns what the topic is when it is first iterated."""

    def __init__(self, client: Client, request: HistoryRequest, publications: bool) -> None:
        self._client, self._request, self._publications = client, request, publications
        self._query: HistoryQuery | None = None

    @property
    def store(self) -> str:
        """The site whose store answered."""
        return self._query.store if self._query else ""

    @property
    def bytes_received(self) -> int:
        """What crossed the network so far."""
        return self._query.bytes_received if self._query else 0

    async def __aiter__(self) -> Any:
        client, request = self._client, self._request
        connection = client._live()
        specs = await client.topics(request.topic)
        if not self._publications and any(spec.processed and covers(spec.name, request.topic) for spec in specs):
            request = msgspec.structs.replace(request, notifications=True)
        finder = StoreFinder(connection, client._choice)
        self._query = HistoryQuery(connection, finder, request, client._codec.decode, request.last)
        async for message in self._query:
            yield message


def connect(
    urls: str | Sequence[str] = "nats://127.0.0.1:4222",
    *,
    name: str | None = None,
    codec: Codec = JSON,
    timeout: float = 5.0,
) -> Client:
    """A client of the first broker that answers: `async with nearcast.connect(urls) as client`."""
    addresses = [urls] if isinstance(urls, str) else list(urls)
    if not addresses:
        raise InputError("urls is empty; name at least one broker, as in nats://127.0.0.1:4222")
    return Client(addresses, check_name(name or f"c{secrets.token_hex(6)}", "client"), codec, timeout)


def _publications_of(processed: list[TopicSpec]) -> Any:
    """Holds for the publications of processed topics; remembers the answer for each subject."""
    known: dict[str, bool] = {}

    def excluded(subject: str) -> bool:
        answer = known.get(subject)
        if answer is None:
            topic = subjects.topic_of(subject)
            answer = not subjects.is_notification(subject) and any(matches(spec.name, topic) for spec in processed)
            known[subject] = answer
        return answer

    return excluded


def _replay_range(replay: bool | int | datetime | timedelta) -> tuple[int | None, int | None]:
    if replay is True:
        return None, None
    if isinstance(replay, timedelta):
        replay = datetime.now(UTC) - replay
    if isinstance(replay, datetime):
        return microseconds(replay, "replay"), None
    if isinstance(replay, int) and replay > 0:
        return None, replay
    raise InputError(f"replay is {replay!r}; allowed: True, a number of messages, a time, a time span")
