"""One message's story, read from the stores of its durable topic: when it was published, stored, processed, notified.

Stores know nothing of subscribers: to whom it was delivered is not in it. Times of stores are those of their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.client.topic_lookup import look_up_topics
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.stamp import Stamp, message_time, parse_stamp
from nearcast.nats.streams import StreamError, StreamReader
from nearcast.protocol.marks import Marks

if TYPE_CHECKING:
    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection
    from nearcast.nats.streams import StoredEntry

__all__ = ["CLOCKS_US", "MessageStory", "StoryEvent", "find_story"]

CLOCKS_US = 60_000_000
"""By which the clocks of a publisher and a store may differ."""


@dataclass(frozen=True)
class StoryEvent:
    """Something that a store keeps of a message. after_ms: since it was published."""

    what: str
    where: str
    after_ms: float


@dataclass(frozen=True)
class MessageStory:
    """stamp: what the message's id says. events: in order of time. unread: stores that did not answer."""

    topic: str
    stamp: Stamp
    events: tuple[StoryEvent, ...]
    unread: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        stamp = self.stamp
        return {
            "id": stamp.id,
            "topic": self.topic,
            "publisher": stamp.publisher,
            "home": stamp.home,
            "published": datetime.fromtimestamp(stamp.published_us / 1e6, UTC).isoformat(timespec="milliseconds"),
            "events": [{"what": e.what, "where": e.where, "after_ms": round(e.after_ms, 1)} for e in self.events],
            "not_read": list(self.unread),
        }


async def find_story(connection: Connection, message_id: str, pattern: str = ">") -> MessageStory:
    """The story of a publication (or of the one that a notification was made from), by its id."""
    origin = message_id.partition(";")[0]
    published_us = message_time(origin.encode())
    if not published_us:
        raise InputError(f"{message_id!r} is no id of Nearcast; one looks like car7~1a2b3:tokyo:1763340000000000:17")
    specs = [spec for spec in await look_up_topics(lambda: connection, pattern) if spec.durable]
    if not specs:
        raise InputError(f"no durable topic is within {pattern!r}: stores keep nothing of others")
    unread: set[str] = set()
    for spec in specs:
        events: list[StoryEvent] = []
        topic = ""
        for store in spec.replicas:
            reader = StreamReader(connection, subjects.store_api(store))
            try:
                found, at = await _at_store(reader, spec, store, origin, published_us)
            except (StreamError, NatsError, TimeoutError):
                unread.add(store)
                continue
            events += found
            topic = topic or at
        if topic:
            in_order = sorted(set(events), key=lambda event: event.after_ms)
            return MessageStory(topic, parse_stamp(origin.encode()), tuple(in_order), tuple(sorted(unread)))
    missing = f"; not read: {', '.join(sorted(unread))}" if unread else ""
    raise InputError(f"no store has a message {origin!r} of a topic within {pattern!r}{missing}")


async def _at_store(
    reader: StreamReader, spec: TopicSpec, store: str, origin: str, published_us: int
) -> tuple[list[StoryEvent], str]:
    """What one store keeps of a message, and the topic it was published to; nothing if it does not have it."""
    stream, since = subjects.stream_name(spec.name), published_us - CLOCKS_US
    events: list[StoryEvent] = []
    topic, stamp = "", parse_stamp(origin.encode())

    def note(what: str, where: str, at_us: int) -> None:
        events.append(StoryEvent(what, where, (at_us - published_us) / 1000))

    async for entry, _ in reader.messages(stream, subjects.publications(spec.name), since):
        if entry.id == origin.encode():
            topic = subjects.topic_of(entry.subject)
            note("stored", store, entry.stored_us)
            break
    if not topic or not spec.processed:
        return events, topic
    own = f"{origin};".encode()
    async for entry, _ in reader.messages(stream, subjects.notifications(topic), since):
        if entry.id.startswith(own):
            note(f"notification {entry.id[len(own) :].decode()}, stored", store, entry.stored_us)
    async for entry, reason in reader.messages(stream, subjects.dead_letters(topic), since):
        if entry.id.startswith(own):
            note(f"dead letter ({reason}), stored", store, entry.stored_us)
    for subject in {subjects.marks(topic), subjects.marks_of_family(spec.name)}:
        async for entry, _ in reader.messages(stream, subject, since):
            worker = _marked_by(entry, topic, stamp)
            if worker:
                note(f"processed by {worker}, marked", store, entry.stored_us)
    return events, topic


def _marked_by(entry: StoredEntry, topic: str, stamp: Stamp) -> str:
    """The worker whose mark covers a publication."""
    try:
        marks: Marks = decode(entry.payload, Marks, "msgpack")
    except MalformedError:
        return ""
    ranges = marks.topics[topic].sources.get(stamp.source, []) if topic in marks.topics else []
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return marks.worker if any(first <= stamp.number <= last for first, last in pairs) else ""
