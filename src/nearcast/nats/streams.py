"""Reads JetStream streams in bulk by *direct get* batches: no consumer, no state at the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from nearcast.errors import NearcastError
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.stamp import message_time, reason_of, stamp_of
from nearcast.nats.subjects import subject_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nearcast.nats.connection import Connection

__all__ = [
    "FIRST_STORED",
    "Batch",
    "RawBatch",
    "StoredEntry",
    "StreamApiError",
    "StreamBounds",
    "StreamError",
    "StreamNotFoundError",
    "StreamReader",
    "original_headers",
    "parse_entry",
]

FIRST_STORED = b"Nearcast-First-Stored:"
"""Header field of a message that one replica gave another: when it was stored first, in microseconds."""

_ADDED = b"Nats-Stream: "  # where a store's own header fields begin; no subject has a space
_TIMEOUT = 5.0
# Messages of one request: enough to keep the connection busy, few enough for the server's send buffer.
_PAGE = 5_000
_SMALL_PAGE = 1_000  # for those who are far from the store, or stop early
_FRAME = 1024  # of an answer, and of the message in it
_BATCH_BYTES = 8 << 20  # payloads may be large, and all answers to a request are in memory


class StreamError(NearcastError, OSError):
    """A stream cannot be read or written."""


class StreamNotFoundError(StreamError):
    """There is no such stream."""


class StreamBounds(NamedTuple):
    """The first and last sequence of a stream; an empty stream has the first above the last.

    mean_bytes: of its messages; 0 where it is not known.
    """

    first: int
    last: int
    mean_bytes: int = 0


class StoredEntry(NamedTuple):
    """A stored message. stored_us: when a store first had it, if it came from another replica."""

    sequence: int
    subject: str
    stored_us: int
    id: bytes
    payload: bytes

    @property
    def time_us(self) -> int:
        """The message's time: from its id, the same at every store; the stored time when it has none."""
        return message_time(self.id) or self.stored_us


@dataclass
class RawBatch:
    """The answers to one request: payloads and header blocks in order.

    pending: how many more there were behind it. last_sequence: how far the store had looked.
    """

    payloads: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    pending: int = 0
    last_sequence: int = 0
    problem: str = ""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, payload: bytes, headers: bytes) -> None:
        """One answer; a status instead of a message ends the batch."""
        if not headers.startswith(b"NATS/1.0 ") or _ADDED in headers:  # a publisher may have written a status, too
            self.payloads.append(payload)
            self.headers.append(headers)
            return
        status = headers[9:12]
        if status == b"204":
            self.pending = int(header_field(headers, b"Nats-Num-Pending:") or 0)
            self.last_sequence = int(header_field(headers, b"Nats-Last-Sequence:") or 0)
        elif status != b"404":  # 404: nothing there, which is an empty batch
            self.problem = headers[9:].split(b"\r\n", 1)[0].decode()
        self.done.set()

    @property
    def is_complete(self) -> bool:
        """Whether no answer was lost on its way, as a link between two servers that breaks loses them: each names the
        sequence of the one before it, and so does the end."""
        if not self.headers:
            return not self.last_sequence
        (first, before), (last, _) = _sequences(self.headers[0]), _sequences(self.headers[-1])
        if before or self.last_sequence not in (0, last):  # 0: the store does not say it
            return False
        if last - first + 1 == len(self.headers):
            return True
        pairs = pairwise(map(_sequences, self.headers))
        return all(named in (None, sequence) for (sequence, _), (_, named) in pairs)

    def entries(self) -> list[StoredEntry]:
        """The messages, parsed."""
        return [parse_entry(*answer) for answer in zip(self.payloads, self.headers, strict=True)]


class _StreamName(msgspec.Struct):
    name: str


class _StreamState(msgspec.Struct):
    first_seq: int
    last_seq: int


class _ListedStream(msgspec.Struct):
    config: _StreamName
    state: _StreamState


class StreamApiError(msgspec.Struct):
    """Why a store refused a request or a publication."""

    description: str = "unknown error"


class _StreamPage(msgspec.Struct):
    """An answer of the JetStream API to `STREAM.LIST`."""

    total: int = 0
    streams: list[_ListedStream] | None = None
    error: StreamApiError | None = None


