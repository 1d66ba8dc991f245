"""Reads and writes JetStream from code that is not asynchronous: Spark's Python workers and data source runners.

One connection per process and address, held by a thread with its own event loop, so that it answers the server's pings
between micro-batches and is not opened again for each of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from nats.errors import Error as NatsError

from nearcast.errors import NearcastError
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.stamp import header_block
from nearcast.nats.streams import DirectGet, RawBatch, StreamError

__all__ = ["Link", "StreamState", "link_to"]

T = TypeVar("T")
_TIMEOUT = 30.0
# Messages asked for with one request: large enough to keep the pipe full, small enough for the server's queue.
_AT_ONCE = 5_000
_UNACKNOWLEDGED = 4_096


@dataclass(frozen=True)
class StreamState:
    """The sequences a stream holds at a moment; an empty stream has `first` above `last`."""

    first: int
    last: int


class Link:
    """A connection and the thread it lives in."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nearcast link", daemon=True).start()
        self._waiting: dict[str, _Acks] = {}
        self._inbox = ""
        self._requests = 0
        try:
            self.connection: Connection = self.call(self._open())
        except NearcastError:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the link's thread; `result()` of what is returned waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the link's thread and wait for it."""
        return self.start(coroutine).result()

    def state(self, stream: str, prefix: str) -> StreamState:
        """First and last sequence of a stream."""
        reply = self.call(self._ask(f"{prefix}.STREAM.INFO.{stream}", b""))
        answer = json.loads(reply)
        if "error" in answer:
            raise StreamError(f"stream {stream}: {answer['error'].get('description', 'unknown error')}")
        return StreamState(int(answer["state"]["first_seq"]), int(answer["state"]["last_seq"]))

    def fetch(self, stream: str, prefix: str, first: int, last: int, subject: str = "") -> RawBatch:
        """Up to some thousand messages from `first` on; fewer than asked for means that there are no more to `last`."""
        return self.call(self._fetch(stream, prefix, first, min(last - first + 1, _AT_ONCE), subject))

    def start_fetch(self, stream: str, prefix: str, first: int, last: int, subject: str = "") -> Any:
        """As `fetch`, but return at once; `result()` of what is returned waits."""
        wanted = min(last - first + 1, _AT_ONCE)
        return self.start(self._fetch(stream, prefix, first, wanted, subject))

    def publish(self, messages: Sequence[tuple[str, str, bytes]]) -> int:
        """Store (subject, id, payload) messages; returns how many a stream had already under their ids."""
        return self.call(self._publish(messages))

    def publish_in_order(self, messages: Sequence[tuple[str, str, bytes]]) -> int:
        """Store (subject, id, payload) messages of one stream, with one acknowledgement for very many of them; returns
        the sequence of the last. The caller compares it: a store that cannot keep up drops messages without a word."""
        return self.call(self._publish_in_order(messages))

    async def _open(self) -> Connection:
        connection = await open_connection(self._servers, name=f"spark-{os.getpid()}", timeout=10)
        self._inbox = connection.new_inbox()
        await connection.subscribe_raw(f"{self._inbox}.*", self._arrived)
        self._direct = DirectGet(connection, _TIMEOUT)
        await connection.flush()
        return connection

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        try:
            return bytes((await self.connection.request(subject, payload, timeout=_TIMEOUT)).data)
        except (NatsError, TimeoutError) as error:
            why = "no store answers there" if type(error).__name__ == "NoRespondersError" else str(error) or "timed out"
            raise StreamError(f"{subject}: {why}") from error

    async def _fetch(self, stream: str, prefix: str, first: int, count: int, subject: str) -> RawBatch:
        request: dict[str, object] = {"seq": first, "batch": count}
        if subject:
            request["next_by_subj"] = subject
        return await self._direct.fetch(stream, prefix, request)

    def _arrived(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        token = subject[len(self._inbox) + 1 :]
        acks = self._waiting.get(token)
        if acks is not None:
            acks.take(payload, headers)

    async def _publish(self, messages: Sequence[tuple[str, str, bytes]]) -> int:
        duplicates = 0
        for start in range(0, len(messages), _UNACKNOWLEDGED):
            duplicates += await self._publish_some(messages[start : start + _UNACKNOWLEDGED])
        return duplicates

    async def _publish_in_order(self, messages: Sequence[tuple[str, str, bytes]]) -> int:
        sequence = 0
        for start in range(0, len(messages), _UNACKNOWLEDGED):
            some = messages[start : start + _UNACKNOWLEDGED]
            for subject, message_id, payload in some[:-1]:
                self.connection.send(subject, header_block(message_id.encode()), payload)
                if self.connection.backlogged:
                    await self.connection.wait_writable()
            subject, message_id, payload = some[-1]
            acks = await self._acknowledged([(subject, message_id, payload)])
            sequence = acks.sequence
        return sequence

    async def _publish_some(self, messages: Sequence[tuple[str, str, bytes]]) -> int:
        return (await self._acknowledged(messages)).duplicates

    async def _acknowledged(self, messages: Sequence[tuple[str, str, bytes]]) -> _Acks:
        """Publish, and wait for the acknowledgement of each."""
        self._requests += 1
        token = str(self._requests)
        acks = _Acks(len(messages))
        self._waiting[token] = acks
        try:
            async with asyncio.timeout(_TIMEOUT):
                reply = f"{self._inbox}.{token}"
                for subject, message_id, payload in messages:
                    headers = header_block(message_id.encode()) if message_id else b""
                    self.connection.send(subject, headers, payload, reply)
                    if self.connection.backlogged:
                        await self.connection.wait_writable()
                await acks.done.wait()
        except TimeoutError:
            raise StreamError(
                f"{acks.missing} of {len(messages)} messages were not acknowledged within {_TIMEOUT:g} s"
            ) from None
        finally:
            del self._waiting[token]
        if acks.problem:
            raise StreamError(f"a message for {messages[0][0]} was refused: {acks.problem}")
        return acks


class _Acks:
    """The acknowledgements of messages that were published together."""

    __slots__ = ("_last", "done", "duplicates", "missing", "problem")

    def __init__(self, expected: int) -> None:
        self.done, self.problem = asyncio.Event(), ""
        self.missing, self.duplicates, self._last = expected, 0, b"{}"

    @property
    def sequence(self) -> int:
        """Of the message that was acknowledged last."""
        return int(json.loads(self._last).get("seq", 0))

    def take(self, payload: bytes, headers: bytes) -> None:
        if headers.startswith(b"NATS/1.0 503"):
            self.problem = "no stream keeps this subject"
        elif b'"error"' in payload:
            self.problem = str(json.loads(payload)["error"].get("description"))
        elif b'"duplicate"' in payload:
            self.duplicates += 1
        self._last = payload
        self.missing -= 1
        if self.problem or self.missing <= 0:
            self.done.set()


_links: dict[tuple[int, tuple[str, ...]], Link] = {}
_links_lock = threading.Lock()


def link_to(servers: Sequence[str]) -> Link:
    """The link of this process to these servers, opened when first asked for."""
    key = (os.getpid(), tuple(servers))
    with _links_lock:
        if key not in _links:
            _links[key] = Link(servers)
        return _links[key]
