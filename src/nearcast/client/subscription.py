"""A subscription: a bounded buffer between the socket and whoever reads it, as an iterator or through a callback."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

from nearcast.client.delivered_ids import DeliveredIds, NewestTimes
from nearcast.errors import NearcastError
from nearcast.message import Message, PayloadError, T_co
from nearcast.nats import message_spans
from nearcast.nats.deduplication import RecentIds
from nearcast.nats.stamp import header_block, is_forged, late_block, stamp_of
from nearcast.nats.tasks import TaskSet

if TYPE_CHECKING:
    from nearcast.client.cursor import Cursor
    from nearcast.client.owner_process import OwnerProcess
    from nearcast.nats.connection import Connection, Handler

__all__ = ["Callback", "OnError", "Overflow", "SlowConsumerError", "Subscription"]

_log = logging.getLogger(__name__)

_LONGEST_LOG = 100_000
_OVERLAP_SECONDS = 5.0  # a message that came on one connection may still be on its way on the other

Overflow = Literal["drop_oldest", "raise"]
Callback = Callable[[Message], Awaitable[None] | None]
OnError = Callable[[PayloadError], Awaitable[None] | None]


class SlowConsumerError(NearcastError, BufferError):
    """Messages came faster than they were read, and the buffer overflowed."""

    def __init__(self, topic: str, dropped: int, buffer: int) -> None:
        super().__init__(f"subscription to {topic}: {dropped} messages did not fit into the buffer of {buffer}")
        self.topic, self.dropped, self.buffer = topic, dropped, buffer


class _Attached(NamedTuple):
    """A subscription of a connection. handler: takes its messages, if the owner does not."""

    connection: Connection
    subscription: Any
    handler: Handler | None


class Subscription(Generic[T_co]):
    """Messages of a topic or pattern. `await` it (or enter it, or iterate) to begin; leave or `close` it to end.

    received, dropped, duplicates, invalid: counts since it began; invalid ones are not of the type asked for.
    forged: not delivered, because the id names another publisher than the topic does (`gps.@car7`).
    filled: of the received ones, those that came from a store after a gap (`message.late`).
    """

    def __init__(
        self,
        topic: str,
        begin: Callable[[Subscription], Awaitable[None]],
        decode: Callable[[bytes], Any],
        callback: Callback | None,
        buffer: int,
        on_overflow: Overflow,
        *,
        of_channel: bool = False,
        typed: bool = False,
        on_error: OnError | None = None,
    ) -> None:
        """typed: messages that cannot be decoded are not given to the reader but to `on_error`."""
        if buffer < 1:
            raise NearcastError(f"subscription to {topic}: buffer is {buffer}; at least 1 is needed")
        if on_overflow not in ("drop_oldest", "raise"):
            raise NearcastError(f"subscription to {topic}: on_overflow is {on_overflow!r}; allowed: drop_oldest, raise")
        self.topic, self.buffer = topic, buffer
        self.received = self.dropped = self.duplicates = self.invalid = self.filled = self.forged = 0
        self.of_channel, self._typed, self._on_error = of_channel, typed, on_error
        self._begin, self.decode, self._callback, self._on_overflow = begin, decode, callback, on_overflow
        self._messages: deque[Message] = deque()
        self.deliver: Callable[[Message], None] = self.put  # where live messages go; elsewhere while the past is read
        self._failure: NearcastError | None = None
        self._has_room = asyncio.Event()
        self._waiter: asyncio.Future[None] | None = None
        self._attached: list[_Attached] = []
        self._recent: RecentIds | None = None
        self._log: list[tuple[str, bytes, bytes]] | None = None  # subject, id and payload of what came
        self._note_log: Callable[[], object] = lambda: None
        self.newest = NewestTimes()
        self.excluded: Callable[[str], bool] | None = None  # messages on subjects for which it holds are left out
        self.takes_forged = False  # dead letters are what others refused
        self.owner: OwnerProcess | None = None  # that began it
        self.cursor: Cursor | None = None  # knows of each message that is read
        self._tasks = TaskSet()
        self._replay: asyncio.Task[None] | None = None
        self._on_close: list[Callable[[], object]] = []
        self._begun = self._closed = self._always_unique = False
        self._overlaps = 0
        self.sampler: Callable[[bytes, bytes], None] | None = None  # gets payload and headers of messages
        self._overflowed = 0

    @property
    def pending(self) -> int:
        """Messages in the buffer."""
        return len(self._messages)

    def __await__(self) -> Generator[Any, None, Subscription[T_co]]:
        return self._start().__await__()

    async def __aenter__(self) -> Subscription[T_co]:
        return await self._start()

    async def __aexit__(self, *exc_info: object) -> None:
        if self.cursor is not None and exc_info[0] is not None:
            self.cursor.discard()
        await self.close()

    def __aiter__(self) -> Subscription[T_co]:
        return self

    async def __anext__(self) -> Message[T_co]:
        if not self._begun:
            await self._start()
        if self.owner is not None:
            self.owner.check()
        if self.cursor is not None:
            self.cursor.given(None)  # who asks for the next one has read the one before
        while True:
            while not self._messages:
                if self._overflowed:
                    self._raise_overflow()
                if self._failure is not None:
                    raise self._failure
                if self._closed:
                    raise StopAsyncIteration
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._overflowed:
                self._raise_overflow()
            self._has_room.set()
            message = self._messages.popleft()
            if self.cursor is not None:
                self.cursor.given(message)
            if not self._typed or await self._is_valid(message):
                return message

    async def close(self) -> None:
        """End it. What is in the buffer can still be read."""
        if self._closed:
            return
        self._closed = True
        if self.owner is not None and self.owner.forked:  # it goes on in the process that began it
            return
        if self.cursor is not None:
            self.cursor.given(None)
        async with contextlib.AsyncExitStack() as last_first:  # all of it, though a part fails
            last_first.push_async_callback(self._tasks.cancel)
            last_first.callback(self._wake)
            for attached in self._attached:
                last_first.push_async_callback(attached.connection.unsubscribe_raw, attached.subscription)
            for callback in reversed(self._on_close):
                last_first.callback(callback)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Have a function called when it is closed."""
        self._on_close.append(callback)

    async def _start(self) -> Subscription[T_co]:
        if not self._begun:
            self._begun = True
            try:
                await self._begin(self)
            except BaseException:
                await self.close()
                raise
            if self._callback is not None:
                self._tasks.spawn(self._call_back(self._callback), name=f"callback {self.topic}")
        return self

    async def attach(self, connection: Connection, subject: str, handler: Handler | None = None) -> None:
        """Take messages from a subject of a connection. handler: what takes them instead."""
        subscription = await connection.subscribe_raw(subject, handler or self.take)
        self._attached.append(_Attached(connection, subscription, handler))

    async def attach_also(self, old: Connection, new: Connection) -> None:
        """Take messages from a second connection as well; each id once. Those without one come from the first only."""
        if self._closed:
            return
        self._overlaps += 1
        self._recent = self._recent or RecentIds()

        def take_with_id(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            if stamp_of(headers):
                self.take(subject, reply, payload, headers)

        for one in [one for one in self._attached if one.connection is old]:
            subscription = await new.subscribe_raw(one.subscription.subject, one.handler or take_with_id)
            self._attached.append(_Attached(new, subscription, one.handler))

    def attached_only_to(self, old: Connection, new: Connection) -> bool:
        """Whether it takes messages from the old connection and not from the new one: it began during the move."""
        attached = {id(one.connection) for one in self._attached}
        return not self._closed and id(old) in attached and id(new) not in attached

    async def detach(self, old: Connection) -> None:
        """Take messages from the other connection alone."""
        for one in list(self._attached):
            if one.connection is old:
                self._attached.remove(one)
                await one.connection.drain_subscription(one.subscription)
            elif one.handler is None:
                one.connection.set_handler(one.subscription, self.take)
        asyncio.get_running_loop().call_later(_OVERLAP_SECONDS, self._forget_ids, self._overlaps)

    def _forget_ids(self, overlap: int) -> None:
        if overlap == self._overlaps and not self._always_unique:
            self._recent = None

    def start_replay(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the past read in the background."""
        self._replay = self._tasks.spawn(work, name=f"replay {self.topic}")

    async def replay_done(self) -> None:
        """Wait until nothing but live messages is read. Who gives up waiting does not end the replay."""
        if self._replay is not None:
            await asyncio.wait([self._replay])

    def track_deliveries(self, delivered: DeliveredIds, note_log: Callable[[], object]) -> None:
        """Take each id once from now on, and keep a log of what came. note_log: calls `take_log`, if that is long."""
        self._always_unique = True
        self._recent, self._log, self._note_log = delivered, [], note_log

    def take_log(self) -> list[tuple[str, bytes, bytes]]:
        """Subject, id and payload (of those without an id) of what came since the last call."""
        log, self._log = self._log or [], []
        return log

    def note_delivered(self, message_ids: Iterable[bytes]) -> None:
        """Past messages were delivered: they are not to come again."""
        if self._recent is not None:
            for message_id in message_ids:
                self._recent.seen(message_id)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something in the background for as long as the subscription is open."""
        self._tasks.spawn(work, name=f"{name} {self.topic}")

    def fail(self, error: NearcastError) -> None:
        """Raise this to the reader once the buffer is empty."""
        self._failure = error
        self._wake()

    async def put_when_there_is_room(self, message: Message) -> None:
        """One past message into the buffer; it waits for the reader instead of dropping anything."""
        while len(self._messages) >= self.buffer:
            self._has_room.clear()
            await self._has_room.wait()
        self.put(message)

    def take(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        """One message from the socket."""
        if self.excluded is not None and self.excluded(subject):
            return
        if self._recent is not None:
            message_id = stamp_of(headers)
            if self._recent.seen(message_id):
                self.duplicates += 1
                return
            if self._log is not None:
                self._log.append((subject, message_id, b"" if message_id else payload))
                if len(self._log) >= _LONGEST_LOG:
                    self._note_log()
                if self.newest.is_behind(subject[4:], message_id) and headers == header_block(message_id):
                    headers = late_block(message_id, 1)
        if self.sampler is not None:
            self.sampler(payload, headers)
        if message_spans.active is not None:
            message_spans.active.received(stamp_of(headers), subject[4:])
        self.deliver(Message(subject[4:], payload, headers, self.decode))

    def put(self, message: Message) -> None:
        """One message into the buffer."""
        if "@" in message.topic and not self.takes_forged and is_forged(message.topic, message.id.encode()):
            self.forged += 1
            return
        self.received += 1
        messages = self._messages
        if len(messages) >= self.buffer:
            self.dropped += 1
            if self._on_overflow == "raise":
                self._overflowed += 1
                return
            messages.popleft()
        messages.append(message)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _is_valid(self, message: Message) -> bool:
        try:
            _ = message.data
        except PayloadError as error:
            self.invalid += 1
            if self._on_error is not None:
                await self._call(self._on_error, error, message)
            else:  # one line is enough: whoever publishes one publishes more
                _log.log(logging.WARNING if self.invalid == 1 else logging.DEBUG, "dropped an invalid %s", error)
            return False
        return True

    async def _call(self, function: Callable[[Any], Awaitable[None] | None], argument: object, of: Message) -> None:
        """Call a user's function; what it raises is logged."""
        try:
            outcome = function(argument)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            _log.exception("callback for %s failed on message %s", self.topic, of.id)

    def _raise_overflow(self) -> None:
        dropped, self._overflowed = self._overflowed, 0
        raise SlowConsumerError(self.topic, dropped, self.buffer)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _call_back(self, callback: Callback) -> None:
        """Call the user's function for each message, in order; what it raises is logged, and the next one comes."""
        while True:
            try:
                async for message in self:
                    await self._call(callback, message, message)
                return
            except SlowConsumerError as error:
                _log.error("%s", error)
