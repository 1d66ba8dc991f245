"""The client: publish, subscribe, and ask for the past."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from nearcast.client.acknowledgements import Receipt
from nearcast.client.arguments import check_arguments, check_parameters, checked_position
from nearcast.client.cursor import Cursor, cursor_path
from nearcast.client.history import History, HistoryQuery, history_request
from nearcast.client.store_finder import StoreFinder
from nearcast.client.subscribing import begin_channel, begin_dead_letters, begin_topic
from nearcast.client.subscription import Callback, OnError, Overflow, Subscription
from nearcast.client.topic_lookup import look_up_topics
from nearcast.codec import Codec, typed_decoder
from nearcast.domain.topic import TopicSpec, check_pattern, covers
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.client.coordination import Coordination
    from nearcast.client.publishing import Publisher
    from nearcast.client.replay import Replay
    from nearcast.client.session import Sessions
    from nearcast.filters import Condition
    from nearcast.message import Message
    from nearcast.nats.connection import Connection

__all__ = ["Client"]

_BUFFER = 65_536
T = TypeVar("T")


class Client:
    """A connection to Nearcast; made by `nearcast.connect` and used as an async context manager.

    name: this client's name, unique among all. coordination: its part in the control plane, if it has one.
    """

    def __init__(
        self,
        sessions: Sessions,
        publisher: Publisher,
        subscriptions: set[Subscription],
        codec: Codec,
        coordination: Coordination | None,
    ) -> None:
        self.name, self.coordination = sessions.name, coordination
        self._sessions, self._publisher, self._codec = sessions, publisher, codec
        self._subscriptions = subscriptions  # those that have begun and were not closed
        self._choice = random.Random(self.name)

    async def __aenter__(self) -> Client:
        if self.coordination is not None:
            await self.coordination.register()
        try:
            await self._sessions.start()
            if self._publisher.spool is not None:
                self._publisher.spool.start()
            if self.coordination is not None:
                await self.coordination.start()
        except BaseException:
            await self._sessions.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._sessions.owner.forked:  # it is still open in the process that opened it
            return
        async with contextlib.AsyncExitStack() as last_first:  # all of it, though a part fails
            last_first.push_async_callback(self._sessions.close)
            if self._publisher.spool is not None:
                last_first.push_async_callback(self._publisher.spool.stop)
            for subscription in self._subscriptions:
                last_first.push_async_callback(subscription.close)
            if self.coordination is not None:
                last_first.push_async_callback(self.coordination.stop)

    @property
    def spooled(self) -> int:
        """Publications in the spool: their stores have not acknowledged them yet."""
        return self._publisher.spool.waiting if self._publisher.spool is not None else 0

    @property
    def home(self) -> str:
        """The site it is connected to."""
        return self._sessions.home

    @property
    def position(self) -> tuple[float, float] | None:
        """Where it is, latitude and longitude in degrees, for the console's map. Set it as it moves.

        A client of a coordinator tells it with its reports; nothing is decided by it.
        """
        return self.coordination.position if self.coordination is not None else None

    @position.setter
    def position(self, position: tuple[float, float] | None) -> None:
        if self.coordination is not None:
            self.coordination.position = checked_position(position)

    @property
    def reconnects(self) -> int:
        """How often a lost connection came back."""
        return self._sessions.reconnects

    @property
    def connection(self) -> Connection:
        """The NATS connection to the broker of the home, for what NATS does and Nearcast has no method for."""
        return self._sessions.connection()

    async def publish(self, topic: str, data: Any, *, quorum: int | None = None, timeout: float = 5.0) -> Receipt:
        """Publish. Bytes go as they are, everything else through the codec.

        Returns when the message is on its way; for a topic with a write quorum (its own or `quorum`), when that many
        stores have it, and raises QuorumError when they do not say so in time. With a spool it waits for the stores
        however long it takes; who gives up waiting does not take the publication back.
        """
        publisher = self._publisher
        route = publisher.routes.get(topic) or await publisher.topic_route(topic)
        sent = publisher.send(topic, route, data, quorum, timeout)
        return sent if isinstance(sent, Receipt) else await _receipt(sent)

    async def publish_nowait(
        self, topic: str, data: Any, *, quorum: int | None = None, timeout: float = 5.0
    ) -> asyncio.Future[Receipt]:
        """Publish without waiting for the stores: many may be under way. Await what it returns for the receipt."""
        route = self._publisher.routes.get(topic) or await self._publisher.topic_route(topic)
        sent = self._publisher.send(topic, route, data, quorum, timeout)
        waited = sent if isinstance(sent, Receipt) else await sent
        if not isinstance(waited, Receipt):
            return waited
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        done.set_result(waited)
        return done

    async def feed(self, dataset: str, record: Any, *, timeout: float = 5.0) -> Receipt:
        """Give a record to a dataset. Returns when the cloud's store has it; it is then kept once, or quarantined."""
        route = await self._publisher.dataset_route(dataset)
        sent = self._publisher.send(dataset, route, record, None, timeout)
        return sent if isinstance(sent, Receipt) else await _receipt(sent)

    @overload
    def subscribe(
        self,
        topic: str | None = None,
        *,
        type: type[T],
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        callback: Callable[[Message[T]], Awaitable[None] | None] | None = None,
        on_error: OnError | None = None,
        replay: Replay = None,
        cursor: str | Path | None = None,
        buffer: int = _BUFFER,
        on_overflow: Overflow = "drop_oldest",
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self,
        topic: str | None = None,
        *,
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        replay: Replay = None,
        cursor: str | Path | None = None,
        buffer: int = _BUFFER,
        on_overflow: Overflow = "drop_oldest",
    ) -> Subscription: ...

    def subscribe(
        self,
        topic: str | None = None,
        *,
        type: type[Any] | None = None,  # noqa: A002
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        on_error: OnError | None = None,
        replay: Replay = None,
        cursor: str | Path | None = None,
        buffer: int = _BUFFER,
        on_overflow: Overflow = "drop_oldest",
    ) -> Subscription:
        """Messages of a topic, or of all topics a pattern stands for (`*` one level, a last `>` all further ones).

        A topic without a processor gives its publications, one with a processor its notifications. `await` the result,
        enter it or iterate it to begin. replay: past messages first; True for all that is kept, a number for the last
        so many, a time or a time span for those since. cursor: a name or a file; the subscription (to a durable topic
        or a channel) continues where the last process with this cursor stopped reading; `replay` is for the first time.

        type: what the data of each message is decoded and validated as, by msgspec. A message that is not of the type
        is counted (`subscription.invalid`) and given to `on_error` as a PayloadError, not to the reader.

        With `channel` and `params` instead of a topic: the results of a channel for these values of its parameters.
        """
        check_arguments("subscribe", locals())
        check_parameters(params)
        if (topic is None) == (channel is None):
            raise InputError(f"subscribe takes a topic or a channel: topic is {topic!r}, channel is {channel!r}")
        if on_error is not None and type is None:
            raise InputError("on_error needs a type: without one, a payload is decoded when its data is read")
        if topic is not None:
            check_pattern(topic)
        followed = Cursor(cursor_path(cursor), topic or channel or "") if cursor is not None else None

        async def begin(subscription: Subscription) -> None:
            self._note_begun(subscription)
            if self.coordination is not None:
                self.coordination.observe(subscription)
            if channel is not None:
                await begin_channel(subscription, self._sessions, channel, params or {}, replay, self._choice, followed)
            else:
                await begin_topic(subscription, self._sessions, replay, self._choice, followed)

        decode = self._codec.decode if type is None else typed_decoder(type, self._codec)
        return Subscription(
            topic or channel or "",
            begin,
            decode,
            callback,
            buffer,
            on_overflow,
            of_channel=channel is not None,
            typed=type is not None,
            on_error=on_error,
        )

    def subscribe_channel(self, name: str, /, **params: Any) -> Subscription:
        """The results of a channel for these values of its parameters; `subscribe(channel=…)` takes options, too."""
        return self.subscribe(channel=name, params=params)

    def dead_letters(self, topic: str) -> Subscription:
        """Publications that a processor could not handle, as they are given up; `message.reason` says why."""
        check_pattern(topic)

        async def begin(subscription: Subscription) -> None:
            self._note_begun(subscription)
            await begin_dead_letters(subscription, self._sessions)

        return Subscription(topic, begin, self._codec.decode, None, _BUFFER, "drop_oldest")

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

        Only messages that pass the whole filter cross the network. They come in the order of their times, the same at
        every store: `message.published`; for a message without one (MQTT) when the store received it. A processed topic
        gives its notifications, unless its `publications` are asked for.
        """
        request = history_request(topic, since, until, last, where)

        async def prepare() -> HistoryQuery:
            processed = any(spec.processed and covers(spec.name, topic) for spec in await self.topics(topic))
            wanted = msgspec.structs.replace(request, notifications=processed and not publications)
            connection = self._sessions.connection
            return HistoryQuery(connection, StoreFinder(connection, self._choice).find, wanted)

        return History(prepare, self._codec.decode, last)

    async def topics(self, pattern: str) -> list[TopicSpec]:
        """What is configured for the topics within a pattern. On a NATS server that is no site's broker: nothing."""
        return await look_up_topics(self._publisher.connection, pattern)

    async def flush(self) -> None:
        """Wait until the broker has taken all that was published so far."""
        await self._publisher.connection().flush()

    def _note_begun(self, subscription: Subscription) -> None:
        """From now on it moves with the client. QuotaError while the client is suspended."""
        self._publisher.connection()
        subscription.owner = self._sessions.owner
        self._subscriptions.add(subscription)
        subscription.on_close(lambda: self._subscriptions.discard(subscription))


async def _receipt(sent: Awaitable[Receipt | asyncio.Future[Receipt]]) -> Receipt:
    waited = await sent
    return waited if isinstance(waited, Receipt) else await waited
