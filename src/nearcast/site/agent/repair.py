"""Repair: a store gets what it lacks from the other replicas of its topics, at a limited rate, beside live messages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import interest_settle
from nearcast.nats.replica_stream import holds_topic
from nearcast.nats.rpc import call
from nearcast.nats.tasks import TaskSet, cancel_and_wait
from nearcast.protocol.repair import DigestsAnswer, DigestsRequest, HashesAnswer, RunsAnswer, RunsRequest
from nearcast.site.agent.repair_machine import (
    RETRY_PAUSE,
    AskDigests,
    CompareHashes,
    Digests,
    Event,
    FetchBuckets,
    Fetched,
    FetchSequences,
    Instruction,
    Missing,
    RepairMachine,
    RoundFailed,
)  # fmt: skip
from nearcast.site.agent.replica_contents import ReplicaContents, all_hashes, merged_ranges, missing_sequences
from nearcast.site.agent.replica_copy import ReplicaCopy
from nearcast.site.agent.store_index import BucketDigest, bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.store_tail import StoreTail

__all__ = ["Repair"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
_PERIOD = 0.5
_PARALLEL_ROUNDS = 4
_TIMEOUT = 10.0
_READ_GAP = 32  # sequences that are read needlessly rather than asked for with a request of their own


class Repair:
    """The repair of one store's topics.

    topics: those that are stored here. heard: the sites whose stores say that they keep a topic. complete: called when
    a topic has its past: it is no longer behind, or has all that the replicas have that can be asked.
    """

    def __init__(
        self,
        site: str,
        connection: Connection,
        store: Connection,
        tail: StoreTail,
        topics: Callable[[], Iterable[TopicSpec]],
        heard: Callable[[str], set[str]],
        complete: Callable[[TopicSpec], None],
    ) -> None:
        self._site, self._connection, self._tail = site, connection, tail
        self._topics, self._heard, self._complete = topics, heard, complete
        self._copy = ReplicaCopy(site, connection, store, tail)
        self._machines: dict[str, RepairMachine] = {}
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._told_complete: set[str] = set()
        self._tasks, self._slots = TaskSet(), asyncio.Semaphore(_PARALLEL_ROUNDS)
        self._reconnects = connection.stats["reconnects"]
        self._clock = asyncio.get_running_loop().time
        self.contents = ReplicaContents(site, tail)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Repair from now on."""
        self._update()
        self._task = asyncio.create_task(self._run(), name=f"{self._site}: repair")

    async def stop(self) -> None:
        """Stop; what is not fetched yet is found again."""
        await cancel_and_wait(self._task)
        await self._tasks.cancel()

    def store_returned(self) -> None:
        """The store or its way to the others was away: all topics are compared again."""
        for machine in self._machines.values():
            machine.returned(self._clock() + interest_settle())

    def rescanned(self, topic: str) -> None:
        """A stream was read again."""
        if topic in self._machines:
            self._machines[topic].rescanned()

    def behind(self, topic: str) -> bool:
        """Whether the store lacks messages of a topic, as far as is known."""
        machine = self._machines.get(topic)
        return machine is None or machine.behind or self._tail.index(subjects.stream_name(topic)) is None

    def repairing(self, topic: str) -> bool:
        """Whether the store lacks messages of a topic, and there is another one to get them from."""
        return self.behind(topic) and bool(self._heard(topic) - {self._site})

    @property
    def fetched(self) -> dict[str, int]:
        """How many messages of each topic came from other replicas since the start."""
        return {topic: machine.fetched for topic, machine in self._machines.items() if machine.fetched}

    def _update(self) -> None:
        """One machine for each topic that is stored here now."""
        topics = {topic.name: topic for topic in self._topics()}
        for name in self._machines.keys() - topics.keys():
            del self._machines[name]
            self._told_complete.discard(name)
        for name, topic in topics.items():
            machine = self._machines.get(name)
            if machine is None:
                machine = self._machines[name] = self._machine(subjects.stream_name(name))
            machine.set_replicas([site for site in topic.replicas if site != self._site], topic.quorum)

    def _machine(self, stream: str) -> RepairMachine:
        def digest(bucket: int) -> BucketDigest:
            index = self._tail.index(stream)
            if index is None:
                raise NearcastError(f"stream {stream} is being indexed")
            return index.digest(bucket)

        def floor() -> int:
            index = self._tail.index(stream)
            return index.floor if index is not None else 0

        machine = RepairMachine(digest, floor)
        machine.returned(self._clock() + interest_settle())
        return machine

    async def _run(self) -> None:
        while True:
            try:
                if self._connection.stats["reconnects"] != self._reconnects:
                    self._reconnects = self._connection.stats["reconnects"]
                    self.store_returned()
                self._update()
                for topic in self._topics():
                    self._start_if_due(topic)
            except Exception:
                _log.exception("%s: repair failed", self._site)
            await asyncio.sleep(_PERIOD)

    def _start_if_due(self, topic: TopicSpec) -> None:
        machine, under_way, now = self._machines[topic.name], self._rounds.get(topic.name), self._clock()
        machine.heard(self._heard(topic.name) if self._connection.is_connected else (), now)
        if under_way is not None and not under_way.done():
            return
        if not machine.behind and topic.name not in self._told_complete:
            self._told_complete.add(topic.name)
            self._complete(topic)
        sources = machine.copied_from(now)
        if machine.behind and not sources:
            self._told_complete.discard(topic.name)
        check = self._checks.get(topic.name)
        if sources and topic.name not in self._told_complete and (check is None or check.done()):
            check = self._tasks.spawn(self._check_copy(topic, sources), f"copy of {topic.name}")
            self._checks[topic.name] = check
        self._rounds.pop(topic.name, None)
        if self._tail.index(subjects.stream_name(topic.name)) is not None and machine.is_due(now):
            self._rounds[topic.name] = self._tasks.spawn(self._round(topic.name, machine), f"repair of {topic.name}")

    async def _check_copy(self, topic: TopicSpec, sources: list[str]) -> None:
        """A copy is complete if one of its sources has the past: two new replicas may be equal and both lack it."""
        for site in sources:
            if await holds_topic(self._connection, site, topic.name):
                self._told_complete.add(topic.name)
                self._complete(topic)
                return
        await asyncio.sleep(RETRY_PAUSE)

    async def _round(self, topic: str, machine: RepairMachine) -> None:
        async with self._slots:
            before = machine.fetched
            instruction = machine.start_round(self._clock())
            while instruction is not None:
                peer = instruction.peer
                try:
                    instruction = machine.handle(await self._do(topic, instruction), self._clock())
                except Exception as error:  # else the machine would wait for the end of this round forever
                    known = isinstance(error, NearcastError)
                    level = logging.INFO if known else logging.WARNING
                    text = "%s: topic %s is not compared with %s: %s"
                    _log.log(level, text, self._site, topic, peer, error, exc_info=not known)
                    instruction = machine.handle(RoundFailed(str(error)), self._clock())
            if machine.fetched > before:
                count = machine.fetched - before
                _log.info("%s: fetched %d messages of topic %s", self._site, count, topic)

    async def _do(self, topic: str, instruction: Instruction) -> Event:
        match instruction:
            case AskDigests(peer, start, within, quiet):
                answer = await self._ask(peer, "digests", DigestsRequest(topic, start, within, quiet), DigestsAnswer)
                await self._tail.current_index(subjects.stream_name(topic), _TIMEOUT)
                return Digests([BucketDigest(*one) for one in answer.digests], answer.floor, answer.next)
            case FetchBuckets(peer, first, last):
                runs = (await self._ask(peer, "runs", RunsRequest(topic, first, last), RunsAnswer)).runs
                count = await self._copy.fetch(topic, peer, runs, lambda e: first <= bucket_of(e.time_us) <= last)
                return Fetched(count)
            case CompareHashes(peer, bucket):
                return await self._compare(topic, peer, bucket)
            case FetchSequences(peer, sequences):
                wanted = set(sequences)
                ranges = merged_ranges(((one, one) for one in sequences), _READ_GAP)
                return Fetched(await self._copy.fetch(topic, peer, ranges, lambda entry: entry.sequence in wanted))

    async def _ask(self, peer: str, verb: str, request: object, answer: type[T]) -> T:
        subject = subjects.replica(peer, verb)
        return await call(self._connection, subject, request, answer, timeout=_TIMEOUT, encoding="msgpack")

    async def _compare(self, topic: str, peer: str, bucket: int) -> Missing:
        theirs, ours = await self._hashes(topic, peer, bucket), await self._hashes(topic, self._site, bucket)
        missing = missing_sequences(theirs.named, Counter(number for number, _ in ours.named))
        if theirs.anonymous:
            # Each store has a time of its own for these: a message of this bucket may be in the one beside it here.
            near, all_near = Counter(number for number, _ in ours.anonymous), Counter[int]()
            for beside in (bucket - 1, bucket, bucket + 1):
                all_near.update(number for number, _ in (await self._hashes(topic, self._site, beside)).anonymous)
                all_near.subtract(number for number, _ in (await self._hashes(topic, peer, beside)).anonymous)
            lacking = Counter({number: -count for number, count in all_near.items() if count < 0})
            for number, sequence in theirs.anonymous:
                if near[number] > 0:
                    near[number] -= 1
                elif lacking[number] > 0:
                    lacking[number] -= 1
                    missing.append(sequence)
        return Missing(tuple(missing), settled=not theirs.left_out)

    async def _hashes(self, topic: str, site: str, bucket: int) -> HashesAnswer:
        if site == self._site:
            return await all_hashes(self.contents.hashes, topic, bucket)
        return await all_hashes(lambda request: self._ask(site, "hashes", request, HashesAnswer), topic, bucket)
