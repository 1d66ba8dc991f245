"""Spools of topics that fell silent are removed, and there are never more than allowed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.processors import ProcessorSpec
from nearcast.protocol.worker import HostTopic
from nearcast.site.worker.processing_queue import ProcessingQueue
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess
from nearcast.site.worker.silent_topics import SilentTopics, remove_old_spools
from nearcast.site.worker.topics import HostedTopic, TopicFamily, TopicTable


class World:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        process = ProcessorProcess(Setup([], []), lambda *_: None, lambda *_: None)
        self.table = TopicTable(folder, process)
        self.queue = ProcessingQueue(process, lambda *_: None)
        self.silent = SilentTopics(self.table, self.queue, silent_after=100.0, clock=lambda: self.now)
        spec = TopicSpec("gps.>", ("a",))
        self.family = self.table.families["gps.>"] = TopicFamily(spec, ProcessorSpec(">", 20, 1.0), moved_here=False)

    def publish(self, topic: str, *, processed: bool = True) -> HostedTopic:
        found = self.table.topic_for(subjects.publications(topic))
        self.queue.put(found, b"id", b"{}", 1.0)
        if processed:
            self.table.process.outstanding.clear()
            found.processed += 1
        return found


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_silent_topic_is_removed_and_what_was_counted_stays(world: World, tmp_path: Path) -> None:
    world.publish("gps.a")
    world.publish("gps.b")
    world.silent.sweep()
    world.now = 60.0
    world.publish("gps.b")
    world.silent.sweep()
    world.now = 110.0
    world.silent.sweep()
    assert [topic.name for topic in world.family.topics] == ["gps.b"]
    assert os.listdir(tmp_path) == [f"{subjects.stream_name('gps.b')}.spool"]
    assert world.family.removed.processed == 1
    world.publish("gps.a")  # it comes back, with an empty spool
    assert len(world.family.topics) == 2


async def test_a_topic_whose_message_is_in_hand_stays(world: World) -> None:
    world.publish("gps.a", processed=False)
    world.silent.sweep()
    world.now = 1000.0
    world.silent.sweep()
    assert [topic.name for topic in world.family.topics] == ["gps.a"]


async def test_ten_thousand_topics_take_no_more_room_than_allowed(world: World, tmp_path: Path) -> None:
    world.table.most_topics = 1000
    for n in range(10_000):
        world.publish(f"gps.{n}")
    assert len(world.table.by_number) <= 1000
    sizes = [entry.stat().st_size for entry in os.scandir(tmp_path)]
    assert len(sizes) <= 1000
    assert max(sizes) < 16 << 10  # 56 KiB once
    assert world.publish("gps.9999") in world.family.topics, "the latest ones are those that stay"


async def test_when_all_are_busy_a_new_one_is_refused(world: World) -> None:
    world.table.most_topics = 3
    for n in range(3):
        world.publish(f"gps.{n}", processed=False)
    with pytest.raises(NearcastError, match="has messages of 3 topics in flight"):
        world.publish("gps.3")


async def test_a_topic_of_three_hundred_characters_has_a_spool(world: World) -> None:
    assert world.publish(f"gps.{'x' * 300}").spool.path.exists()


def test_a_new_worker_removes_what_an_old_one_left(tmp_path: Path) -> None:
    for name in ("old.spool", "fresh.spool", "half.new"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "old.spool", (0, time.time() - 7200))
    remove_old_spools(tmp_path)
    assert os.listdir(tmp_path) == ["fresh.spool"]


async def test_a_family_has_no_more_topics_than_it_was_given(world: World) -> None:
    spec = TopicSpec("few.*", ("a",), max_topics=2)
    world.table.families["few.*"] = TopicFamily(spec, ProcessorSpec(">", 20, 1.0), moved_here=False)
    for topic in ("few.a", "few.b", "few.a", "gps.a", "gps.b", "gps.c"):
        world.publish(topic)
    with pytest.raises(NearcastError, match=r"few\.\* has 2 topics at this worker, its `max_topics`; few\.c is new"):
        world.publish("few.c")


async def test_nothing_is_remembered_of_topics_that_were_removed(world: World) -> None:
    machine = world.family.machine
    machine.handle(HostTopic(world.family.spec, 2), 0.0)  # from now on it tells duplicates

    def is_new() -> bool:
        return machine.take_publication(world.publish("gps.a").name, b"id", b"{}", 0.0)

    assert is_new()
    assert not is_new()
    world.silent.sweep()
    world.now = 110.0
    world.silent.sweep()
    assert not world.family.topics
    assert is_new()
