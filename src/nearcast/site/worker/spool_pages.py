"""What a worker sends to one that takes a topic over: its spools, page by page, and how far it is with each source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.domain.number_ranges import NumberRanges
from nearcast.nats.stamp import source_and_number
from nearcast.protocol.worker import SourcePosition, SpoolEntry, SpoolPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nearcast.site.worker.topics import HostedTopic, TopicFamily

__all__ = ["read_page"]

_FIRST = ("", -1)
_PAGE_BYTES = 256 << 10
_PAGE_MESSAGES = 1000


def read_page(
    family: TopicFamily, after: tuple[str, int], waiting: Iterable[tuple[HostedTopic, bytes, bytes]]
) -> SpoolPage:
    """Part of a family's spools, after a topic and a number; the last page ends with what waits outside the spool."""
    entries: list[SpoolEntry] = []
    positions = _positions(family) if family.spec.durable and after == _FIRST else []
    size = 0
    for entry in _entries(family, after):
        entries.append(entry)
        size += len(entry.payload) + len(entry.id)
        if size > _PAGE_BYTES or len(entries) >= _PAGE_MESSAGES:
            return SpoolPage(entries, more=True, positions=positions)
    outside = [
        SpoolEntry(topic.name, topic.spool.count, message_id, payload)
        for topic, message_id, payload in waiting
        if topic.family is family
    ]
    kept = family.processor.spool
    return SpoolPage(entries + (outside[-kept:] if kept else []), positions=positions)


def _entries(family: TopicFamily, after: tuple[str, int]) -> Iterator[SpoolEntry]:
    for topic in sorted(family.topics, key=lambda topic: topic.name):
        if topic.name >= after[0]:
            spool = topic.spool
            first = max(spool.first, spool.count - family.processor.spool)
            if topic.name == after[0]:
                first = max(first, after[1] + 1)
            for number in range(first, spool.count):
                yield SpoolEntry(topic.name, number, *spool.read(number))


def _positions(family: TopicFamily) -> list[SourcePosition]:
    """Of the sources that came last, as many as fit."""
    in_flight: dict[tuple[str, str], list[int]] = {}
    for topic in family.topics:
        for one in topic.record.sources.values():
            in_flight.setdefault((topic.name, one.name), []).extend(one.in_flight)
        for message_id in topic.record.in_flight:  # dead letters that are tried again
            if (key := source_and_number(message_id)) is not None:
                in_flight.setdefault((topic.name, key[0]), []).append(key[1])
    found: list[SourcePosition] = []
    size = 0
    for topic_name, source, upto in family.order.positions():
        numbers = NumberRanges.of(in_flight.get((topic_name, source), ())).flat()
        found.append(SourcePosition(topic_name, source, upto, numbers))
        size += len(topic_name) + len(source) + 9 * len(numbers) + 16
        if size > _PAGE_BYTES:
            break
    return found
