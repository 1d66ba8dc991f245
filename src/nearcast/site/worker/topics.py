"""The topic table of a worker: the topics and families it takes part in, and the concrete topics seen of them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.domain.latency_histogram import empty
from nearcast.domain.topic import TopicSpec, matches, publisher_level
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.processors import ProcessorSpec, find_processor
from nearcast.site.worker.handover import HandoverMachine
from nearcast.site.worker.handover_events import Role
from nearcast.site.worker.processing_record import ProcessingRecord, SourceRecord
from nearcast.site.worker.processor_main import Announcement
from nearcast.site.worker.source_order import SourceOrder
from nearcast.site.worker.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.site.worker.processor_process import ProcessorProcess, Ticket

__all__ = [
    "MOST_TOPICS",
    "READ_AHEAD",
    "READ_AHEAD_BYTES",
    "HostedTopic",
    "TopicFamily",
    "TopicTable",
    "Waiting",
]

# How far the processor may be behind before messages wait outside the spool: the ring keeps this many slots more than
# the spool's size, so that what a processor sees never depends on what came after its message.
READ_AHEAD = 512
READ_AHEAD_BYTES = 8 << 20
MOST_TOPICS = 20_000
"""Concrete topics of one worker; each has a spool that two processes map into memory."""


Waiting = tuple["HostedTopic", bytes, bytes, float | None, int, SourceRecord | None, int]
"""A message on its way to the processor: topic, id, payload, when it came (none: a copy), attempt (0: not late).

Of a durable topic, if its id tells them, also its source and number.
"""


class RemovedTopics:
    """What was counted of the topics of a family that fell silent and were removed."""

    def __init__(self) -> None:
        self.processed = self.dead_letters = self.deferred = 0
        self.busy_s = 0.0
        self.latency = empty()

    def add(self, topic: HostedTopic, busy_s: float) -> None:
        """A topic is removed."""
        self.processed += topic.processed
        self.dead_letters += topic.dead_letters
        self.deferred += topic.deferred
        self.busy_s += busy_s
        self.latency = [a + b for a, b in zip(self.latency, topic.latency, strict=True)]


class TopicFamily:
    """A topic, or a family of topics, that comes to this worker, is processed here, or leaves."""

    def __init__(self, spec: TopicSpec, processor: ProcessorSpec, *, moved_here: bool) -> None:
        self.spec, self.processor, self.moved_here = spec, processor, moved_here
        self.machine = HandoverMachine(spec.name)
        self.topics: list[HostedTopic] = []
        self.removed = RemovedTopics()
        self.subscriptions: dict[Role, Any] = {}
        self.redeliveries: Any = None  # the subscription to them, of a durable topic
        self.marks: Any = None  # the subscription to those of the other members
        self.order: SourceOrder[Waiting] = SourceOrder(ordered=spec.ordered, adopting=moved_here)
        self.io_lock = asyncio.Lock()  # its I/O is done in the order it was instructed


class HostedTopic:
    """One concrete topic."""

    __slots__ = (
        "copies", "dead_letters", "deferred", "durable", "family", "latency", "machine", "name", "notifications",
        "number", "processed", "publisher", "record", "spool",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        name: str,
        family: TopicFamily,
        folder: Path,
        outstanding: Iterable[Ticket],
        reader_group: int | None = None,
    ) -> None:
        self.number, self.name, self.family, self.machine = number, name, family, family.machine
        self.publisher = publisher_level(name)  # the only one, if it names one
        self.notifications, self.copies = subjects.notifications(name), subjects.copies(name)
        self.processed = self.dead_letters = self.deferred = 0
        self.latency = empty()
        self.durable, self.record = family.spec.durable, ProcessingRecord()
        path = folder / f"{subjects.stream_name(name)}.spool"
        if family.moved_here:
            path.unlink(missing_ok=True)  # of an earlier stay
        kept = family.processor.spool

        def oldest_needed() -> int:
            waiting = (ticket.number for ticket in outstanding if ticket.topic == number)
            return max(0, next(waiting, self.spool.count) - kept)

        self.spool = Spool(
            path,
            kept + READ_AHEAD,
            oldest_needed=oldest_needed,
            read_ahead=READ_AHEAD,
            read_ahead_bytes=READ_AHEAD_BYTES,
            reader_group=reader_group,
        )


class TopicTable:
    """Families by name, concrete topics by subject and by the number that the processor's process knows them by.

    reader_group: of that process, when it has other rights than the worker."""

    def __init__(self, folder: Path, process: ProcessorProcess, reader_group: int | None = None) -> None:
        self._folder, self.process, self._reader_group = folder, process, reader_group
        self.families: dict[str, TopicFamily] = {}
        self.by_subject: dict[str, HostedTopic] = {}
        self.by_number: dict[int, HostedTopic] = {}
        self.most_topics = MOST_TOPICS
        self.make_room: Callable[[], None] = lambda: None  # called when there are that many
        self._numbers = itertools.count()  # never used twice: an outcome cannot be taken for another topic's

    def family_of(self, topic: str) -> TopicFamily:
        """The family that a concrete topic belongs to."""
        for family in self.families.values():
            if matches(family.spec.name, topic):
                return family
        raise NearcastError(f"topic {topic} is not processed here")

    def add_family(self, spec: TopicSpec, *, moved_here: bool) -> TopicFamily:
        """A topic or family that comes here. Raises ProcessorError when no processor is for it."""
        processor = find_processor(self.process.processors, spec.name)
        family = self.families[spec.name] = TopicFamily(spec, processor, moved_here=moved_here)
        return family

    def topic_for(self, subject: str) -> HostedTopic:
        """The topic of a subject of publications, copies or redeliveries; a new one gets its spool."""
        name = subjects.topic_of(subject)
        known = self.by_subject.get(subjects.publications(name))
        if known is not None:
            return known
        family = self.family_of(name)
        if len(self.by_number) >= self.most_topics:
            self.make_room()
            if len(self.by_number) >= self.most_topics:
                raise NearcastError(
                    f"this worker has messages of {self.most_topics} topics in flight, and takes no more"
                )
        most = family.spec.max_topics
        if most is not None and len(family.topics) >= most:
            raise NearcastError(f"{family.spec.name} has {most} topics at this worker, its `max_topics`; {name} is new")
        topic = HostedTopic(
            next(self._numbers), name, family, self._folder, self.process.outstanding, self._reader_group
        )
        family.topics.append(topic)
        self.by_number[topic.number] = topic
        self.by_subject[subjects.publications(name)] = self.by_subject[subjects.copies(name)] = topic
        self.process.announce(Announcement(topic.number, name, str(topic.spool.path), family.processor.pattern))
        return topic

    def forget(self, family: TopicFamily) -> None:
        """A family that is processed elsewhere now; none of its messages may be waiting."""
        del self.families[family.spec.name]
        self.remove(family.topics)

    def remove(self, topics: Iterable[HostedTopic]) -> None:
        """Forget concrete topics and their spools; none of their messages may be waiting. What was counted stays."""
        gone = {topic.number: topic for topic in topics}
        for family in {topic.family for topic in gone.values()}:
            family.topics = [topic for topic in family.topics if topic.number not in gone]
        for topic in gone.values():
            topic.family.removed.add(topic, self.process.busy[topic.number])
            topic.machine.forget_topic(topic.name)
            self.process.retire(topic.number)
            del self.by_number[topic.number]
            del self.by_subject[subjects.publications(topic.name)], self.by_subject[subjects.copies(topic.name)]
            topic.spool.close()
            topic.spool.path.unlink(missing_ok=True)
