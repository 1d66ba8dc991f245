"""A worker: an OS process that runs the processors of the topics assigned to it.

This is its NATS side. It takes publications from the local broker as a member of the topics' queue group, keeps
them in spools, has the executor process them one at a time, and publishes what comes out.
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

from nearcast.domain.errors import NearcastError
from nearcast.domain.topic import TopicSpec, matches
from nearcast.site.executor import Executor, Ticket
from nearcast.site.processor import ProcessorSpec, find_processor
from nearcast.site.runner import Announcement, Setup
from nearcast.site.spool import Spool
from nearcast.wire import subjects
from nearcast.wire.connection import Connection, ConnectionLostError, open_connection
from nearcast.wire.recent import RecentIds
from nearcast.wire.stamp import dead_letter_block, header_block, notification_id, stamp_of

__all__ = ["Assignment", "Worker", "WorkerStats", "main"]

_log = logging.getLogger(__name__)
# How far the runner may be behind before messages wait outside the spool: the ring keeps this many slots more than
# the spool's size, so that what a processor sees never depends on what came after its message.
_AHEAD = 512
_WAITING_LIMIT = 200_000


class Assignment(msgspec.Struct, frozen=True):
    """What a worker is told to do."""

    site: str
    worker: str
    url: str
    run_directory: str
    modules: list[str]
    search_path: list[str]
    topics: list[TopicSpec]


class WorkerStats(msgspec.Struct):
    """Counts since the worker started. Delegated: processed here for a publisher whose home is another site."""

    worker: str = ""
    processed: int = 0
    delegated: int = 0
    notified: int = 0
    copies_sent: int = 0
    copies_received: int = 0
    dead_letters: int = 0
    dropped: int = 0
    duplicates: int = 0
    runner_pid: int = 0
    restarts: int = 0


class _Topic:
    """One concrete topic at this worker."""

    __slots__ = ("copied", "copies", "name", "notifications", "number", "recent", "spool", "timeout")

    def __init__(self, number: int, name: str, spec: TopicSpec, handler: ProcessorSpec, folder: Path) -> None:
        self.number, self.name, self.timeout = number, name, handler.timeout
        self.notifications, self.copies = subjects.notifications(name), subjects.copies(name)
        self.copied = len(spec.managed_by) > 1
        # Only publications to durable topics are ever sent twice (a retry for the quorum).
        self.recent = RecentIds() if spec.replicas else None
        self.spool = Spool(folder / f"{subjects.stream_name(name)}.spool", handler.spool + _AHEAD)


class Worker:
    """Publications in, notifications out."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._folder = Path(assignment.run_directory)
        self._specs = {spec.name: spec for spec in assignment.topics}
        self._handlers: dict[str, ProcessorSpec] = {}
        self._topics: dict[str, _Topic] = {}  # by the subject a message came on
        self._by_name: dict[str, _Topic] = {}
        self._numbered: list[_Topic] = []
        self._waiting: deque[tuple[_Topic, bytes, bytes, bool]] = deque()
        self._put_so_far = self._anonymous = 0
        self._home = [assignment.site.encode()]
        self.stats = WorkerStats(worker=assignment.worker)
        setup = Setup(assignment.modules, assignment.search_path)
        self._executor = Executor(setup, self._done, self._failed)
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        assignment = self._assignment
        name = f"{assignment.site}/{assignment.worker}"
        self._connection = await open_connection([assignment.url], name=name, echo=False, timeout=30)
        started = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._executor.run(started.set))
                await started.wait()
                self._handlers = {name: find_processor(self._executor.processors, name) for name in self._specs}
                await self._subscribe(self._connection)
        finally:
            await self._connection.close()

    async def _subscribe(self, connection: Connection) -> None:
        for name, spec in self._specs.items():
            await connection.attach(subjects.publications(name), self._published, subjects.PROCESSORS)
            if len(spec.managed_by) > 1:
                await connection.attach(subjects.copies(name), self._copied)
        await connection.attach(subjects.worker(self._assignment.site, self._assignment.worker), self._asked)
        await connection.flush()

    def _published(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self._meet(subject)
        message_id = stamp_of(headers) or self._own_id()
        if topic.recent is not None and topic.recent.seen(message_id):
            self.stats.duplicates += 1
            return
        if topic.copied:
            self._send(topic.copies, header_block(message_id), payload)
            self.stats.copies_sent += 1
        self._take(topic, message_id, payload, True)

    def _copied(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self._meet(subject)
        self.stats.copies_received += 1
        self._take(topic, stamp_of(headers), payload, False)

    def _take(self, topic: _Topic, message_id: bytes, payload: bytes, process: bool) -> None:
        """Into the spool and, if it is to be processed here, on to the runner; or in line when that is far behind."""
        if self._waiting or self._is_far_ahead():
            if len(self._waiting) >= _WAITING_LIMIT:
                self._waiting.popleft()
                self.stats.dropped += 1
            self._waiting.append((topic, message_id, payload, process))
        else:
            self._put(topic, message_id, payload, process)

    def _put(self, topic: _Topic, message_id: bytes, payload: bytes, process: bool) -> None:
        number = topic.spool.append(message_id, payload)
        self._put_so_far += 1
        if process:
            self._executor.submit(Ticket(topic.number, number, topic.timeout, self._put_so_far))

    def _is_far_ahead(self) -> bool:
        outstanding = self._executor.outstanding
        return bool(outstanding) and self._put_so_far - outstanding[0].position >= _AHEAD

    def _take_waiting(self) -> None:
        while self._waiting and not self._is_far_ahead():
            self._put(*self._waiting.popleft())

    def _done(self, ticket: Ticket, notifications: list[bytes]) -> None:
        topic, stats = self._numbered[ticket.topic], self.stats
        origin = topic.spool.read(ticket.number)[0]
        stats.processed += 1
        if origin.split(b":", 2)[1:2] != self._home:
            stats.delegated += 1
        for n, payload in enumerate(notifications):
            self._send(topic.notifications, header_block(notification_id(origin, n)), payload)
        stats.notified += len(notifications)
        if self._waiting:
            self._take_waiting()

    def _failed(self, ticket: Ticket, reason: str) -> None:
        topic = self._numbered[ticket.topic]
        message_id, payload = topic.spool.read(ticket.number)
        self.stats.dead_letters += 1
        _log.warning("topic %s, message %s: %s", topic.name, message_id.decode(errors="replace"), reason)
        self._send(subjects.dead_letters(topic.name), dead_letter_block(message_id, reason), payload)
        self._take_waiting()

    def _asked(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        self.stats.runner_pid = self._executor.pid or 0
        self.stats.restarts = self._executor.restarts
        self._send(reply, b"", msgspec.json.encode(self.stats))

    def _send(self, subject: str, headers: bytes, payload: bytes) -> None:
        assert self._connection is not None
        try:
            self._connection.send(subject, headers, payload)
        except ConnectionLostError as error:
            self.stats.dropped += 1
            _log.error("%s: not sent: %s", subject, error)

    def _meet(self, subject: str) -> _Topic:
        """A topic seen for the first time, by whichever subject: find its processor and open its spool."""
        name = subjects.topic_of(subject)
        topic = self._by_name.get(name)
        if topic is None:
            spec = next(spec for pattern, spec in self._specs.items() if matches(pattern, name))
            handler = self._handlers[spec.name]
            topic = self._by_name[name] = _Topic(len(self._numbered), name, spec, handler, self._folder)
            self._numbered.append(topic)
            self._executor.announce(Announcement(topic.number, name, str(topic.spool.path), handler.pattern))
        self._topics[subject] = topic
        return topic

    def _own_id(self) -> bytes:
        """An id for a publication that came without one, from a device that does not use the SDK."""
        self._anonymous += 1
        return b"anonymous:%b:%d:%d" % (self._home[0], time.time_ns() // 1000, self._anonymous)


async def _run_until_signal(assignment: Assignment) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await Worker(assignment).run()


def main() -> None:
    """Entry point of the worker process: its assignment comes as JSON on standard input."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    try:
        uvloop.run(_run_until_signal(assignment))
    except* NearcastError as errors:
        sys.exit(str(errors.exceptions[0]))
    except* asyncio.CancelledError:
        sys.exit(0)


if __name__ == "__main__":
    main()
