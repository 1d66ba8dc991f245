"""Catch-up: a store's site sees to it that what the store has of durable topics is processed.

Reads publications and marks of each topic that is processed and stored here, and sends what nobody has marked to the
topic's owner, wherever that is. All replicas do so; each waits longer than the one before it in the topic's list, so
that usually one does. How far all is marked is kept in the store, and a restart continues there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode, decoder, drop
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.digest import id_hash
from nearcast.nats.kv import CATCH_UP, Bucket, BucketError
from nearcast.nats.replica_stream import keeps
from nearcast.nats.stamp import (
    ANONYMOUS,
    dead_letter_block,
    header_block,
    late_block,
    new_incarnation,
    source_and_number,
)
from nearcast.nats.streams import StoredEntry, StreamBounds, StreamReader
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.marks import (
    Marks,
    ProgressAnswer,
    ProgressRequest,
    Redelivered,
    SourceProgress,
    TopicMarks,
)  # fmt: skip
from nearcast.site.agent.catch_up_machine import CatchUpMachine, Checkpoint, DeadLetter, Lag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["CatchUp"]

_log = logging.getLogger(__name__)

_PERIOD, _PERIOD_WHILE_REDELIVERING = 0.25, 0.05
_SETTLE = 2.0
_REDELIVERIES = 2_000  # of a topic in one pass; the machine limits what is under way
_MANY = 500
_BATCH = 2_000
_SAVE_PERIOD = 5.0
_PROGRESS_LIMIT = 4.0
_READ_AGAIN = 20_000  # sequences, after the store was away: a crash may have taken its last messages


@dataclass
class _TopicProgress:
    """A topic and its machine. seen: the stream's last sequence one period ago; marks of what is older came by now."""

    spec: TopicSpec
    stream: str
    created: str
    machine: CatchUpMachine
    token: str
    seen: int = 0
    saved: Checkpoint | None = None
    saved_at: float = 0.0
    lost: bool = False


