"""The dead letters that stores keep of durable topics: found, tried again, dropped.

Stores only ever add: a letter is settled by a message beside it, which spreads to all replicas as letters do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.client.topic_lookup import look_up_topics
from nearcast.domain.topic import covers
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.stamp import (
    dead_letter_origin,
    message_time,
    parse_stamp,
    retry_block,
    settled_letter,
    settlement_block,
)
from nearcast.nats.stream_publisher import StreamPublisher
from nearcast.nats.streams import StreamError, StreamReader
from nearcast.protocol.marks import Redelivered, Settlement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["DeadLetters", "LetterFilter", "RetryOutcome", "StoredLetter"]

_ANSWER_LIMIT = 5.0
_ASK_AGAIN = 0.05


@dataclass(frozen=True)
class StoredLetter:
    """A publication that was given up. time_us: when it was published. attempts: how often it was tried."""

    id: str
    topic: str
    publisher: str
    time_us: int
    attempts: int
    max_attempts: int
    reason: str
    payload: bytes

    def to_dict(self) -> dict[str, Any]:
        """The letter as it is listed, without its payload."""
        return {
            "id": self.id,
            "topic": self.topic,
            "published": datetime.fromtimestamp(self.time_us / 1e6, UTC).isoformat(timespec="milliseconds"),
            "publisher": self.publisher,
            "attempts": self.attempts,
            "bytes": len(self.payload),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LetterFilter:
    """Which dead letters are meant. reason: a part of it. Times: of the publication, since <= time < until."""

    topic: str = ">"
    ids: frozenset[str] = frozenset()
    reason: str = ""
    since_us: int | None = None
    until_us: int | None = None

    def accepts(self, letter: StoredLetter) -> bool:
        """Whether a letter of the topic is meant."""
        return (
            (not self.ids or letter.id in self.ids)
            and self.reason in letter.reason
            and (self.since_us is None or letter.time_us >= self.since_us)
            and (self.until_us is None or letter.time_us < self.until_us)
        )


@dataclass(frozen=True)
class RetryOutcome:
    """What became of a letter: `sent` to its processor, or why not."""

    letter: StoredLetter
    outcome: str
    sent: bool = False


class DeadLetters:
    """Works with the dead letters in the stores, through a connection to any broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find(self, wanted: LetterFilter) -> list[StoredLetter]:
        """The letters that are not settled, oldest publication first."""
        found: list[StoredLetter] = []
        specs = await look_up_topics(lambda: self._connection, wanted.topic)
        kept = [spec for spec in specs if spec.processed and spec.durable]
        if not kept and not specs:
            raise InputError(f"no topic is configured within {wanted.topic!r}")
        if not kept:
            raise InputError(f"topic {wanted.topic!r} has no stores: its dead letters are not kept")
        for spec in kept:
            found += [letter for letter in await self._letters(spec, wanted.topic) if wanted.accepts(letter)]
        return sorted(found, key=lambda letter: (letter.time_us, letter.id))

    async def retry(
        self, letters: Iterable[StoredLetter], rate: float, *, force: bool = False
    ) -> AsyncIterator[RetryOutcome]:
        """Give letters to their processors again, at most `rate` a second; those that had all their attempts, not.

        A letter is settled by the worker, once there is an outcome: a worker that dies meanwhile loses none.
        """
        clock = asyncio.get_running_loop().time
        due = clock()
        for letter in letters:
            if letter.attempts >= letter.max_attempts and not force:
                yield RetryOutcome(
                    letter, f"not tried again: it had {letter.attempts} of {letter.max_attempts} attempts"
                )
                continue
            await asyncio.sleep(max(0.0, due - clock()))
            due = max(due, clock()) + 1 / rate
            yield await self._send_again(letter)

    async def drop(self, letters: Iterable[StoredLetter]) -> int:
        """Settle letters without trying them again; how many."""
        publisher, count = StreamPublisher(self._connection), 0
        for letter in letters:
            block = settlement_block(letter.id.encode())
            await publisher.publish_blocks([(subjects.settlements(letter.topic), block, Settlement.DROPPED)])
            count += 1
        return count

    async def _send_again(self, letter: StoredLetter) -> RetryOutcome:
        origin, attempts = dead_letter_origin(letter.id.encode())
        headers = retry_block(origin, letter.reason, attempts)
        answers: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        payload = status = b""
        async with self._connection.replies.expect(lambda *answer: answers.put_nowait(answer)) as inbox:
            try:
                async with asyncio.timeout(_ANSWER_LIMIT):
                    while True:
                        self._connection.send(subjects.redelivery(letter.topic), headers, letter.payload, inbox)
                        payload, status = await answers.get()
                        if payload != Redelivered.LATER:
                            break
                        await asyncio.sleep(_ASK_AGAIN)
            except TimeoutError:
                why = f"no owner of the topic answered within {_ANSWER_LIMIT:g} s"
                if payload == Redelivered.LATER:
                    why = "it is being processed"
                return RetryOutcome(letter, f"not tried again: {why}")
        if payload == Redelivered.TAKEN:
            return RetryOutcome(letter, "sent", sent=True)
        if payload == Redelivered.KNOWN:
            return RetryOutcome(letter, "not tried again: it is being tried again already, or its worker has no room")
        problem = "nobody processes the topic" if status.startswith(b"NATS/1.0 503") else "the owner refused it"
        return RetryOutcome(letter, f"not tried again: {problem}")

    async def _letters(self, spec: TopicSpec, pattern: str) -> list[StoredLetter]:
        """Of one topic or family, from the first of its stores that answers."""
        topic = pattern if covers(spec.name, pattern) else spec.name
        problems = []
        for store in spec.replicas:
            try:
                return await self._read(StreamReader(self._connection, subjects.store_api(store)), spec, topic)
            except (StreamError, NatsError, TimeoutError) as error:
                problems.append(f"{store}: {error}")
        raise NearcastError(f"no store of topic {spec.name} can be read: {'; '.join(problems)}")

    async def _read(self, reader: StreamReader, spec: TopicSpec, topic: str) -> list[StoredLetter]:
        stream = subjects.stream_name(spec.name)
        settled = {
            settled_letter(entry.id)
            for entry, _ in [one async for one in reader.messages(stream, subjects.settlements(topic))]
        }
        found = []
        async for entry, reason in reader.messages(stream, subjects.dead_letters(topic)):
            if entry.id in settled:
                continue
            origin, attempts = dead_letter_origin(entry.id)
            found.append(
                StoredLetter(
                    entry.id.decode(errors="replace"), subjects.topic_of(entry.subject), parse_stamp(origin).publisher,
                    message_time(origin) or entry.stored_us, attempts, spec.max_attempts, reason, entry.payload,
                )
            )  # fmt: skip
        return found
