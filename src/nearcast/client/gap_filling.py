"""Fills the gaps of a subscription to durable topics or a channel: does what the gap detectors decide.

While the connection is away nothing comes; when it is back, live messages are held until the stores have been read, so
that older messages come first. What a store gives is marked late and merged by time with what is held.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from nearcast.client.delivered_ids import DeliveredIds
from nearcast.client.gap_detection import GapDetector, ReadStore
from nearcast.domain.topic import matches
from nearcast.errors import NearcastError
from nearcast.message import Message
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.digest import id_hash
from nearcast.nats.rpc import call
from nearcast.nats.stamp import late_block, parse_stamp
from nearcast.protocol.services import StoredMessage, TailPage, TailRequest, Tip

if TYPE_CHECKING:
    from nearcast.client.cursor import Cursor
    from nearcast.client.session import Sessions
    from nearcast.client.subscription import Subscription

__all__ = ["DurablePart", "GapFiller"]

_log = logging.getLogger(__name__)
_STEP = 0.5
_PAGE_TIMEOUT = 5.0
_HOLD_LIMIT = 10.0
# So much of what a store gives is put in order before it is delivered.
_SORTED_MESSAGES, _SORTED_BYTES = 20_000, 16 << 20
_CONTENTS = 65_536
_LOOK_UP_EVERY = 10.0


@dataclass(frozen=True)
class DurablePart:
    """What a subscription takes of one durable topic, family or channel.

    name: in the configuration. topic: what its stores are asked for. notifications, results: of which kind.
    """

    name: str
    topic: str
    sites: tuple[str, ...]
    notifications: bool = False
    results: bool = False


class GapFiller:
    """For one subscription. look_up: gives its parts as they are configured now."""

    def __init__(
        self,
        subscription: Subscription,
        sessions: Sessions,
        look_up: Callable[[], Awaitable[list[DurablePart]]],
        choice: random.Random,
    ) -> None:
        self._subscription, self._sessions, self._look_up, self._choice = subscription, sessions, look_up, choice
        self.delivered = DeliveredIds()
        self._clock = asyncio.get_running_loop().time
        self._parts: dict[str, tuple[DurablePart, GapDetector]] = {}
        self._of_subject: dict[str, GapDetector | None] = {}
        self._unstamped: set[str] = set()  # topics with messages without ids: their seconds cannot be compared
        self._contents: deque[tuple[float, bytes]] = deque(maxlen=_CONTENTS)
        self._held: deque[Message] | None = None
        self._holding_since = 0.0
        self._lost = False
        self._outdated, self._looked_up = False, 0.0
        self._wake = asyncio.Event()

    async def start(self, parts: list[DurablePart], cursor: Cursor | None = None) -> None:
        """Follow beacons and fill gaps from now on. cursor: says where an earlier process stopped, and is kept."""
        now = self._looked_up = self._clock()
        subscription = self._subscription
        for part in parts:
            ago = cursor.stopped_ago(part.name) if cursor is not None else None
            since = {site: now - seconds for site, seconds in ago.items()} if ago else None
            detector = GapDetector(part.sites, self.delivered.__contains__, self._choice, now, since=since)
            self._parts[part.name] = part, detector
            if not part.results:
                await subscription.attach(self._sessions.connection(), subjects.tips(part.topic), self._tip)
        if cursor is not None:
            self._follow(cursor)
        self._sessions.on_disconnect.append(self._disconnected)
        self._sessions.on_reconnect.append(self._wake.set)
        subscription.on_close(lambda: self._sessions.on_disconnect.remove(self._disconnected))
        subscription.on_close(lambda: self._sessions.on_reconnect.remove(self._wake.set))
        subscription.spawn(self._run(), "gaps of")

    def _follow(self, cursor: Cursor) -> None:
        """Save how far the subscription has come."""
        subscription = self._subscription

        def positions() -> dict[str, dict[str, float]]:
            now = self._clock()
            return {
                name: {site: now - good for site, good in detector.positions.items()}
                for name, (_, detector) in self._parts.items()
            }

        def unread() -> tuple[int, int]:
            held = len(self._held or ())
            return subscription.received + held, subscription.pending + held

        subscription.cursor = cursor
        subscription.spawn(cursor.run(positions, unread), "cursor of")
        subscription.on_close(lambda: cursor.save(positions(), *unread()))

    # What comes in.

    def _disconnected(self) -> None:
        self._lost = True
        self.hold()

    def _tip(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            tip: Tip = decode(payload, Tip, "msgpack")
        except MalformedError as error:
            drop("beacon", subject, error)
            return
        topic, now = subjects.topic_of(subject), self._clock()
        detector = self._detector_of(topic)
        if detector is None or not matches(self._subscription.topic, topic):
            return
        if tip.site not in detector.sites:
            self._outdated = True  # the topic's stores have changed
            return
        self.note_log()
        if topic in self._unstamped:
            tip = msgspec.structs.replace(tip, counts=[], digests=[])
        detector.tip(topic, tip, now)

    def note_log(self) -> None:
        """Tell the detectors what came live or was filled since the last time."""
        now = self._clock()
        for subject, message_id, payload in self._subscription.take_log():
            self._note(subjects.topic_of(subject), message_id, payload, now)

    def _note(self, topic: str, message_id: bytes, payload: bytes, now: float) -> None:
        if not message_id:
            if len(self._unstamped) >= _CONTENTS:
                self._unstamped.clear()
            self._unstamped.add(topic)
            self._contents.append((now, _content(topic, payload)))
            return
        stamp = parse_stamp(message_id)
        self.delivered.note_time(stamp.source, stamp.published_us)
        detector = self._detector_of(topic)
        if detector is not None:
            detector.delivered(topic, stamp.published_us // 1_000_000, partial(id_hash, message_id, b""), now)

    def _detector_of(self, topic: str) -> GapDetector | None:
        try:
            return self._of_subject[topic]
        except KeyError:
            found = (one for part, one in self._parts.values() if part.results or matches(part.name, topic))
            if len(self._of_subject) >= _CONTENTS:
                self._of_subject.clear()
            return self._of_subject.setdefault(topic, next(found, None))

    # What is done about it.

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(_STEP):
                    await self._wake.wait()
            except TimeoutError:
                pass
            try:
                await self._step()
            except Exception:  # the next step tries again
                _log.exception("gaps of %s were not filled", self._subscription.topic)

    async def _step(self) -> None:
        now = self._clock()
        self.note_log()
        if not self._sessions.connection().is_connected:
            self._holding_since = now
            return
        await self._subscription.replay_done()  # it reads the stores, too
        if self._lost:
            self._lost, self._outdated, self._looked_up = False, True, 0.0
            for _, detector in self._parts.values():
                detector.reconnected(now)
        if self._outdated and now - self._looked_up > _LOOK_UP_EVERY:
            await self._refresh(now)
        for part, detector in list(self._parts.values()):
            for read in detector.due(self._clock()):
                await self._read(part, detector, read)
        waiting = any(detector.holding for _, detector in self._parts.values())
        if self._held is not None and not self._lost and not waiting:
            self._release()

    async def _refresh(self, now: float) -> None:
        """Learn which stores keep the topics now."""
        try:
            parts = await self._look_up()
        except NearcastError as error:
            _log.debug("gaps of %s: %s", self._subscription.topic, error)
            return
        self._outdated, self._looked_up = False, now
        for part in parts:
            if part.name in self._parts:
                detector = self._parts[part.name][1]
                detector.set_sites(part.sites, now)
                self._parts[part.name] = part, detector

    async def _read(self, part: DurablePart, detector: GapDetector, read: ReadStore) -> None:
        started, filled = self._clock(), self._subscription.filled
        self.delivered.filling(True)
        try:
            await self._read_store(part, read)
        except NearcastError as error:
            _log.debug("gaps of %s: the store of %s: %s", part.name, read.site, error)
            detector.failed(read.site, self._clock())
        else:
            self.note_log()
            detector.read(read.site, started)
        finally:
            self.delivered.filling(False)
        if self._subscription.filled > filled:
            number = self._subscription.filled - filled
            _log.info("%d messages of %s came from the store of %s", number, part.name, read.site)

    async def _read_store(self, part: DurablePart, read: ReadStore) -> None:
        request = TailRequest(part.topic, int(read.within * 1e6), part.notifications, part.results)
        oldest = self._clock() - read.within - 1.0
        known = Counter(content for at, content in self._contents if at >= oldest)
        fresh: list[StoredMessage] = []
        size = 0
        while True:
            page = await self._page(read.site, request)
            missing = [stored for stored in page.messages if self._is_missing(stored, known)]
            fresh += missing
            size += sum(len(stored.payload) for stored in missing)
            if page.cursor is None or len(fresh) >= _SORTED_MESSAGES or size >= _SORTED_BYTES:
                await self._deliver(fresh)
                fresh, size = [], 0
            if page.cursor is None:
                return
            request = msgspec.structs.replace(request, cursor=page.cursor)
            if self._held is not None and self._clock() - self._holding_since > _HOLD_LIMIT:
                self._release()

    async def _page(self, site: str, request: TailRequest) -> TailPage:
        connection = self._sessions.connection()
        if not connection.is_connected:
            raise ConnectionLostError("no broker answers")
        scope = subjects.history_scope(request.topic, results=request.results)
        subject = f"{subjects.history(site, 'tail')}.{scope}"
        return await call(connection, subject, request, TailPage, timeout=_PAGE_TIMEOUT, encoding="msgpack")

    def _is_missing(self, stored: StoredMessage, known: Counter[bytes]) -> bool:
        """Whether a stored message did not come; known: contents of messages without ids that did."""
        if not matches(self._subscription.topic, stored.topic) and not self._subscription.of_channel:
            return False
        if stored.id:
            return stored.id not in self.delivered
        content = _content(stored.topic, stored.payload)
        known[content] -= 1
        return known[content] < 0

    async def _deliver(self, fresh: list[StoredMessage]) -> None:
        """Deliver what did not come, in order of time; what is held and older goes first."""
        subscription = self._subscription
        for stored in sorted(fresh, key=_time_of):
            if stored.id and stored.id in self.delivered:
                continue  # it came live while the page was on its way
            self.delivered.seen(stored.id)
            subscription.newest.is_behind(stored.topic, stored.id)  # newer ones may come live after it, not older ones
            self._note(stored.topic, stored.id, stored.payload, self._clock())
            when = _time_of(stored)
            while self._held and _message_time(self._held[0]) <= when:
                await subscription.put_when_there_is_room(self._held.popleft())
            subscription.filled += 1
            headers = late_block(stored.id, 1)
            await subscription.put_when_there_is_room(
                Message(stored.topic, stored.payload, headers, subscription.decode)
            )

    # Holding live messages.

    def hold(self) -> None:
        """Let live messages wait for older ones, unless a replay does so already."""
        if self._held is None and self._subscription.deliver == self._subscription.put:
            self._held, self._holding_since = deque(), self._clock()
            self._subscription.deliver = self._keep

    def _keep(self, message: Message) -> None:
        assert self._held is not None
        self._held.append(message)
        if len(self._held) >= self._subscription.buffer or self._clock() - self._holding_since > _HOLD_LIMIT:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or (), None
        self._subscription.deliver = self._subscription.put
        for message in held:
            self._subscription.put(message)
        for _, detector in self._parts.values():
            detector.release()


def _time_of(stored: StoredMessage) -> tuple[int, int]:
    """Of a stored message: its own time, and its place among the notifications of a publication."""
    stamp = parse_stamp(stored.id)
    return (stamp.published_us or stored.time_us, _notification_number(stamp.id))


def _message_time(message: Message) -> tuple[int, int]:
    """Of one that came live; without an id it came just now."""
    return (message.stamp.published_us or time.time_ns() // 1000, _notification_number(message.id))


def _notification_number(message_id: str) -> int:
    number = message_id.rpartition(";")[2]
    return int(number) if number.isdecimal() else 0


def _content(topic: str, payload: bytes) -> bytes:
    return blake2b(topic.encode() + b"\0" + payload, digest_size=16).digest()
