"""NATS for code that is not asynchronous: Spark's Python workers, data source runners and the driver's threads.

One connection per process and address, held by a thread with its own event loop, so that it answers the server's pings
between micro-batches and is not opened again for each of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from nearcast.errors import NearcastError
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.stream_publisher import OutgoingMessage, StreamPublisher
from nearcast.nats.streams import StreamBounds, StreamReader

__all__ = ["BlockingConnection", "connection_to"]

T = TypeVar("T")
_TIMEOUT = 30.0


class BlockingConnection:
    """A connection and the thread that it lives in."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nats connection", daemon=True).start()
        try:
            self.connection: Connection = self.call(self._open())
        except NearcastError:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise
        self._publisher = StreamPublisher(self.connection, _TIMEOUT)
        self._readers: dict[str, StreamReader] = {}
        self._lock = threading.Lock()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the connection's thread; `result()` of what is returned waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connection's thread and wait for it."""
        return self.start(coroutine).result()

    def reader(self, prefix: str) -> StreamReader:
        """Reads streams of the store with this prefix of its JetStream API."""
        with self._lock:
            if prefix not in self._readers:
                self._readers[prefix] = StreamReader(self.connection, prefix, _TIMEOUT)
            return self._readers[prefix]

    def bounds(self, stream: str, prefix: str) -> StreamBounds:
        """The first and last sequence of a stream."""
        return self.call(self.reader(prefix).bounds(stream))

    def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """As `StreamPublisher.publish`."""
        return self.call(self._publisher.publish(messages))

    def publish_in_order(self, messages: Sequence[OutgoingMessage]) -> int:
        """As `StreamPublisher.publish_in_order`."""
        return self.call(self._publisher.publish_in_order(messages))

    async def _open(self) -> Connection:
        return await open_connection(
            self._servers, name=f"spark-{os.getpid()}", timeout=10, credentials=given_credentials()
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
