"""NATS for code that is not asynchronous: Spark's Python workers, data source runners and the driver's threads.

One connection per process and address, held by a thread with its own event loop, so that it answers the server's pings
between micro-batches and is not opened again for each of them.

A server that is killed leaves requests without an answer, and so does a store behind a broker that is up. Questions
are asked again, at once when the connection was lost, so that a query goes on when the server is back.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from nats.errors import Error as NatsError

from nearcast.errors import NearcastError
from nearcast.nats.connection import Connection, ConnectionLostError, open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.kv import BucketError, BucketNotFoundError
from nearcast.nats.stream_publisher import OutgoingMessage, StreamPublisher
from nearcast.nats.streams import StreamBounds, StreamError, StreamNotFoundError, StreamReader
from nearcast.nats.tasks import cancel_and_wait

__all__ = ["BlockingConnection", "connection_to"]

T = TypeVar("T")
_TIMEOUT = 30.0
# The first attempt of a question; each further one may take twice as long: the store may be slow, not away.
_FIRST_ATTEMPT, _PAUSE = 3.0, 0.1
_REPEATED = (StreamError, BucketError, ConnectionLostError, NatsError, TimeoutError)


class BlockingConnection:
    """A connection and the thread that it lives in."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._loop = asyncio.new_event_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._loop.run_forever, name="nats connection", daemon=True).start()
        try:
            self.connection: Connection = self.call(self._open())
        except NearcastError:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise
        self._readers: dict[str, StreamReader] = {}
        self._lock = threading.Lock()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the connection's thread; `result()` of what is returned waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connection's thread and wait for it."""
        return self.start(coroutine).result()

    def ask(self, question: Callable[[], Coroutine[Any, Any, T]], within: float = _TIMEOUT) -> T:
        """Call a coroutine function that changes nothing, and again until there is an answer; its last error if there
        is none in time."""
        return self.call(self.answer(question, within))

    async def answer(self, question: Callable[[], Coroutine[Any, Any, T]], within: float = _TIMEOUT) -> T:
        """As `ask`, in the connection's thread."""
        deadline, limit = self._loop.time() + within, _FIRST_ATTEMPT
        while True:
            left = deadline - self._loop.time()
            try:
                return await self._unless_lost(question(), min(limit, left))
            except (StreamNotFoundError, BucketNotFoundError):
                raise
            except _REPEATED:
                if self._loop.time() + _PAUSE >= deadline:
                    raise
            limit *= 2
            await asyncio.sleep(_PAUSE)

    def reader(self, prefix: str) -> StreamReader:
        """Reads streams of the store with this prefix of its JetStream API."""
        with self._lock:
            if prefix not in self._readers:
                self._readers[prefix] = StreamReader(self.connection, prefix, _TIMEOUT)
            return self._readers[prefix]

    def bounds(self, stream: str, prefix: str) -> StreamBounds:
        """The first and last sequence of a stream."""
        return self.ask(lambda: self.reader(prefix).bounds(stream))

    def publish(self, messages: Sequence[OutgoingMessage], timeout: float = _TIMEOUT) -> int:
        """As `StreamPublisher.publish`; StreamError at once when the connection is lost, or after some seconds: some
        may be stored all the same."""
        publisher = StreamPublisher(self.connection, timeout)
        return self.call(self._unless_lost(publisher.publish(messages)))

    def publish_in_order(self, messages: Sequence[OutgoingMessage], timeout: float = _TIMEOUT) -> int:
        """As `StreamPublisher.publish_in_order`, and like `publish`."""
        publisher = StreamPublisher(self.connection, timeout)
        return self.call(self._unless_lost(publisher.publish_in_order(messages)))

    async def _unless_lost(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """The result of work that needs the connection; StreamError when that is lost, or at the limit."""
        task, lost = asyncio.ensure_future(work), self._lost
        first: list[asyncio.Future[Any]] = [task, lost]
        try:
            await asyncio.wait(first, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                await cancel_and_wait(task)
        raise StreamError("the connection was lost" if lost.done() else f"no answer within {limit or 0:.1f} s")

    async def _disconnected(self) -> None:
        lost, self._lost = self._lost, self._loop.create_future()
        lost.set_result(None)

    async def _open(self) -> Connection:
        return await open_connection(
            self._servers,
            name=f"spark-{os.getpid()}",
            timeout=10,
            on_disconnect=self._disconnected,
            credentials=given_credentials(),
        )


_connections: dict[tuple[int, tuple[str, ...]], BlockingConnection] = {}
_lock = threading.Lock()


def connection_to(servers: Sequence[str]) -> BlockingConnection:
    """The connection of this process to these servers, opened by the first call."""
    key = (os.getpid(), tuple(servers))
    with _lock:
        if key not in _connections:
            _connections[key] = BlockingConnection(servers)
        return _connections[key]
