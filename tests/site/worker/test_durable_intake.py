"""Publications on their way into the processing queue: left to the member that has them, late when they had to wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nearcast.domain.topic import TopicSpec
from nearcast.processors import ProcessorSpec
from nearcast.protocol.marks import Redelivered
from nearcast.site.worker.durable_intake import DurableIntake
from nearcast.site.worker.mark_log import MarkLog
from nearcast.site.worker.processing_queue import ProcessingQueue
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess
from nearcast.site.worker.topics import TopicFamily, TopicTable


def publication(number: int) -> bytes:
    return f"car~a1:tokyo:1700000000000000:{number}".encode()


class Broker:
    """Confirms all, and takes all with it."""

    async def flush(self, timeout: float) -> None:
        pass

    def send(self, subject: str, headers: bytes, payload: bytes) -> None:
        pass


class Intake:
    """An intake in front of a processor whose process was never started."""

    def __init__(self, folder: Path, link: Callable[[], object] = lambda: None) -> None:
        self.process = ProcessorProcess(Setup([], []), lambda ticket, made: None, lambda ticket, reason: None)
        queue = ProcessingQueue(self.process, lambda *lost: None)
        table = TopicTable(folder, self.process)
        spec = TopicSpec("gps", ("tokyo", "osaka"), ("tokyo",), quorum=1)
        table.families["gps"] = TopicFamily(spec, ProcessorSpec("gps", 20, 1.0), moved_here=False)
        self.topic = table.topic_for("pub.gps")
        self.marks = MarkLog("tokyo", "worker-0", lambda: True, link)
        self.intake = DurableIntake(queue, self.marks)

    def processed(self) -> list[tuple[bytes, bool]]:
        """Ids in the order in which they are processed, and whether each is late."""
        return [(self.topic.spool.read(ticket.number)[0], ticket.attempt > 0) for ticket in self.process.outstanding]


async def test_what_another_member_has_in_hand_is_left_to_it_until_it_must_have_died(tmp_path: Path) -> None:
    """Both processed it, one behind newer ones, while one of them held it for the sake of order (chaos, seed 1)."""
    one = Intake(tmp_path)
    one.intake.copied(one.topic, publication(2), now=100.0)
    assert one.intake.redelivered(one.topic, publication(2), b"", 1, now=103.0) == Redelivered.KNOWN
    assert one.intake.redelivered(one.topic, publication(1), b"", 1, now=103.0) == Redelivered.TAKEN
    assert one.processed() == [(publication(1), True)]
    assert one.intake.redelivered(one.topic, publication(2), b"", 2, now=107.0) == Redelivered.TAKEN


async def test_what_was_marked_by_a_link_that_was_lost_is_processed_again_if_no_store_has_its_mark(
    tmp_path: Path,
) -> None:
    """A killed broker had confirmed notifications that it had not passed on, and lost their mark, too."""
    link = ["first"]
    one = Intake(tmp_path, lambda: link[0])
    one.intake.take(one.topic, publication(1), b"", now=100.0)
    one.marks.note(one.topic, publication(1), b"")
    await one.marks.publish(Broker())  # type: ignore[arg-type]
    assert one.intake.redelivered(one.topic, publication(1), b"", 1, now=103.0) == Redelivered.KNOWN
    await one.marks.publish(Broker())  # type: ignore[arg-type]
    link[0] = "second"
    assert one.intake.redelivered(one.topic, publication(1), b"", 2, now=106.0) == Redelivered.TAKEN
    assert one.processed() == [(publication(1), False), (publication(1), True)]


async def test_what_waited_for_older_ones_says_that_it_is_late(tmp_path: Path) -> None:
    """A member that started anew had processed newer ones meanwhile (chaos, seed 1)."""
    one = Intake(tmp_path)
    for number, now in ((1, 100.0), (3, 100.1), (4, 102.0), (2, 102.5), (5, 102.6)):
        one.intake.take(one.topic, publication(number), b"", now, attempt=int(number == 2))
    late = {2: True, 3: True}
    assert one.processed() == [(publication(number), late.get(number, False)) for number in range(1, 6)]


async def test_what_comes_behind_newer_ones_says_that_it_is_late(tmp_path: Path) -> None:
    """A client had sent all again, the last second first, to an owner that did not know it (chaos, seed 3)."""
    one = Intake(tmp_path)
    for number in (20, 10, 21, 11):
        one.intake.take(one.topic, publication(number), b"", 100.0)
    assert one.processed() == [(publication(number), number < 20) for number in (20, 10, 21, 11)]