class CatchUp:
    """One store's. topics: those that it can be read of now. behind: whether the store lacks something of a topic."""

    def __init__(
        self,
        site: str,
        connection: Connection,
        store: Connection,
        topics: Callable[[], Iterable[TopicSpec]],
        behind: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        self._site, self._connection, self._topics, self._behind = site, connection, topics, behind
        self._reader = StreamReader(store)
        self._jsm = store.jsm(timeout=5)
        self._bucket = Bucket(store, site, CATCH_UP)
        self._inbox = connection.new_inbox()
        self._followed: dict[str, _TopicProgress] = {}
        self._by_token: dict[str, _TopicProgress] = {}
        self._mark_prefix = f"mark~{new_incarnation()}:{site}"
        self._counted = 0
        self._decode = decoder(Marks, "msgpack")
        self._passed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Catch up from now on."""
        await self._connection.subscribe_raw(f"{self._inbox}.*.*", self._answered)
        self._task = asyncio.create_task(self._run(), name=f"{self._site}: catch-up")

    async def stop(self) -> None:
        """Stop, and keep how far it got."""
        await cancel_and_wait(self._task)
        for followed in self._followed.values():
            try:
                async with asyncio.timeout(1):
                    await self._save(followed)
            except (NearcastError, TimeoutError) as error:
                _log.debug("%s: position not kept: %s", followed.stream, error)

    def lags(self) -> dict[str, Lag]:
        """How far the owners of topics are behind, as this store sees it; topics without a lag are left out."""
        now = time.monotonic()
        found = {name: followed.machine.lag(now) for name, followed in self._followed.items()}
        return {name: lag for name, lag in found.items() if lag.waiting}

    async def progress(self, request: ProgressRequest) -> ProgressAnswer:
        """How far publications were processed, of all that the store has by now.

        It may lack what came while it was away: others have that. It must not have lost what it acknowledged.
        """
        with contextlib.suppress(NatsError, TimeoutError):
            async with asyncio.timeout(_PROGRESS_LIMIT):
                for _ in range(3):  # the pass that is under way; one that sees what came before it; one that reads that
                    await self._passed.wait()
                config = (await self._jsm.stream_info(subjects.stream_name(request.family))).config
                return self._progress(request, has_past=keeps(config, request.family))
        raise NearcastError(f"the store of {self._site} is not read")

    def _progress(self, request: ProgressRequest, *, has_past: bool) -> ProgressAnswer:
        followed = self._followed.get(request.family)
        if followed is None or followed.lost or followed.machine.full or not has_past:
            raise NearcastError(f"the store of {self._site} cannot tell yet what was processed of {request.family}")
        return ProgressAnswer([SourceProgress(*followed.machine.progress(*one)) for one in request.sources])

    async def _run(self) -> None:
        level = logging.WARNING
        made = redelivering = False
        while True:
            await asyncio.sleep(_PERIOD_WHILE_REDELIVERING if redelivering else _PERIOD)
            try:
                made = made or bool(await self._bucket.create())
                bounds = await self._reader.all_bounds()
                wanted = {spec.name: spec for spec in self._topics() if spec.processed and spec.durable}
                for name in self._followed.keys() - wanted.keys():
                    del self._by_token[self._followed.pop(name).token]
                complete = True
                for name, spec in wanted.items():
                    stream = subjects.stream_name(name)
                    if stream in bounds:
                        complete &= await self._advances(spec, stream, bounds[stream])
                redelivering = any(one.machine.outstanding >= _MANY for one in self._followed.values())
                level = logging.WARNING
                if complete:
                    self._passed.set()
                    self._passed = asyncio.Event()
            except (NearcastError, NatsError, TimeoutError) as error:
                _log.log(level, "%s: catch-up failed: %s; trying again", self._site, error or "no answer")
                level = logging.DEBUG
                for followed in self._followed.values():
                    followed.lost = True
            except Exception:
                _log.exception("%s: catch-up failed", self._site)

    async def _advances(self, spec: TopicSpec, stream: str, bounds: StreamBounds) -> bool:
        """Whether a topic was caught up with. An odd message of one does not keep the others from being processed."""
        try:
            await self._advance(spec, stream, bounds)
        except (NearcastError, NatsError, TimeoutError):  # the store is away, and may have lost something of each topic
            raise
        except Exception:
            _log.exception("%s: catch-up of topic %s failed", self._site, spec.name)
            return False
        return True

    async def _advance(self, spec: TopicSpec, stream: str, bounds: StreamBounds) -> None:
        followed = self._followed.get(spec.name)
        if followed is None:
            followed = self._followed[spec.name] = await self._follow(spec, stream)
            self._by_token[followed.token] = followed
        machine = followed.machine
        followed.spec = spec
        machine.rank = spec.replicas.index(self._site) + 1 if self._site in spec.replicas else len(spec.replicas)
        machine.max_attempts = spec.max_attempts
        machine.newest_first = spec.catch_up == "newest"
        if followed.lost or bounds.last < machine.read_publications:
            followed.lost = False
            machine.read_again(_READ_AGAIN)
        await self._read(followed, bounds)
        if not self._behind(spec.name):
            await self._redeliver(followed)
        if time.monotonic() - followed.saved_at > _SAVE_PERIOD:
            followed.saved_at = time.monotonic()
            with contextlib.suppress(BucketError):  # it costs reading more after a restart
                await self._save(followed)

    async def _follow(self, spec: TopicSpec, stream: str) -> _TopicProgress:
        created = str((await self._jsm.stream_info(stream)).created)
        checkpoint: Checkpoint | None = None
        entry = await self._bucket.get(stream)
        if entry is not None:
            try:
                checkpoint = decode(entry.payload, Checkpoint, "msgpack")
            except MalformedError as error:  # it costs reading more
                drop("position of catch-up", stream, error)
            if checkpoint is not None and checkpoint.created != created:  # another stream of that name
                checkpoint = None
        self._counted += 1
        machine = CatchUpMachine(_SETTLE, checkpoint=checkpoint)
        return _TopicProgress(spec, stream, created, machine, str(self._counted), saved=checkpoint)

    async def _save(self, followed: _TopicProgress) -> None:
        checkpoint = followed.machine.checkpoint(followed.created)
        if checkpoint != followed.saved:
            await self._bucket.put(followed.stream, msgspec.msgpack.encode(checkpoint))
            followed.saved = checkpoint

    # Reading

    async def _read(self, followed: _TopicProgress, bounds: StreamBounds) -> None:
        """Marks first: then most publications are known to be processed when they are read."""
        machine, stream = followed.machine, followed.stream
        subject = subjects.marks(followed.spec.name)
        while machine.read_marks < bounds.last:
            batch = await self._reader.read(stream, subject, max(machine.read_marks + 1, bounds.first), _BATCH)
            for entry in batch.entries:
                self._take_mark(machine, entry)
            if batch.exhausted:
                machine.read_marks = max(machine.read_marks, bounds.last)
        upto, followed.seen = followed.seen, bounds.last
        subject = subjects.publications(followed.spec.name)
        while machine.read_publications < upto and not machine.full:
            start = max(machine.read_publications + 1, bounds.first)
            batch = await self._reader.read(stream, subject, start, _BATCH)
            for entry in batch.entries:
                if entry.sequence > upto:
                    break
                take_publication(machine, entry)
            if batch.exhausted or batch.entries[-1].sequence > upto:
                machine.read_publications = max(machine.read_publications, upto)

    def _take_mark(self, machine: CatchUpMachine, entry: StoredEntry) -> None:
        try:
            marks = self._decode(entry.payload)
        except MalformedError as error:
            drop("mark", entry.subject, error)
            machine.read_marks = max(machine.read_marks, entry.sequence)
            return
        if not machine.marks(entry.sequence, marks, entry.time_us / 1e6):
            _log.warning(
                "marks of %s for epoch %d are ignored: epoch %d began", marks.worker, marks.epoch, machine.epoch
            )

    # Sending

    async def _redeliver(self, followed: _TopicProgress) -> None:
        machine = followed.machine
        due = {one.sequence: one for one in machine.due(time.monotonic(), _REDELIVERIES)}
        if not due:
            return
        found = await self._find(followed, sorted(due))
        for sequence, one in due.items():
            entry = found.get(sequence)
            if entry is None:
                machine.gone(sequence)
            elif isinstance(one, DeadLetter):
                self._give_up(followed, entry, one.attempts, f"no outcome after {one.attempts} attempts")
            elif not self._send(followed, entry, one.attempt):
                machine.gone(sequence)  # else it would be tried forever, and others had to wait
                self._give_up(followed, entry, one.attempt, "it is too large to be sent to a worker")

    async def _find(self, followed: _TopicProgress, sequences: list[int]) -> dict[int, StoredEntry]:
        """The messages with these sequences, those that still exist; neighbours are read together."""
        wanted, found = set(sequences), dict[int, StoredEntry]()
        subject, at = subjects.publications(followed.spec.name), 0
        while at < len(sequences):
            span = sequences[at : at + 500]
            batch = await self._reader.read(followed.stream, subject, span[0], len(span))
            found |= {entry.sequence: entry for entry in batch.entries if entry.sequence in wanted}
            last = batch.entries[-1].sequence if batch.entries else span[-1]
            before, at = at, next((n for n in range(at, len(sequences)) if sequences[n] > last), len(sequences))
            assert at > before
        return found

    def _send(self, followed: _TopicProgress, entry: StoredEntry, attempt: int) -> bool:
        """Whether the broker takes it."""
        topic = subjects.topic_of(entry.subject)
        reply = f"{self._inbox}.{followed.token}.{entry.sequence}"
        headers = late_block(self._id(entry), attempt)
        if not self._connection.takes(subjects.redelivery(topic), reply, len(headers) + len(entry.payload)):
            return False
        try:
            self._connection.send(subjects.redelivery(topic), headers, entry.payload, reply)
        except ConnectionLostError as error:
            _log.debug("%s: not redelivered: %s", topic, error)
        return True

    def _id(self, entry: StoredEntry) -> bytes:
        return entry.id or b"%b%b:%d:%d" % (ANONYMOUS, self._site.encode(), entry.stored_us, entry.sequence)

    def _give_up(self, followed: _TopicProgress, entry: StoredEntry, attempts: int, reason: str) -> None:
        """Nobody has told an outcome: it becomes a dead letter, and is marked so that all replicas know."""
        topic = subjects.topic_of(entry.subject)
        _log.error("topic %s, message %s: %s", topic, entry.id.decode(errors="replace"), reason)
        key = source_and_number(entry.id)
        said = TopicMarks({key[0]: [key[1], key[1]]}) if key else TopicMarks({}, [id_hash(entry.id, entry.payload)])
        self._counted += 1
        mark = Marks(followed.machine.epoch, f"{self._site}/agent", {topic: said})
        mark_id = f"{self._mark_prefix}:{time.time_ns() // 1000}:{self._counted}".encode()
        headers = dead_letter_block(self._id(entry), reason, attempts)
        self._connection.send(subjects.dead_letters(topic), headers, entry.payload)
        family = subjects.marks_of_family(followed.spec.name)
        self._connection.send(family, header_block(mark_id), msgspec.msgpack.encode(mark))

    def _answered(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        token, _, sequence = subject[len(self._inbox) + 1 :].partition(".")
        followed = self._by_token.get(token)
        if followed is None:
            return
        if payload == Redelivered.TAKEN:
            followed.machine.taken(int(sequence), time.monotonic())
        elif payload == Redelivered.KNOWN:
            followed.machine.known(int(sequence), time.monotonic())


def take_publication(machine: CatchUpMachine, entry: StoredEntry) -> None:
    """Tell a machine of a stored publication."""
    key, stored = source_and_number(entry.id), entry.stored_us / 1e6
    since = time.monotonic() - max(0.0, time.time() - stored)
    topic = subjects.topic_of(entry.subject)
    if key is not None:
        machine.publication(entry.sequence, since, topic, *key)
    else:
        machine.publication(entry.sequence, since, topic, "", 0, id_hash(entry.id, entry.payload), stored)
