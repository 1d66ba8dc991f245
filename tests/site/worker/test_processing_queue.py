"""What waits for a processor is bounded in bytes, and what there is no room for is told, not forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.processors import ProcessorSpec
from nearcast.site.worker.processing_queue import ProcessingQueue
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess
from nearcast.site.worker.topics import READ_AHEAD_BYTES, HostedTopic, TopicFamily, TopicTable

MEBIBYTE = 1 << 20


class Line:
    """A queue in front of a processor that is stuck: its process was never started, outcomes are up to the test."""

    def __init__(self, folder: Path, limit: int, *, replicas: tuple[str, ...] = ()) -> None:
        self.process = ProcessorProcess(Setup([], []), lambda ticket, made: None, lambda ticket, reason: None)
        self.queue = ProcessingQueue(self.process, self._overflowed, limit)
        self.overflowed: list[int] = []
        table = TopicTable(folder, self.process)
        spec = TopicSpec("gps", ("tokyo",), replicas)
        table.families["gps"] = TopicFamily(spec, ProcessorSpec("gps", 20, 1.0), moved_here=False)
        self.topic = table.topic_for("pub.gps")

    def publish(self, numbers: range, payload: bytes, arrived: float | None = 0.0) -> None:
        for n in numbers:
            self.queue.put(self.topic, b"%d" % n, payload, arrived)

    def process_one(self) -> bytes:
        """The stuck processor is done with one message; its id."""
        ticket = self.process.outstanding.popleft()
        message_id, _ = self.topic.spool.read(ticket.number)
        self.queue.advance()
        return message_id

    def _overflowed(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int) -> None:
        self.overflowed.append(int(message_id))


async def test_large_payloads_are_bounded_in_bytes(tmp_path: Path) -> None:
    line = Line(tmp_path, 64 * MEBIBYTE)
    line.publish(range(400), bytes(MEBIBYTE))
    assert line.queue.waiting_bytes <= 64 * MEBIBYTE
    waiting = len(line.queue.waiting)
    read_ahead = len(line.process.outstanding)
    assert 62 <= waiting <= 64
    assert READ_AHEAD_BYTES <= read_ahead * MEBIBYTE <= READ_AHEAD_BYTES + 2 * MEBIBYTE
    assert line.topic.spool.path.stat().st_size < 2 * READ_AHEAD_BYTES + 20 * MEBIBYTE
    # Each of the others was told, the oldest first.
    assert line.overflowed == list(range(read_ahead, 400 - waiting))


async def test_the_spool_stays_small_while_the_processor_keeps_up(tmp_path: Path) -> None:
    line = Line(tmp_path, 64 * MEBIBYTE)
    for n in range(200):
        line.publish(range(n, n + 1), bytes(MEBIBYTE))
        assert line.process_one() == b"%d" % n
    spool = line.topic.spool
    assert spool.path.stat().st_size < 2 * READ_AHEAD_BYTES + 2 * 20 * MEBIBYTE
    assert [spool.read(n)[0] for n in range(180, 200)] == [b"%d" % n for n in range(180, 200)]


async def test_a_burst_of_small_publications_is_told_one_by_one(tmp_path: Path) -> None:
    line = Line(tmp_path, MEBIBYTE)
    line.publish(range(20_000), bytes(128))
    kept = [*(int(line.topic.spool.read(ticket.number)[0]) for ticket in line.process.outstanding)]
    kept += [int(entry[1]) for entry in line.queue.waiting]
    assert sorted(kept + line.overflowed) == list(range(20_000))
    done = [int(line.process_one()) for _ in range(len(kept))]
    assert done == sorted(kept)
    assert line.queue.waiting_bytes == 0


async def test_copies_without_room_are_no_loss(tmp_path: Path) -> None:
    line = Line(tmp_path, MEBIBYTE)
    line.publish(range(600), b"")
    line.publish(range(600, 10_000), bytes(1024), arrived=None)
    assert max(line.overflowed, default=0) < 600


@pytest.mark.parametrize("replicas", [(), ("tokyo",)])
async def test_what_overflows_is_not_in_flight_any_more(tmp_path: Path, replicas: tuple[str, ...]) -> None:
    line = Line(tmp_path, MEBIBYTE, replicas=replicas)
    line.publish(range(5_000), bytes(1024))
    in_flight = {int(one) for one in line.topic.record.in_flight}
    assert not in_flight & set(line.overflowed)
    assert bool(in_flight) == bool(replicas)


async def test_what_waits_of_a_durable_topic_is_not_pushed_out(tmp_path: Path) -> None:
    """A store gives again what has no room: were the oldest removed, redeliveries would push each other out."""
    line = Line(tmp_path, MEBIBYTE, replicas=("tokyo",))
    line.publish(range(5_000), bytes(1024))
    kept = [*(int(line.topic.spool.read(ticket.number)[0]) for ticket in line.process.outstanding)]
    kept += [int(entry[1]) for entry in line.queue.waiting]
    assert kept == list(range(len(kept)))
    assert line.overflowed == list(range(len(kept), 5_000))
    assert not line.queue.has_room(1024)
    line.process_one()
    assert line.queue.has_room(1024)
