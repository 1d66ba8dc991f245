"""What MQTT devices publish with QoS 1 to durable topics is kept at their site until the topic's stores have it.

The broker acknowledges such a publication once the site's store has it in `$MQTT_msgs`; a consumer of the agent's keeps
it there. Usually the publication itself reaches the topic's stores, without an id. The agent asks them some seconds
later, and sends what none of them has: in order, under an id that is the same after a restart of the agent.

The stream is bounded. While it is full the broker acknowledges nothing, and devices keep what they publish.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.digest import content_hash
from nearcast.nats.rpc import call
from nearcast.nats.stamp import late_block, mqtt_id
from nearcast.nats.stream_publisher import decode_acknowledgement
from nearcast.nats.tasks import cancel_and_wait, gather_or_cancel
from nearcast.protocol.repair import DigestsAnswer, DigestsRequest, HashesAnswer
from nearcast.site.agent.repair_machine import QUIET
from nearcast.site.agent.replica_contents import all_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["MqttPublications", "StoredHashes"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
_STREAM = subjects.MQTT_STREAM
_CONSUMER = "nearcast"
_LARGEST = 64 << 20
_AGAIN_AFTER = 30.0  # what an agent that was killed had not finished is given to the next one
_MOST = 100_000  # that are asked about at a time
_PERIOD, _RETRY_PERIOD = 15.0, 5.0
_SETTLE = QUIET + 2.0  # stores do not tell of messages without an id that are newer
_REMEMBERED = 60.0
_UNKNOWN_FOR = 60.0  # a topic may become known after the start
_LOOK_BACK = 30.0  # stores are asked about this much more than the age of what is kept
_BATCH, _FETCH_LIMIT, _ASK_LIMIT = 500, 0.5, 5.0
_FETCH_MOST = 5.0  # then what has come is checked; the rest waits for the next turn


Hashes = tuple[int, int]
"""Of a publication as it was published, without an id, and as it is sent from here."""


@dataclass
class _Kept:
    """A publication. stored: the stores that have acknowledged it, if it was sent."""

    topic: str
    payload: bytes
    time_us: int
    id: bytes
    message: Msg
    hashes: Hashes
    stored: set[str] = field(default_factory=set)


class StoredHashes:
    """What one store has, by hashes. Publications of equal content are told apart by their number."""

    def __init__(self, hashes: Iterable[int]) -> None:
        self._left = Counter(hashes)

    def take(self, hashes: Hashes) -> bool:
        """Whether it has one that was not taken before."""
        for number in reversed(hashes):
            if self._left[number] > 0:
                self._left[number] -= 1
                return True
        return False


class MqttPublications:
    """Of one site. store: a connection to its store; connection: to its broker."""

    def __init__(self, site: str, connection: Connection, store: Connection, directory: TopicDirectory) -> None:
        self._site, self._connection, self._store, self._directory = site, connection, store, directory
        self._inbox = connection.new_inbox()
        self._kept: dict[int, _Kept] = {}  # by sequence in the stream
        # Time and hashes of those of the last minute, so that equal ones are not taken for each other.
        self._confirmed: dict[int, tuple[int, Hashes]] = {}
        self._incarnation = ""
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Keep from now on: a device that connects later finds the stream."""
        await self._connection.subscribe_raw(f"{self._inbox}.*", self._acknowledged)
        try:
            await self._open()
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"site {self._site}: the store keeps no MQTT publications: {error}") from error
        self._task = asyncio.create_task(self._run(), name=f"{self._site}: MQTT publications")

    async def stop(self) -> None:
        """What is kept stays in the store."""
        await cancel_and_wait(self._task)

    async def _open(self) -> None:
        manager = self._store.jsm(timeout=10)
        wanted = StreamConfig(
            name=_STREAM, subjects=[subjects.mqtt_kept(">")], retention=RetentionPolicy.INTEREST,
            storage=StorageType.FILE, max_bytes=_LARGEST, discard=DiscardPolicy.NEW,
        )  # fmt: skip
        try:
            found = await manager.stream_info(_STREAM)
            if found.config.max_bytes != _LARGEST:
                await manager.update_stream(found.config.evolve(max_bytes=_LARGEST, discard=DiscardPolicy.NEW))
        except NotFoundError:
            found = await manager.add_stream(wanted)
        assert found.created is not None
        self._incarnation = f"{int(found.created.timestamp()):x}"
        consumer = ConsumerConfig(
            durable_name=_CONSUMER, filter_subject=subjects.mqtt_kept(subjects.publications(">")),
            ack_policy=AckPolicy.EXPLICIT, ack_wait=_AGAIN_AFTER, max_ack_pending=_MOST,
        )  # fmt: skip
        await manager.add_consumer(_STREAM, consumer)
        context = self._store.jetstream(timeout=10)
        self._subscription = await context.pull_subscribe_bind(_CONSUMER, stream=_STREAM)

    async def _run(self) -> None:
        level, complete = logging.WARNING, False
        while True:
            await asyncio.sleep(_PERIOD if complete else _RETRY_PERIOD)
            try:
                await self._ensure_open()
                await self._fetch()
                complete = await self._check()
                level = logging.WARNING
            except (NearcastError, NatsError, TimeoutError) as error:
                _log.log(level, "%s: MQTT publications not forwarded: %s", self._site, error or "no answer")
                level, complete = logging.DEBUG, False
            except Exception:
                _log.exception("%s: MQTT publications not forwarded", self._site)

    async def _ensure_open(self) -> None:
        """The store may have come back without its disk."""
        try:
            await self._store.jsm(timeout=5).consumer_info(_STREAM, _CONSUMER)
        except NotFoundError:
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            await self._open()

    async def _fetch(self) -> None:
        """What waits. A batch that is not full is the last: devices that go on must not keep us from checking."""
        assert self._subscription is not None
        deadline = time.monotonic() + _FETCH_MOST
        while time.monotonic() < deadline:
            try:
                messages = await self._subscription.fetch(_BATCH, timeout=_FETCH_LIMIT)
            except (NatsError, TimeoutError):  # none is left; a store that is away is noticed by what follows
                return
            for message in messages:
                if message.metadata.sequence.stream in self._confirmed:  # that it was acknowledged got lost
                    await message.ack()
                else:
                    self._take(message)
            if len(messages) < _BATCH:
                return

    def _take(self, message: Msg) -> None:
        about = message.metadata
        sequence, time_us = about.sequence.stream, int(about.timestamp.timestamp() * 1e6)
        kept = self._kept.get(sequence)
        if kept is not None:
            kept.message = message
            return
        topic = subjects.topic_of(message.subject.removeprefix(subjects.mqtt_kept("")))
        made = mqtt_id(self._site, topic, time_us, f"{self._incarnation}-{sequence}")
        subject = subjects.publications(topic).encode()
        hashes = (content_hash(subject, b"", message.data), content_hash(subject, made, message.data))
        self._kept[sequence] = _Kept(topic, message.data, time_us, made, message, hashes)

    async def _check(self) -> bool:
        """Ask the stores. Whether enough of them answered for all that is old enough to be asked about."""
        now_us = int(time.time() * 1e6)
        newest = now_us - int(_SETTLE * 1e6)
        by_topic: dict[TopicSpec, dict[int, _Kept]] = {}
        for sequence, kept in sorted(self._kept.items()):
            if kept.time_us < newest:
                spec = self._spec(kept, now_us)
                if spec is not None:
                    by_topic.setdefault(spec, {})[sequence] = kept
                elif self._directory.within(kept.topic) or now_us - kept.time_us > _UNKNOWN_FOR * 1e6:
                    await self._finish({sequence: kept})
        results = [await self._check_topic(spec, found) for spec, found in by_topic.items()]
        oldest = min((kept.time_us for kept in self._kept.values()), default=newest) - int(_REMEMBERED * 1e6)
        self._confirmed = {n: (at, hashes) for n, (at, hashes) in self._confirmed.items() if at >= oldest}
        return all(results)

    def _spec(self, kept: _Kept, now_us: int) -> TopicSpec | None:
        """The durable topic that it belongs to, unless the topic's stores would have removed it by now."""
        for spec in self._directory.within(kept.topic):
            if spec.durable:
                expired = spec.keep_seconds is not None and now_us - kept.time_us > spec.keep_seconds * 1e6
                return None if expired else spec
        return None

    async def _check_topic(self, spec: TopicSpec, found: dict[int, _Kept]) -> bool:
        needed = max(1, min(spec.quorum, len(spec.replicas)))
        within = time.time() - min(kept.time_us for kept in found.values()) / 1e6 + _LOOK_BACK
        answers = await gather_or_cancel(*(self._ask(store, spec.name, within) for store in spec.replicas))
        stores = [StoredHashes(hashes) for hashes in answers if hashes is not None]
        if len(stores) < needed:
            return False
        for _, hashes in self._confirmed.values():
            for store in stores:
                store.take(hashes)
        stored: dict[int, _Kept] = {}
        missing: dict[int, _Kept] = {}
        for sequence, kept in found.items():
            holders = sum([store.take(kept.hashes) for store in stores])
            if holders >= needed or len(kept.stored) >= needed:
                stored[sequence] = kept
            elif not holders:
                missing[sequence] = kept
        await self._finish(stored)
        if missing:
            _log.warning("%s: sends %d MQTT publications of topic %s again", self._site, len(missing), spec.name)
            for sequence, kept in missing.items():
                block = late_block(kept.id, 1)  # newer ones may have arrived before it
                reply = f"{self._inbox}.{sequence}"
                self._connection.send(subjects.publications(kept.topic), block, kept.payload, reply)
        return len(stored) == len(found)

    async def _ask(self, store: str, topic: str, within: float) -> list[int] | None:
        """The hashes of what a store got of a topic within so many seconds by its own clock, perhaps of more.

        Nothing if it does not answer.
        """
        found: list[int] = []
        try:
            start, more = 0, True
            while more:
                request = DigestsRequest(topic, start, within)
                digests = await self._call(store, "digests", request, DigestsAnswer)
                for bucket, _, _ in digests.digests:
                    hashes = await all_hashes(
                        lambda request: self._call(store, "hashes", request, HashesAnswer), topic, bucket
                    )
                    found += [number for number, _ in (*hashes.named, *hashes.anonymous)]
                start, more = digests.next, bool(digests.next)
        except NearcastError as error:
            _log.debug("%s: store %s does not say what it has of %s: %s", self._site, store, topic, error)
            return None
        return found

    async def _call(self, store: str, verb: str, request: object, answer: type[T]) -> T:
        subject = subjects.replica(store, verb)
        return await call(self._connection, subject, request, answer, timeout=_ASK_LIMIT, encoding="msgpack")

    async def _finish(self, found: dict[int, _Kept]) -> None:
        """They need not be kept any longer."""
        for sequence, kept in found.items():
            await kept.message.ack()
            del self._kept[sequence]
            self._confirmed[sequence] = (kept.time_us, kept.hashes)

    def _acknowledged(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        sequence = subject[len(self._inbox) + 1 :]
        kept = self._kept.get(int(sequence)) if sequence.isdecimal() else None
        if kept is not None and payload:
            answer = decode_acknowledgement(payload)
            if answer.error is None:
                kept.stored.add(answer.domain)
