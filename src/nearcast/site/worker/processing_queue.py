"""Messages on their way from the broker into the spools and on to the processor's process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.topics import READ_AHEAD, HostedTopic, TopicFamily, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ProcessingQueue"]

_WAITING_LIMIT = 200_000


class ProcessingQueue:
    """Appends to spools and submits what is to be processed here; beyond READ_AHEAD, messages wait in line."""

    def __init__(self, process: ProcessorProcess) -> None:
        self._process = process
        self.waiting: deque[Waiting] = deque()
        self._dropped = 0
        self._appended = 0

    def put(
        self, topic: HostedTopic, message_id: bytes, payload: bytes, arrived: float | None, attempt: int = 0
    ) -> None:
        """Take a message; the oldest that waits is dropped when too many do.

        arrived: when a message that is to be processed came; none for a copy, which only goes into the spool.
        attempt: of a late one. What is dropped of a durable topic comes again from a store.
        """
        if topic.durable and arrived is not None:
            topic.record.in_flight.add(message_id)
        if self.waiting or self._is_far_behind():
            if len(self.waiting) >= _WAITING_LIMIT:
                oldest = self.waiting.popleft()
                oldest[0].record.in_flight.discard(oldest[1])
                self._dropped += 1
            self.waiting.append((topic, message_id, payload, arrived, attempt))
        else:
            self._append(topic, message_id, payload, arrived, attempt)

    def advance(self) -> None:
        """Something was processed: append what may go on."""
        while self.waiting and not self._is_far_behind():
            self._append(*self.waiting.popleft())

    def take_dropped(self) -> int:
        """How many were dropped since this was last asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def pending(self, family: TopicFamily) -> Iterator[bool]:
        """For each message that is not processed yet: whether it is of this family."""
        numbers = {topic.number for topic in family.topics}
        yield from (ticket.topic in numbers for ticket in self._process.outstanding)
        yield from (entry[0].number in numbers for entry in self.waiting)

    def _append(
        self, topic: HostedTopic, message_id: bytes, payload: bytes, arrived: float | None, attempt: int
    ) -> None:
        number = topic.spool.append(message_id, payload)
        self._appended += 1
        if arrived is not None:
            limit = topic.family.processor.timeout
            self._process.submit(Ticket(topic.number, number, limit, self._appended, arrived, attempt))

    def _is_far_behind(self) -> bool:
        outstanding = self._process.outstanding
        return bool(outstanding) and self._appended - outstanding[0].position >= READ_AHEAD
