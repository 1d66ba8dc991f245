"""The topic table: what it finds, what it sends on, and that it forgets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.processors import ProcessorSpec
from nearcast.protocol.worker import SpoolEntry
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess
from nearcast.site.worker.spool_pages import read_page
from nearcast.site.worker.topics import TopicFamily, TopicTable

PROCESSOR = ProcessorSpec(">", 3, 1.0)


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    process = ProcessorProcess(Setup([], []), lambda *_: None, lambda *_: None)
    return TopicTable(tmp_path, process)


def add(table: TopicTable, name: str) -> TopicFamily:
    family = table.families[name] = TopicFamily(TopicSpec(name, ("a",)), PROCESSOR, moved_here=False)
    return family


async def test_ten_thousand_topics_that_come_and_go_leave_nothing(table: TopicTable, tmp_path: Path) -> None:
    numbers = set()
    for n in range(100):
        family = add(table, f"gps.{n}.*")
        for m in range(100):
            topic = table.topic_for(subjects.publications(f"gps.{n}.{m}"))
            assert topic is table.topic_for(subjects.copies(f"gps.{n}.{m}"))
            numbers.add(topic.number)
            table.process.busy[topic.number] += 1.0
        table.forget(family)
    assert len(numbers) == 10_000, "an outcome cannot be taken for another topic's"
    assert (table.families, table.by_subject, table.by_number) == ({}, {}, {})
    assert (table.process.announced, dict(table.process.busy)) == ({}, {})
    assert not os.listdir(tmp_path)


async def test_a_topic_of_no_family_is_refused(table: TopicTable) -> None:
    add(table, "gps.*")
    with pytest.raises(NearcastError, match=r"topic gps\.a\.b is not processed here"):
        table.topic_for(subjects.publications("gps.a.b"))


async def test_pages_go_on_behind_the_cursor_and_end_with_what_waits(table: TopicTable) -> None:
    family = add(table, "gps.*")
    for name in ("gps.b", "gps.a"):
        topic = table.topic_for(subjects.publications(name))
        for n in range(5):
            topic.spool.append(b"%d" % n, b"x" * 100_000)
    first = read_page(family, ("", -1), [])
    assert ([(entry.topic, entry.number) for entry in first.entries], first.more) == (
        [("gps.a", 2), ("gps.a", 3), ("gps.a", 4)],
        True,
    )
    second = read_page(family, ("gps.a", 4), [(topic, b"5", b"waits")])
    assert [(entry.topic, entry.number) for entry in second.entries[:3]] == [("gps.b", 2), ("gps.b", 3), ("gps.b", 4)]
    assert second.more
    last = read_page(family, ("gps.b", 4), [(topic, b"5", b"waits")])
    assert (last.entries, last.more) == ([SpoolEntry("gps.a", 5, b"5", b"waits")], False)
    table.forget(family)
