"""Publishes to streams and waits for the acknowledgements, many messages at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nearcast.nats.boundary import decoder
from nearcast.nats.stamp import header_block
from nearcast.nats.streams import StreamApiError, StreamError

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["Acknowledgement", "OutgoingMessage", "StreamPublisher", "decode_acknowledgement"]

OutgoingMessage = tuple[str, str, bytes]
"""Subject, id and payload. An empty id is not sent."""

_UNACKNOWLEDGED = 4_096


class Acknowledgement(msgspec.Struct):
    """What a stream answers to a publication. domain: the site whose store has the stream."""

    stream: str = ""
    domain: str = ""
    seq: int = 0
    duplicate: bool = False
    error: StreamApiError | None = None


decode_acknowledgement = decoder(Acknowledgement, "json")


class StreamPublisher:
    """Publishes through one connection."""

    def __init__(self, connection: Connection, timeout: float = 5.0) -> None:
        self._connection, self._timeout = connection, timeout

    async def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """Store messages, each acknowledged; returns how many a stream had already under their ids."""
        duplicates = 0
        for start in range(0, len(messages), _UNACKNOWLEDGED):
            duplicates += (await self._acknowledged(_blocks(messages[start : start + _UNACKNOWLEDGED]))).duplicates
        return duplicates

    async def publish_in_order(self, messages: Sequence[OutgoingMessage]) -> int:
        """Store messages of one stream with one acknowledgement per some thousand; returns the last sequence.

        The caller compares that sequence: a store that cannot keep up drops messages silently.
        """
        sequence = 0
        for start in range(0, len(messages), _UNACKNOWLEDGED):
            sequence = await self.publish_blocks(_blocks(messages[start : start + _UNACKNOWLEDGED]))
        return sequence

    async def publish_blocks(self, messages: Sequence[tuple[str, bytes, bytes]]) -> int:
        """Store messages with these header blocks; only the last is acknowledged, by its sequence, which is returned.

        The caller checks the rest.
        """
        *unacknowledged, last = messages
        await self._send(unacknowledged)
        return (await self._acknowledged([last])).sequence

    async def _send(self, messages: Sequence[tuple[str, bytes, bytes]], reply: str = "") -> None:
        for subject, headers, payload in messages:
            self._connection.send(subject, headers, payload, reply)
            if self._connection.backlogged:
                await self._connection.wait_writable()

    async def _acknowledged(self, messages: Sequence[tuple[str, bytes, bytes]]) -> _Acknowledgements:
        acknowledgements = _Acknowledgements(len(messages))
        async with self._connection.replies.expect(acknowledgements.take) as reply:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._send(messages, reply)
                    await acknowledgements.done.wait()
            except TimeoutError:
                missing, count = acknowledgements.missing, len(messages)
                problem = f"{missing} of {count} messages were not acknowledged in {self._timeout:g} s"
                raise StreamError(problem) from None
        if acknowledgements.problem:
            raise StreamError(f"a message for {messages[0][0]} was refused: {acknowledgements.problem}")
        return acknowledgements


def _blocks(messages: Sequence[OutgoingMessage]) -> list[tuple[str, bytes, bytes]]:
    return [(subject, header_block(key.encode()) if key else b"", payload) for subject, key, payload in messages]


class _Acknowledgements:
    """Of messages that were published together."""

    __slots__ = ("done", "duplicates", "missing", "problem", "sequence")

    def __init__(self, expected: int) -> None:
        self.done, self.problem = asyncio.Event(), ""
        self.missing, self.duplicates, self.sequence = expected, 0, 0

    def take(self, payload: bytes, headers: bytes) -> None:
        if headers.startswith(b"NATS/1.0 503"):
            self.problem = "no stream keeps this subject"
        else:
            answer = decode_acknowledgement(payload)
            self.sequence = answer.seq
            self.duplicates += answer.duplicate
            self.problem = answer.error.description if answer.error else self.problem
        self.missing -= 1
        if self.problem or self.missing <= 0:
            self.done.set()