@dataclass(frozen=True)
class Batch:
    """Entries in order. exhausted: there was no more when the batch was read, up to `last_sequence`."""

    entries: list[StoredEntry]
    exhausted: bool
    last_sequence: int


class StreamReader:
    """Reads streams of a store: the one that a connection leads to, or the one with this prefix of its API."""

    def __init__(self, connection: Connection, prefix: str = "$JS.API", timeout: float = _TIMEOUT) -> None:
        self._connection, self._prefix, self._timeout = connection, prefix, timeout
        self._jsm = connection.jsm(prefix=prefix, timeout=timeout)

    @property
    def is_connected(self) -> bool:
        """Whether the store can be asked just now."""
        return self._connection.is_connected

    def can_pass_on(self, entry: StoredEntry) -> bool:
        """Whether a message and what tells it from others fit into one answer. A broker takes no larger one."""
        return len(entry.payload) + len(entry.id) + 4 * len(entry.subject) + _FRAME <= self._connection.max_payload

    async def bounds(self, stream: str) -> StreamBounds:
        """What the stream holds now."""
        try:
            state = (await self._jsm.stream_info(stream)).state
        except NotFoundError:
            raise StreamNotFoundError(f"stream {stream} does not exist") from None
        except (NatsError, TimeoutError) as error:
            raise StreamError(f"stream {stream}: {error or 'timed out'}") from error
        return StreamBounds(state.first_seq, state.last_seq, state.bytes // max(state.messages, 1))

    async def all_bounds(self) -> dict[str, StreamBounds]:
        """What each stream of the store holds now, in few requests however many there are."""
        found: dict[str, StreamBounds] = {}
        while True:
            body = json.dumps({"offset": len(found)}).encode()
            try:
                reply = await self._connection.request(f"{self._prefix}.STREAM.LIST", body, timeout=self._timeout)
                page: _StreamPage = decode(reply.data, _StreamPage)
            except (NatsError, TimeoutError, MalformedError) as error:
                raise StreamError(f"streams cannot be listed: {error or 'timed out'}") from error
            if page.error is not None:
                raise StreamError(f"streams cannot be listed: {page.error.description}")
            found |= {
                one.config.name: StreamBounds(one.state.first_seq, one.state.last_seq) for one in page.streams or []
            }
            if not page.streams or len(found) >= page.total:
                return found

    async def read_raw(self, stream: str, start: int, limit: int, subject: str = "") -> RawBatch:
        """Up to `limit` messages from a sequence on, not parsed; at most 5,000, whatever the limit."""
        request: dict[str, object] = {"seq": start, "batch": min(limit, _PAGE), "max_bytes": _BATCH_BYTES}
        if subject:
            request["next_by_subj"] = subject
        return await self._fetch_all(stream, request)

    async def read(
        self,
        stream: str,
        subject: str,
        start: int,
        limit: int,
        *,
        since_us: int | None = None,
        max_bytes: int = _BATCH_BYTES,
    ) -> Batch:
        """Up to `limit` messages of a subject, and about so many bytes, from a sequence or a time on."""
        request: dict[str, object] = {"batch": limit, "next_by_subj": subject, "max_bytes": max_bytes}
        if since_us is None:
            request["seq"] = start
        else:
            request["start_time"] = _rfc3339(since_us)
        raw = await self._fetch_all(stream, request)
        entries = raw.entries()
        # A store leaves a damaged message out, and keeps counting it as pending.
        return Batch(entries, raw.pending == 0 or not entries, raw.last_sequence)

    async def read_range(self, stream: str, subject: str, low: int, high: int) -> list[StoredEntry]:
        """All messages of a subject with low <= sequence < high."""
        found: list[StoredEntry] = []
        async with contextlib.aclosing(self.pages(stream, subject, low, high)) as pages:
            async for page in pages:
                found += page
        return found

    async def pages(self, stream: str, subject: str, low: int, high: int) -> AsyncGenerator[list[StoredEntry], None]:
        """The same in parts: there may be more than fits into memory."""
        while low < high:
            batch = await self.read(stream, subject, low, min(high - low, _PAGE))
            yield [entry for entry in batch.entries if entry.sequence < high]
            if batch.exhausted or batch.entries[-1].sequence >= high - 1:
                break
            low = batch.entries[-1].sequence + 1

    async def messages(
        self, stream: str, subject: str, since_us: int | None = None
    ) -> AsyncGenerator[tuple[StoredEntry, str], None]:
        """The messages of a subject, all or those stored from a time on, with the reason in their headers."""
        start = 1
        if since_us is not None:
            first = (await self.read(stream, subject, 1, 1, since_us=since_us)).entries
            if not first:
                return
            start = first[0].sequence
        while True:
            batch = await self.read_raw(stream, start, _SMALL_PAGE, subject)
            for payload, headers in zip(batch.payloads, batch.headers, strict=True):
                entry = parse_entry(payload, headers)
                start = entry.sequence + 1
                yield entry, reason_of(headers)
            if not batch.pending or not batch.payloads:
                return

    async def last(self, stream: str, subject: str) -> StoredEntry | None:
        """The last message of a subject."""
        raw = await self._fetch(stream, {"multi_last": [subject], "batch": 1})
        return next(iter(raw.entries()), None)

    async def _fetch_all(self, stream: str, request: dict[str, object]) -> RawBatch:
        """StreamError when an answer was lost: what is not there would be taken for removed."""
        batch = await self._fetch(stream, request)
        if not batch.is_complete:
            raise StreamError(f"stream {stream}: an answer of the store was lost on its way")
        return batch

    async def _fetch(self, stream: str, request: dict[str, object]) -> RawBatch:
        """One request, all its answers. Raises StreamError when the store refuses, or does not answer in time."""
        batch, subject = RawBatch(), f"{self._prefix}.DIRECT.GET.{stream}"
        async with self._connection.replies.expect(batch.take) as reply:
            self._connection.send(subject, b"", json.dumps(request).encode(), reply)
            try:
                async with asyncio.timeout(self._timeout):
                    await batch.done.wait()
            except TimeoutError:
                raise StreamError(f"stream {stream}: the store did not answer within {self._timeout:g} s") from None
        if batch.problem:
            raise StreamError(f"stream {stream}: {batch.problem}")
        return batch


def parse_entry(payload: bytes, headers: bytes) -> StoredEntry:
    """A stored message from one answer of a direct get."""
    # What the store adds stands behind the message's own headers, in this order. These may have the same fields.
    at = headers.rindex(_ADDED)
    own = headers[:at]
    message_id = stamp_of(own)
    _, subject, sequence, stored, _ = headers[at:].split(b"\r\n", 4)
    first_stored = header_field(own, FIRST_STORED)
    known = first_stored.isdigit() and len(first_stored) <= 16
    stored_us = (int(first_stored) if known else 0) or _microseconds(stored[16:])
    return StoredEntry(int(sequence[14:]), subject_text(subject[14:]), stored_us, message_id, payload)


def _sequences(headers: bytes) -> tuple[int, int | None]:
    """Of an answer: its sequence, and that of the one before it in the batch, if the store says it; 0 for none."""
    added = headers[headers.rindex(_ADDED) :]
    before = header_field(added, b"Nats-Last-Sequence:")
    return int(header_field(added, b"Nats-Sequence:")), int(before) if before else None


def original_headers(headers: bytes) -> bytes:
    """The header block that a message was published with: what the store adds stands behind it."""
    block = headers[: headers.rindex(_ADDED)]
    return b"" if block == b"NATS/1.0\r\n" else block + b"\r\n"


def header_field(headers: bytes, name: bytes) -> bytes:
    """The value of a field (its name with the colon), or nothing."""
    at = headers.find(name)
    return headers[at + len(name) :].partition(b"\r\n")[0].strip() if at >= 0 else b""


def _microseconds(text: bytes) -> int:
    """From 2026-11-15T20:00:00.123456789Z; the server leaves out trailing zeros of the fraction."""
    whole, _, fraction = text.strip(b" Z").partition(b".")
    return _seconds(whole) * 1_000_000 + int((fraction + b"000000")[:6])


@lru_cache(256)  # neighbours in a stream were mostly stored in the same second
def _seconds(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp())


def _rfc3339(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat().replace("+00:00", "Z")
