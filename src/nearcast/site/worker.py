"""A worker: an OS process that runs the processors of the topics assigned to it.

This is its NATS side. It takes publications from the local broker as a member of the topics' queue group, keeps
them in spools, has the executor process them one at a time, and publishes what comes out. Topics come and go while
it runs: see `membership`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import uvloop

from nearcast.domain.latency_histogram import bucket, empty
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, ConnectionLostError, open_connection
from nearcast.nats.deduplication import RecentContents, RecentIds
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.stamp import dead_letter_block, header_block, notification_id, parse_stamp, stamp_of
from nearcast.protocol.worker import TopicWork, WorkerAssignment, WorkerStats
from nearcast.site.executor import Executor, Ticket
from nearcast.site.membership import Hosted, Membership
from nearcast.site.runner import Announcement, Setup
from nearcast.site.spool import Spool

__all__ = ["Worker", "main"]

_log = logging.getLogger(__name__)
# How far the runner may be behind before messages wait outside the spool: the ring keeps this many slots more than
# the spool's size, so that what a processor sees never depends on what came after its message.
_AHEAD = 512
_WAITING_LIMIT = 200_000
_ANONYMOUS = b"anonymous:"
_SAMPLED = 16  # one message in so many has its latency taken; a power of two


class Topic:
    """One concrete topic at this worker."""

    __slots__ = (
        "copied",
        "copies",
        "latency",
        "name",
        "notifications",
        "number",
        "processed",
        "recent",
        "spool",
        "timeout",
        "unnamed",
    )

    def __init__(self, number: int, name: str, hosted: Hosted, folder: Path) -> None:
        self.number, self.name, self.timeout = number, name, hosted.handler.timeout
        self.notifications, self.copies = subjects.notifications(name), subjects.copies(name)
        self.copied = hosted.copied
        self.processed, self.latency = 0, empty()
        # Publications come twice when they are sent again for a quorum, or are handed over by the worker before.
        self.recent = RecentIds() if hosted.spec.replicas or hosted.epoch > 1 else None
        self.unnamed = RecentContents(5 * hosted.hold) if hosted.epoch > 1 else None  # it may be held at several
        path = folder / f"{subjects.stream_name(name)}.spool"
        if hosted.moved_here:
            path.unlink(missing_ok=True)  # of an earlier stay
        self.spool = Spool(path, hosted.handler.spool + _AHEAD)


class Worker:
    """Publications in, notifications out."""

    def __init__(self, assignment: WorkerAssignment) -> None:
        self._assignment = assignment
        self.site, self.name = assignment.site, assignment.worker
        self._folder = Path(assignment.run_directory) / f"spools-{assignment.worker}"
        self._topics: dict[str, Topic] = {}  # by the subject a message came on
        self._by_name: dict[str, Topic] = {}
        self._numbered: list[Topic] = []
        self.waiting: deque[tuple[Topic, bytes, bytes, bool]] = deque()
        self._put_so_far = self._anonymous = 0
        self._home = [assignment.site.encode()]
        self.stats = WorkerStats(worker=assignment.worker)
        setup = Setup(assignment.modules, assignment.search_path)
        self.executor = Executor(setup, self._done, self._failed)
        self.membership = Membership(self)
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        assignment = self._assignment
        name = f"{assignment.site}/{assignment.worker}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._connection = await open_connection([assignment.url], name=name, echo=False, timeout=30)
        started = asyncio.Event()
        stats = Endpoint("stats", subjects.worker(self.site, self.name), None, self._stats)
        server = Server(self._connection, [stats, *self.membership.endpoints()], "nearcast-worker")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.executor.run(started.set))
                await started.wait()
                for spec in assignment.topics:
                    await self.membership.host(spec, assignment.epochs.get(spec.name, 0))
                await self.membership.listen()
                await server.start()
                await self.connection.flush()
        finally:
            await server.stop()
            await self.membership.stop()
            await self._connection.close()

    @property
    def connection(self) -> Connection:
        """The connection to the broker, once it runs."""
        assert self._connection is not None
        return self._connection

    def published(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self.meet(subject)
        message_id = stamp_of(headers)
        if not message_id:
            message_id = self._own_id()
            if topic.unnamed is not None:
                topic.unnamed.note(payload, time.monotonic())
        if topic.recent is not None and topic.recent.seen(message_id):
            self.stats.duplicates += 1
            return
        if topic.copied:
            self.send(topic.copies, header_block(message_id), payload)
            self.stats.copies_sent += 1
        self.take(topic, message_id, payload, True)

    def copied(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self.meet(subject)
        self.stats.copies_received += 1
        message_id = stamp_of(headers)
        if topic.unnamed is not None and message_id.startswith(_ANONYMOUS):
            topic.unnamed.note(payload, time.monotonic())
        if topic.recent is None or not topic.recent.seen(message_id):
            self.take(topic, message_id, payload, False)

    def handed_over(self, topic: Topic, message_id: bytes, payload: bytes) -> None:
        """A publication that the worker before got after it had left; it may have come here, too."""
        if topic.recent is not None and topic.recent.seen(message_id):
            return
        self.take(topic, message_id or self._own_id(), payload, True)

    def take(self, topic: Topic, message_id: bytes, payload: bytes, process: bool) -> None:
        """Into the spool and, if it is to be processed here, on to the runner; or in line when that is far behind."""
        if self.waiting or self._is_far_ahead():
            if len(self.waiting) >= _WAITING_LIMIT:
                self.waiting.popleft()
                self.stats.dropped += 1
            self.waiting.append((topic, message_id, payload, process))
        else:
            self._put(topic, message_id, payload, process)

    def _put(self, topic: Topic, message_id: bytes, payload: bytes, process: bool) -> None:
        number = topic.spool.append(message_id, payload)
        self._put_so_far += 1
        if process:
            self.executor.submit(Ticket(topic.number, number, topic.timeout, self._put_so_far))

    def _is_far_ahead(self) -> bool:
        outstanding = self.executor.outstanding
        return bool(outstanding) and self._put_so_far - outstanding[0].position >= _AHEAD

    def _take_waiting(self) -> None:
        while self.waiting and not self._is_far_ahead():
            self._put(*self.waiting.popleft())

    def _done(self, ticket: Ticket, notifications: list[bytes]) -> None:
        topic, stats = self._numbered[ticket.topic], self.stats
        origin = topic.spool.read(ticket.number)[0]
        stats.processed += 1
        topic.processed += 1
        if not topic.processed & (_SAMPLED - 1):
            self._sample(topic, origin)
        if origin.split(b":", 2)[1:2] != self._home:
            stats.delegated += 1
        for n, payload in enumerate(notifications):
            self.send(topic.notifications, header_block(notification_id(origin, n)), payload)
        stats.notified += len(notifications)
        if self.waiting:
            self._take_waiting()

    def _failed(self, ticket: Ticket, reason: str) -> None:
        topic = self._numbered[ticket.topic]
        message_id, payload = topic.spool.read(ticket.number)
        self.stats.dead_letters += 1
        _log.warning("topic %s, message %s: %s", topic.name, message_id.decode(errors="replace"), reason)
        self.send(subjects.dead_letters(topic.name), dead_letter_block(message_id, reason), payload)
        self._take_waiting()

    async def _stats(self, request: None) -> WorkerStats:
        self.stats.runner_pid = self.executor.pid or 0
        self.stats.restarts = self.executor.restarts
        self.stats.topics = {name: self._work(hosted) for name, hosted in self.membership.hosted.items()}
        return self.stats

    def send(self, subject: str, headers: bytes, payload: bytes) -> None:
        assert self._connection is not None
        try:
            self._connection.send(subject, headers, payload)
        except ConnectionLostError as error:
            self.stats.dropped += 1
            _log.error("%s: not sent: %s", subject, error)

    def meet(self, subject: str) -> Topic:
        """A topic seen for the first time, by whichever subject: find its processor and open its spool."""
        name = subjects.topic_of(subject)
        topic = self._by_name.get(name)
        if topic is None:
            hosted = self.membership.hosting(name)
            topic = self._by_name[name] = Topic(len(self._numbered), name, hosted, self._folder)
            hosted.topics.append(topic)
            self._numbered.append(topic)
            self.executor.announce(Announcement(topic.number, name, str(topic.spool.path), hosted.handler.pattern))
        self._topics[subject] = topic
        return topic

    def forget(self, topic: Topic) -> None:
        """A topic that is processed elsewhere now."""
        self.executor.retire(topic.number)
        self._by_name.pop(topic.name, None)
        for subject in [subject for subject, known in self._topics.items() if known is topic]:
            del self._topics[subject]
        topic.spool.close()
        topic.spool.path.unlink(missing_ok=True)

    def _sample(self, topic: Topic, origin: bytes) -> None:
        published_us = parse_stamp(origin).published_us
        if published_us:
            topic.latency[bucket((time.time_ns() // 1000 - published_us) / 1000)] += 1

    def _work(self, hosted: Hosted) -> TopicWork:
        numbers = {topic.number for topic in hosted.topics}
        waiting = sum(ticket.topic in numbers for ticket in self.executor.outstanding)
        waiting += sum(entry[0].number in numbers for entry in self.waiting)
        return TopicWork(
            hosted.epoch,
            sum(topic.processed for topic in hosted.topics),
            sum(self.executor.busy[number] for number in numbers),
            waiting,
            [sum(counts) for counts in zip(empty(), *(topic.latency for topic in hosted.topics), strict=True)],
        )

    def _own_id(self) -> bytes:
        """An id for a publication that came without one, from a device that does not use the SDK."""
        self._anonymous += 1
        return b"%b%b:%d:%d" % (_ANONYMOUS, self._home[0], time.time_ns() // 1000, self._anonymous)


async def _run_until_signal(assignment: WorkerAssignment) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await Worker(assignment).run()


def main() -> None:
    """Entry point of the worker process: its assignment comes as JSON on standard input."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerAssignment)
    try:
        uvloop.run(_run_until_signal(assignment))
    except* NearcastError as errors:
        sys.exit(str(errors.exceptions[0]))
    except* asyncio.CancelledError:
        sys.exit(0)


if __name__ == "__main__":
    main()
