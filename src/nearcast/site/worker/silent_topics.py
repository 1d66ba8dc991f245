"""Concrete topics that fell silent: their spools are removed, so that a family of topics takes a bounded space.

A device may publish to any number of topics of a family, and each has a spool. One without a message for an hour is
removed with its file; when there are too many, those that were silent longest are removed at once.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nearcast.nats.tasks import repeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nearcast.site.worker.processing_queue import ProcessingQueue
    from nearcast.site.worker.topics import HostedTopic, TopicTable

__all__ = ["SilentTopics", "remove_old_spools"]

_log = logging.getLogger(__name__)
_PERIOD = 60.0
_SILENT_AFTER = 3600.0
_ROOM = 10  # when the table is full, one topic in so many is removed


class SilentTopics:
    """Removes topics from a worker's table. silent_after: seconds without a message."""

    def __init__(
        self,
        table: TopicTable,
        queue: ProcessingQueue,
        silent_after: float = _SILENT_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._queue, self._silent_after, self._clock = table, queue, silent_after, clock
        self._active: dict[int, tuple[int, float]] = {}  # by number: messages so far, and since when
        table.make_room = self.make_room

    async def run(self) -> None:
        """Look once a minute, until cancelled."""
        await repeat(self.sweep, _PERIOD, "silent topics were not removed")

    def sweep(self) -> None:
        """Remove the topics that have been silent for long enough."""
        self._observe()
        oldest = self._clock() - self._silent_after
        self._remove([topic for topic in self._idle() if self._active[topic.number][1] <= oldest])

    def make_room(self) -> None:
        """The table is full: remove those that have been silent longest."""
        self._observe()
        idle = sorted(self._idle(), key=lambda topic: self._active[topic.number][1])
        removed = idle[: max(1, len(self._table.by_number) // _ROOM)]
        _log.warning("%d topics have spools here; %d silent ones are removed", len(self._active), len(removed))
        self._remove(removed)

    def _observe(self) -> None:
        now, before = self._clock(), self._active
        self._active = {}
        for number, topic in self._table.by_number.items():
            count, since = before.get(number, (-1, now))
            self._active[number] = (count, since) if topic.spool.count == count else (topic.spool.count, now)

    def _idle(self) -> list[HostedTopic]:
        """The topics of which nothing is waiting, being processed or about to be marked."""
        busy = {ticket.topic for ticket in self._table.process.outstanding}
        busy |= {entry[0].number for entry in self._queue.waiting}
        return [
            topic
            for topic in self._table.by_number.values()
            if topic.number not in busy and topic.record.is_empty and not topic.family.order.held
        ]

    def _remove(self, topics: list[HostedTopic]) -> None:
        for topic in topics:
            del self._active[topic.number]
        self._table.remove(topics)


def remove_old_spools(folder: Path) -> None:
    """Remove the spools of topics that were silent when an earlier worker ended, and what a crash left half made."""
    oldest = time.time() - _SILENT_AFTER
    for path in folder.glob("*"):
        if path.suffix == ".new" or (path.suffix == ".spool" and path.stat().st_mtime < oldest):
            path.unlink(missing_ok=True)
