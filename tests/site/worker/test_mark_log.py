"""Marks: what they say, and that nothing is marked whose notifications the broker did not confirm."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.digest import id_hash
from nearcast.nats.stamp import parse_stamp, stamp_of
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.marks import Marks
from nearcast.site.worker.mark_log import MarkLog
from nearcast.site.worker.processing_record import ProcessingRecord
from nearcast.testing import until


class Broker:
    """A connection that confirms, or fails to."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.marks: list[tuple[str, bytes, Marks]] = []
        self.confirmed = False

    async def flush(self, timeout: float) -> None:
        if self.problem is not None:
            raise self.problem
        self.confirmed = True

    def send(self, subject: str, headers: bytes, payload: bytes) -> None:
        assert self.confirmed
        self.marks.append((subject, stamp_of(headers), msgspec.msgpack.decode(payload, type=Marks)))


@dataclass(eq=False)
class Topic:
    name: str
    family: Any
    record: ProcessingRecord = field(default_factory=ProcessingRecord)


def topic(name: str, family: Any) -> Any:
    return Topic(name, family)


def family(pattern: str, epoch: int = 3) -> Any:
    class Family:
        spec, machine = SimpleNamespace(name=pattern), SimpleNamespace(epoch=epoch)

    return Family()


async def test_one_mark_says_all_of_a_family_as_ranges() -> None:
    log, broker, cars = MarkLog("tokyo", "worker-0", lambda: True), Broker(), family("gps.*")
    one, other = topic("gps.1", cars), topic("gps.2", cars)
    for number in (1, 2, 4, 3, 9):
        log.note(one, b"car~aaaaa:tokyo:17:%d" % number, b"{}")
    log.note(other, b"bus~bbbbb:osaka:18:7", b"{}")
    log.note(other, b"anonymous:tokyo:19:1", b"21.5")  # a device that sends no id
    log.note(other, b"made-by-others", b"{}")
    await log.publish(broker)  # type: ignore[arg-type]
    ((subject, mark_id, marks),) = broker.marks
    assert subject == "mrk.gps._"
    assert parse_stamp(mark_id).publisher == "mark"
    assert (marks.epoch, marks.worker) == (3, "tokyo/worker-0")
    assert marks.topics["gps.1"].sources == {"car~aaaaa": [1, 4, 9, 9]}
    assert marks.topics["gps.2"].sources == {"bus~bbbbb": [7, 7]}
    assert marks.topics["gps.2"].others == [id_hash(b"", b"21.5"), id_hash(b"made-by-others", b"")]


async def test_what_is_too_much_for_one_mark_is_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.site.worker.mark_log._LARGEST_MARK", 3)
    log, broker, cars = MarkLog("tokyo", "worker-0", lambda: True), Broker(), family("gps.*")
    one, other = topic("gps.1", cars), topic("gps.2", cars)
    hashes = [id_hash(b"others-%d" % n, b"") for n in range(4)]
    for n in range(4):
        log.note(one, b"others-%d" % n, b"{}")
    for number in (1, 2, 4, 6, 8, 9, 11):
        log.note(one, b"car~aaaaa:tokyo:17:%d" % number, b"{}")
        log.note(other, b"bus~bbbbb:osaka:18:%d" % number, b"{}")
    await log.publish(broker)  # type: ignore[arg-type]
    ranges: dict[str, list[int]] = {"car~aaaaa": [], "bus~bbbbb": []}
    others: list[int] = []
    for _, _, marks in broker.marks:
        for topic_marks in marks.topics.values():
            others += topic_marks.others
            for source, flat in topic_marks.sources.items():
                ranges[source] += flat
    assert ranges["car~aaaaa"] == ranges["bus~bbbbb"] == [1, 2, 4, 4, 6, 6, 8, 9, 11, 11]
    assert others == hashes
    assert len(broker.marks) == 5
    assert one.record.is_empty


@pytest.mark.parametrize("problem", [TimeoutError(), ConnectionLostError("gone")])
async def test_what_the_broker_did_not_confirm_is_not_marked_and_may_come_again(problem: Exception) -> None:
    log, broker, one = MarkLog("tokyo", "worker-0", lambda: True), Broker(), topic("gps", family("gps"))
    message_id = b"car~aaaaa:tokyo:17:1"
    one.record.add(message_id)
    log.note(one, message_id, b"{}")
    broker.problem = problem
    await log.publish(broker)  # type: ignore[arg-type]
    assert broker.marks == []
    assert message_id not in one.record
    assert message_id not in one.record.marked
    broker.problem = None
    log.note(one, message_id, b"{}")  # redelivered, and processed again
    await log.publish(broker)  # type: ignore[arg-type]
    assert len(broker.marks) == 1
    assert message_id in one.record.marked


async def test_marks_that_another_member_waits_for_are_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.site.worker.mark_log._PERIOD", 3600.0)
    log, broker, one = MarkLog("tokyo", "worker-0", lambda: True), Broker(), topic("gps", family("gps"))
    running = asyncio.create_task(log.run(broker))  # type: ignore[arg-type]
    log.note(one, b"car~aaaaa:tokyo:17:1", b"{}")
    log.hurry(one, time.monotonic())
    await until(lambda: len(broker.marks) == 1)
    log.note(one, b"car~aaaaa:tokyo:17:2", b"{}")
    await until(lambda: len(broker.marks) == 2)
    await cancel_and_wait(running)


async def test_what_was_sent_by_a_link_that_was_lost_is_not_marked_though_the_next_one_confirms() -> None:
    """A broker hung, and its link was lost with 566 notifications; the flush of the next one confirmed none of them
    (chaos, seed 10)."""
    link = ["first"]
    log, broker = MarkLog("tokyo", "worker-0", lambda: True, lambda: link[0]), Broker()
    one = topic("gps", family("gps"))
    for number, by in ((1, "first"), (2, "second"), (3, "second")):
        message_id = b"car~aaaaa:tokyo:17:%d" % number
        one.record.add(message_id)
        log.note(one, message_id, b"{}")
        link[0] = by
    await log.publish(broker)  # type: ignore[arg-type]
    assert broker.marks == []
    assert one.record.is_empty  # a store may give them again
    log.note(one, b"car~aaaaa:tokyo:17:4", b"{}")
    await log.publish(broker)  # type: ignore[arg-type]
    assert broker.marks[0][2].topics["gps"].sources == {"car~aaaaa": [4, 4]}


async def test_nothing_to_mark_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    """A worker of topics that are not durable ends."""
    log, broker = MarkLog("tokyo", "worker-0", lambda: True, lambda: ("server", 7)), Broker()
    await log.publish(broker)  # type: ignore[arg-type]
    assert caplog.records == []


async def test_whatever_goes_wrong_what_is_not_marked_may_come_again() -> None:
    log, broker, one = MarkLog("tokyo", "worker-0", lambda: True), Broker(), topic("gps", family("gps"))
    message_id = b"car~aaaaa:tokyo:17:1"
    one.record.add(message_id)
    log.note(one, message_id, b"{}")
    broker.problem = AttributeError("'NoneType' object has no attribute 'write'")  # nats-py, of a closing transport
    await log.publish(broker)  # type: ignore[arg-type]
    assert message_id not in one.record  # else each redelivery would be answered: it is known, a mark follows
