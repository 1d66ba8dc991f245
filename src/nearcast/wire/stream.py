"""Reads a JetStream stream in bulk by *direct get* batches: no consumer, no state at the server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from nearcast.domain.errors import NearcastError
from nearcast.wire.stamp import stamp_of

if TYPE_CHECKING:
    from nearcast.wire.connection import Connection

__all__ = ["Batch", "Entry", "StreamReader", "bucket_stream"]

_TIMEOUT = 5.0
_BUCKET_PAGE = 1000


def bucket_stream(bucket: str) -> str:
    """The stream behind a key-value bucket."""
    return f"KV_{bucket}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored message."""

    sequence: int
    subject: str
    stored_us: int
    id: bytes
    payload: bytes


@dataclass(frozen=True)
class Batch:
    """Entries in order. exhausted: there was no more when the batch was read, up to `last_sequence`."""

    entries: list[Entry]
    exhausted: bool
    last_sequence: int


class StreamReader:
    """Reads streams of a store: the one that a connection leads to, or the one with this prefix of its API."""

    def __init__(self, connection: Connection, prefix: str = "$JS.API") -> None:
        self._connection, self._prefix = connection, prefix
        self._inbox = connection.new_inbox()
        self._collecting: dict[str, _Collector] = {}
        self._requests = 0
        self._listening = False

    @property
    def is_connected(self) -> bool:
        """Whether the store can be asked just now."""
        return self._connection.is_connected

    async def bounds(self, stream: str) -> tuple[int, int]:
        """First and last sequence of a stream."""
        state = (await self._connection.jsm(prefix=self._prefix, timeout=_TIMEOUT).stream_info(stream)).state
        return state.first_seq, state.last_seq

    async def read(self, stream: str, subject: str, start: int, limit: int, *, since_us: int | None = None) -> Batch:
        """Up to `limit` messages of a subject, from a sequence or a time on."""
        request: dict[str, object] = {"batch": limit, "next_by_subj": subject}
        if since_us is None:
            request["seq"] = start
        else:
            request["start_time"] = _rfc3339(since_us)
        if not self._listening:
            self._listening = True
            await self._connection.attach(f"{self._inbox}.*", self._arrived)
        self._requests += 1
        token = str(self._requests)
        collector = self._collecting[token] = _Collector()
        try:
            reply = f"{self._inbox}.{token}"
            self._connection.send(f"{self._prefix}.DIRECT.GET.{stream}", b"", json.dumps(request).encode(), reply)
            async with asyncio.timeout(_TIMEOUT):
                await collector.done.wait()
        except TimeoutError:
            raise NearcastError(f"the store did not answer within {_TIMEOUT:g} s for stream {stream}") from None
        finally:
            del self._collecting[token]
        if collector.problem:
            raise NearcastError(f"stream {stream}: {collector.problem}")
        return Batch(collector.entries, collector.pending == 0, collector.last_sequence)

    async def read_range(self, stream: str, subject: str, low: int, high: int) -> list[Entry]:
        """All messages of a subject with low <= sequence < high."""
        found: list[Entry] = []
        while low < high:
            batch = await self.read(stream, subject, low, high - low)
            found.extend(entry for entry in batch.entries if entry.sequence < high)
            if batch.exhausted or batch.entries[-1].sequence >= high - 1:
                break
            low = batch.entries[-1].sequence + 1
        return found

    async def read_bucket(self, bucket: str) -> dict[str, Entry]:
        """All keys of a key-value bucket with their values.

        nats-py finds keys by a consumer that it takes for done when nothing is pending at the server and nothing has
        come yet: while the messages were on their way, a bucket was empty.
        """
        start, top = 1, f"$KV.{bucket}."
        found: dict[str, Entry] = {}
        while True:
            batch = await self.read(bucket_stream(bucket), f"{top}>", start, _BUCKET_PAGE)
            for entry in batch.entries:
                key = entry.subject.removeprefix(top)
                if entry.payload:
                    found[key] = entry
                else:  # what is left of one that was removed
                    found.pop(key, None)
            if batch.exhausted:
                return found
            start = batch.entries[-1].sequence + 1

    def _arrived(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        collector = self._collecting.get(subject.rpartition(".")[2])
        if collector is not None:
            collector.take(payload, headers)


class _Collector:
    """The answers to one request, as they come."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.done = asyncio.Event()
        self.pending = 0
        self.last_sequence = 0
        self.problem = ""

    def take(self, payload: bytes, headers: bytes) -> None:
        if headers.startswith(b"NATS/1.0 "):  # a status ends the batch
            status = headers[9:12]
            if status == b"204":
                self.pending = int(_field(headers, b"Nats-Num-Pending:") or 0)
                self.last_sequence = int(_field(headers, b"Nats-Last-Sequence:") or 0)
            elif status != b"404":  # 404: nothing there, which is an empty batch
                self.problem = headers[9:].split(b"\r\n", 1)[0].decode()
            self.done.set()
            return
        sequence = int(_field(headers, b"Nats-Sequence:"))
        stored = _microseconds(_field(headers, b"Nats-Time-Stamp:"))
        subject = _field(headers, b"Nats-Subject:").decode()
        self.entries.append(Entry(sequence, subject, stored, stamp_of(headers), payload))


def _field(headers: bytes, name: bytes) -> bytes:
    at = headers.find(name)
    return headers[at + len(name) : headers.index(b"\r\n", at)].strip() if at >= 0 else b""


def _microseconds(text: bytes) -> int:
    """From 2026-11-15T20:00:00.123456789Z; the server leaves out trailing zeros of the fraction."""
    whole, _, fraction = text.rstrip(b"Z").partition(b".")
    return _seconds(whole) * 1_000_000 + int((fraction + b"000000")[:6])


@lru_cache(256)  # neighbours in a stream were mostly stored in the same second
def _seconds(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp())


def _rfc3339(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat().replace("+00:00", "Z")
