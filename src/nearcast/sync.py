"""A synchronous client for scripts and notebooks: the asyncio client, on an event loop in a thread of its own.

with nearcast.sync.connect("nats://127.0.0.1:4222") as client:
    client.publish("gps.car7", {"kmh": 130})
    for message in client.subscribe("gps.car7", timeout=5):
        print(message.data)
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from nearcast.client import Client, Subscription
from nearcast.client import connect as connect_async
from nearcast.client.owner_process import OwnerProcess
from nearcast.errors import NearcastError
from nearcast.message import Message, T_co
from nearcast.nats.connection import ConnectionLostError

if TYPE_CHECKING:
    from nearcast.client import Receipt
    from nearcast.client.replay import Replay
    from nearcast.client.subscription import OnError
    from nearcast.filters import Condition

__all__ = ["SyncClient", "SyncSubscription", "connect"]

_HISTORY_CHUNK = 500  # messages that cross from one thread to the other at once
T = TypeVar("T")
P = ParamSpec("P")


class _LoopThread:
    """An event loop in a thread of its own. owner: the process that has the thread; a forked child has not."""

    def __init__(self, client: str) -> None:
        self.owner = OwnerProcess(client)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nearcast {client}", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An interrupt (Ctrl-C) cancels it."""
        if self.owner.forked:
            work.close()
            self.owner.check()
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            if self._loop.is_closed():
                raise ConnectionLostError("the client is closed")
            raise NearcastError("a synchronous client cannot be used in its own callback: it would wait for itself")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine without waiting for it."""
        if self._loop.is_closed() or self.owner.forked:
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncSubscription(Generic[T_co]):
    """Messages of a topic or channel, as an iterator. With a timeout it ends when none came for so many seconds."""

    def __init__(self, thread: _LoopThread, subscription: Subscription[T_co], timeout: float | None) -> None:
        self._thread, self._subscription, self._timeout = thread, subscription, timeout

    def __enter__(self) -> SyncSubscription[T_co]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> SyncSubscription[T_co]:
        return self

    def __next__(self) -> Message[T_co]:
        try:
            return self.get(self._timeout)
        except (TimeoutError, EOFError):
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Message[T_co]:
        """The next message. Raises TimeoutError when none comes in time, EOFError when the subscription is closed."""
        return self._thread.run(self._next(timeout))

    def close(self) -> None:
        """End it. What is in the buffer can still be read."""
        if self._thread.owner.forked:  # it goes on in the process that began it
            return
        self._thread.run(self._subscription.close())

    @property
    def received(self) -> int:
        """Messages that came."""
        return self._subscription.received

    @property
    def dropped(self) -> int:
        """Messages that did not fit into the buffer."""
        return self._subscription.dropped

    @property
    def invalid(self) -> int:
        """Messages that were not of the type asked for."""
        return self._subscription.invalid

    async def _next(self, timeout: float | None) -> Message[T_co]:
        try:
            async with asyncio.timeout(timeout):
                return await anext(self._subscription)
        except StopAsyncIteration:
            raise EOFError(f"subscription to {self._subscription.topic} is closed") from None


class SyncClient:
    """A client whose methods wait; made by `nearcast.sync.connect`. It may be used by several threads.

    name: this client's name. The options of each method are those of `nearcast.Client`.
    """

    def __init__(self, client: Client) -> None:
        self._client, self.name = client, client.name
        self._thread = _LoopThread(client.name)
        try:
            self._thread.run(client.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        self._open = True

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def home(self) -> str:
        """The site it is connected to."""
        return self._client.home

    @property
    def position(self) -> tuple[float, float] | None:
        """Where it is, latitude and longitude in degrees, for the console's map."""
        return self._client.position

    @position.setter
    def position(self, position: tuple[float, float] | None) -> None:
        self._client.position = position

    def publish(self, topic: str, data: Any, *, quorum: int | None = None, timeout: float = 5.0) -> Receipt:
        """Publish; waits for the stores of a topic with a write quorum."""
        return self._thread.run(self._client.publish(topic, data, quorum=quorum, timeout=timeout))

    def feed(self, dataset: str, record: Any, *, timeout: float = 5.0) -> Receipt:
        """Give a record to a dataset."""
        return self._thread.run(self._client.feed(dataset, record, timeout=timeout))

    @overload
    def subscribe(
        self,
        topic: str | None = None,
        *,
        type: type[T],
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        on_error: OnError | None = None,
        replay: Replay = None,
        timeout: float | None = None,
    ) -> SyncSubscription[T]: ...

    @overload
    def subscribe(
        self,
        topic: str | None = None,
        *,
        channel: str | None = None,
        params: Mapping[str, Any] | None = None,
        replay: Replay = None,
        timeout: float | None = None,
    ) -> SyncSubscription: ...

    def subscribe(self, topic: str | None = None, *, timeout: float | None = None, **options: Any) -> SyncSubscription:
        """Begin to take messages, and iterate over them. timeout: seconds without a message after which that ends."""
        subscription = self._client.subscribe(topic, **options)
        self._thread.run(_begin(subscription))
        return SyncSubscription(self._thread, subscription, timeout)

    def subscribe_channel(self, name: str, /, **params: Any) -> SyncSubscription:
        """The results of a channel for these values of its parameters."""
        return self.subscribe(channel=name, params=params)

    def history(
        self,
        topic: str,
        *,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        last: int | None = None,
        where: Condition | None = None,
        publications: bool = False,
    ) -> Iterator[Message]:
        """Past messages of a durable topic, from the nearest store that keeps it."""
        history = self._client.history(
            topic, since=since, until=until, last=last, where=where, publications=publications
        )
        return self._iterate(aiter(history))

    def flush(self) -> None:
        """Wait until the broker has taken all that was published so far."""
        self._thread.run(self._client.flush())

    def close(self) -> None:
        """End all subscriptions and the connection."""
        if self._open and not self._thread.owner.forked:
            self._open = False
            try:
                self._thread.run(self._client.__aexit__(None, None, None))
            finally:
                self._thread.stop()

    def _iterate(self, messages: AsyncGenerator[Message, None]) -> Iterator[Message]:
        try:
            while chunk := self._thread.run(_take(messages, _HISTORY_CHUNK)):
                yield from chunk
        finally:
            self._thread.spawn(messages.aclose())  # the reader may have stopped early


async def _begin(subscription: Subscription) -> None:
    await subscription


async def _take(messages: AsyncGenerator[Message, None], most: int) -> list[Message]:
    taken: list[Message] = []
    async for message in messages:
        taken.append(message)
        if len(taken) == most:
            break
    return taken


def _connected(make: Callable[P, Client]) -> Callable[P, SyncClient]:
    """A function with the arguments of one that makes a client; what it gives is connected."""

    def connect(*args: P.args, **options: P.kwargs) -> SyncClient:
        return SyncClient(make(*args, **options))

    # For whoever asks Python what the arguments are: a notebook, `help`.
    vars(connect)["__signature__"] = inspect.signature(make).replace(return_annotation=SyncClient)
    return connect


connect = _connected(connect_async)
connect.__doc__ = """A connected client: `with nearcast.sync.connect(urls) as client`, or call `close` at the end.

The arguments are those of `nearcast.connect`.
"""
