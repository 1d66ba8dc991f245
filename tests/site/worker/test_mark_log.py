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
from nearcast.site.worker.topics import ProcessingRecord
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


@pytest.mark.parametrize("problem", [TimeoutError(), ConnectionLostError("gone")])
async def test_what_the_broker_did_not_confirm_is_not_marked_and_may_come_again(problem: Exception) -> None:
    log, broker, one = MarkLog("tokyo", "worker-0", lambda: True), Broker(), topic("gps", family("gps"))
    message_id = b"car~aaaaa:tokyo:17:1"
    one.record.in_flight.add(message_id)
    log.note(one, message_id, b"{}")
    broker.problem = problem
    await log.publish(broker)  # type: ignore[arg-type]
    assert broker.marks == []
    assert message_id not in one.record.in_flight
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
