"""The ids that a subscription has delivered: each message once, however it comes.

Recent ids are remembered one by one. Of those that are forgotten a high-water mark per source stays, because a source's
times only grow: a message of a source that is not newer than a forgotten one was delivered, too.
"""

from __future__ import annotations

from collections import OrderedDict

from nearcast.nats.deduplication import RecentIds
from nearcast.nats.stamp import message_time, parse_stamp

__all__ = ["DeliveredIds", "NewestTimes"]

_REMEMBERED = 65_536
_REMEMBERED_WHILE_FILLING = 524_288
_SOURCES = 65_536


class DeliveredIds(RecentIds):
    """Recent ids, and the newest forgotten time of each source.

    `seen` is one set operation; `note_time` is called now and then for the ids that `seen` took.
    """

    __slots__ = ("_forgotten", "_newest", "_newest_older", "_normal_size")

    def __init__(self, size: int = _REMEMBERED) -> None:
        super().__init__(size)
        self._normal_size = size
        self._newest: dict[str, int] = {}  # source -> microseconds, of the younger generation
        self._newest_older: dict[str, int] = {}
        self._forgotten: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, message_id: bytes) -> bool:
        """Whether it was delivered, or surely before what is remembered."""
        if super().__contains__(message_id):
            return True
        stamp = parse_stamp(message_id)
        return 0 < stamp.published_us <= self._forgotten.get(stamp.source, 0)

    def note_time(self, source: str, published_us: int) -> None:
        """A message of this source and time was delivered recently."""
        if published_us > self._newest.get(source, 0):
            self._newest[source] = published_us

    def filling(self, under_way: bool) -> None:
        """Remember more while a gap is filled: what one store lacks is read from the next, after all of the first."""
        self._size = _REMEMBERED_WHILE_FILLING if under_way else self._normal_size

    def recent(self) -> list[bytes]:
        """All ids that are remembered one by one."""
        return [*self._older, *self._younger]

    def high_water(self) -> dict[str, int]:
        """The newest forgotten time of each source."""
        return dict(self._forgotten)

    def restore(self, recent: list[bytes], high_water: dict[str, int]) -> None:
        """Take over what an earlier subscription had delivered."""
        for message_id in recent:
            self.seen(message_id)
        self._forgotten.update(high_water)

    def _rotate(self) -> None:
        for source, us in self._newest_older.items():
            if us > self._forgotten.get(source, 0):
                self._forgotten[source] = us
            self._forgotten.move_to_end(source)
        while len(self._forgotten) > _SOURCES:
            self._forgotten.popitem(last=False)
        super()._rotate()
        self._newest_older, self._newest = self._newest, {}


class NewestTimes:
    """The newest message of each source that came of a topic: an older one that comes now is late.

    A link between sites that was cut may deliver what it had when newer messages came by the next one.
    """

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], int] = {}

    def is_behind(self, topic: str, message_id: bytes) -> bool:
        """Whether a newer one of its source came before. Notifications of one publication have one time."""
        us = message_time(message_id.partition(b";")[0])
        key = (topic, message_id.partition(b":")[0])
        newest = self._newest.get(key, 0)
        if us < newest:
            return us > 0
        if len(self._newest) >= _SOURCES and key not in self._newest:
            self._newest.clear()
        self._newest[key] = us
        return False
