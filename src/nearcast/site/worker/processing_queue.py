"""Messages on their way from the broker into the spools and on to the processor's process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.topics import READ_AHEAD, READ_AHEAD_BYTES, HostedTopic, TopicFamily, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearcast.site.worker.processing_record import SourceRecord

__all__ = ["ProcessingQueue"]

_WAITING_BYTES = 64 << 20
_ENTRY_BYTES = 256  # what a message takes in memory besides its id and payload


class ProcessingQueue:
    """Appends to spools and submits what is to be processed here; beyond READ_AHEAD, messages wait in line.

    overflowed: called with the topic, id, payload and attempt of a publication that waited too long in a full line.
    limit: how many bytes may wait.
    """

    def __init__(
        self,
        process: ProcessorProcess,
        overflowed: Callable[[HostedTopic, bytes, bytes, int], None],
        limit: int = _WAITING_BYTES,
    ) -> None:
        self._process, self._overflowed, self._limit = process, overflowed, limit
        self.waiting: deque[Waiting] = deque()
        self.waiting_bytes = 0
        self._appended = self._appended_bytes = 0

    def put(
        self,
        topic: HostedTopic,
        message_id: bytes,
        payload: bytes,
        arrived: float | None,
        attempt: int = 0,
        source: SourceRecord | None = None,
        number: int = 0,
    ) -> None:
        """Take a message. When too much waits the oldest are removed; of a durable topic the new one: a store has it.

        arrived: when a message that is to be processed came; none for a copy, which only goes into the spool.
        attempt: of a late one. source, number: what one of a durable topic is known by; it is under way there already.
        """
        if source is None and topic.durable and arrived is not None:
            topic.record.in_flight.add(message_id)
        entry = (topic, message_id, payload, arrived, attempt, source, number)
        if self.waiting or self._is_far_behind():
            size = len(message_id) + len(payload)
            if topic.durable and arrived is not None and not self.has_room(size):
                topic.record.leave(message_id)
                self._overflowed(topic, message_id, payload, attempt)
                return
            self.waiting_bytes += size + _ENTRY_BYTES
            self.waiting.append(entry)
            while self.waiting_bytes > self._limit:
                self._remove_oldest()
        else:
            self._append(entry)

    def has_room(self, size: int) -> bool:
        """Whether a message of so many bytes fits without removing another."""
        return self.waiting_bytes + size + _ENTRY_BYTES <= self._limit

    def advance(self) -> None:
        """Something was processed: append what may follow."""
        while self.waiting and not self._is_far_behind():
            self._append(self._next())

    def pending(self, family: TopicFamily) -> Iterator[bool]:
        """For each message that is not processed yet: whether it is of this family."""
        numbers = {topic.number for topic in family.topics}
        yield from (ticket.topic in numbers for ticket in self._process.outstanding)
        yield from (entry[0].number in numbers for entry in self.waiting)

    def _next(self) -> Waiting:
        entry = self.waiting.popleft()
        self.waiting_bytes -= len(entry[1]) + len(entry[2]) + _ENTRY_BYTES
        return entry

    def _remove_oldest(self) -> None:
        topic, message_id, payload, arrived, attempt, _, _ = self._next()
        if arrived is not None:  # a copy was processed elsewhere, and is only missing from the spool
            topic.record.leave(message_id)
            self._overflowed(topic, message_id, payload, attempt)

    def _append(self, entry: Waiting) -> None:
        topic, message_id, payload, arrived, attempt, source, source_number = entry
        number = topic.spool.append(message_id, payload)
        self._appended += 1
        self._appended_bytes += len(payload)
        if arrived is not None:
            limit = topic.family.processor.timeout
            position, offset = self._appended, self._appended_bytes
            self._process.submit(
                Ticket(topic.number, number, limit, position, arrived, attempt, offset, source, source_number)
            )

    def _is_far_behind(self) -> bool:
        outstanding = self._process.outstanding
        return bool(outstanding) and (
            self._appended - outstanding[0].position >= READ_AHEAD
            or self._appended_bytes - outstanding[0].offset >= READ_AHEAD_BYTES
        )
