"""Beacons: what a store has of the last seconds of each active topic, so that subscribers find their gaps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.digest import add_digests, id_hash
from nearcast.nats.tasks import cancel_and_wait, repeat
from nearcast.protocol.services import Tip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection
    from nearcast.nats.streams import StoredEntry

__all__ = ["RecentSeconds", "Tips"]

_log = logging.getLogger(__name__)
_PERIOD = 2.0
_SECONDS = 30
_AHEAD = 30  # a publisher writes its time itself: seconds after that would be kept, and not told until they come
_LATE_IDS = 256


@dataclass
class _TopicSeconds:
    family: str
    seconds: dict[int, tuple[int, int]] = field(default_factory=dict)  # count and digest
    late: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_LATE_IDS))  # stored when, id


class RecentSeconds:
    """Counts and digests of the last seconds of message time, by topic. Times are Unix seconds, passed in."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicSeconds] = {}

    def add(self, family: str, entry: StoredEntry, now: int, *, tell_late: bool = True) -> None:
        """A message was stored. tell_late: if it is of none of the seconds that are told, tell its id."""
        topic, second = subjects.topic_of(entry.subject), entry.time_us // 1_000_000
        late = not now - _SECONDS < second <= now + _AHEAD
        if late and not (tell_late and entry.id):
            return
        recent = self._topics.get(topic)
        if recent is None:
            recent = self._topics[topic] = _TopicSeconds(family)
        if late:
            recent.late.append((now, entry.id))
            return
        seconds = recent.seconds
        count, digest = seconds.get(second, (0, 0))
        seconds[second] = count + 1, add_digests(digest, id_hash(entry.id, entry.payload))

    def tips(
        self, site: str, now: int, behind: Callable[[str], bool], counted: Callable[[str], float]
    ) -> dict[str, Tip]:
        """Of each topic that got something recently; the others are forgotten."""
        first, found = now - _SECONDS + 1, {}
        for topic, recent in list(self._topics.items()):
            for second in [second for second in recent.seconds if second < first]:
                del recent.seconds[second]
            while recent.late and recent.late[0][0] < first:
                recent.late.popleft()
            if not recent.seconds and not recent.late:
                del self._topics[topic]
                continue
            told = [recent.seconds.get(second, (0, 0)) for second in range(first, now + 1)]
            late = [message_id for _, message_id in recent.late]
            counts, digests = [count for count, _ in told], [digest for _, digest in told]
            found[topic] = Tip(
                site, behind(recent.family), first, counts, digests, late, min(_SECONDS, counted(recent.family))
            )
        return found


class Tips:
    """Sends the beacons of one store.

    behind: whether the store lacks messages of a topic or family. counted: for how long all that it stored of one has
    been passed to `stored`.
    """

    def __init__(
        self, site: str, connection: Connection, behind: Callable[[str], bool], counted: Callable[[str], float]
    ) -> None:
        self._site, self._connection, self._behind, self._counted = site, connection, behind, counted
        self._recent = RecentSeconds()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send from now on."""
        sending = repeat(self._send, _PERIOD, f"{self._site}: no tips sent")
        self._task = asyncio.create_task(sending, name=f"{self._site}: tips")

    async def stop(self) -> None:
        """Stop sending."""
        await cancel_and_wait(self._task)

    def stored(self, topic: TopicSpec, entries: Sequence[StoredEntry]) -> None:
        """Messages of a topic, or of a family, were stored."""
        prefix = (subjects.notifications if topic.processed else subjects.publications)("")
        now, behind = int(time.time()), self._behind(topic.name)
        for entry in entries:
            if entry.subject.startswith(prefix):
                # A store that catches up stores old messages that subscribers have long had.
                self._recent.add(topic.name, entry, now, tell_late=not behind)

    async def _send(self) -> None:
        tips = self._recent.tips(self._site, int(time.time()), self._behind, self._counted)
        try:
            for topic, tip in tips.items():
                self._connection.send(subjects.tips(topic), b"", msgspec.msgpack.encode(tip))
                if self._connection.backlogged:
                    await self._connection.wait_writable()
        except NearcastError as error:
            _log.debug("%s: no tips sent: %s", self._site, error)
