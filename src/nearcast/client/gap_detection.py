"""Decides when a subscription may have missed something, and which store to read since when. No I/O, no clock.

Live messages are not acknowledged: a lost connection, a broker that cut off a slow reader, a cut between two sites lose
them silently. What a store appended since the last moment at which the subscription surely had everything closes the
gap. Three things make it read a store:

- the connection was lost and is back: all stores, at once, and again when interest has settled;
- a store's beacon (`Tip`) says that it has more of some second than came, and that does not change for a while;
- beacons were missing for a while: what they would have said is unknown. So it is when a store begins to count again.

Times are seconds of a monotonic clock of this process. Stores are asked for what they appended within the last so many
seconds, so that no two clocks are compared.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.nats.digest import add_digests

if TYPE_CHECKING:
    from nearcast.protocol.services import Tip

__all__ = ["GapDetector", "ReadStore"]

MARGIN = 5.0  # read this much more than the gap
SETTLE = 2.0  # what a beacon tells may be on its way to this subscriber
SILENCE = 25.0  # beacons tell of the last 30 s
_FIRST_CHECK, _LONGEST_CHECK = 30.0, 240.0
_JITTER = 3.0  # all subscribers of a topic hear the same beacon
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 30.0
_REMEMBERED_SECONDS = 90.0  # of message time, since they were touched last
_SWEEP = 10.0
# Above this many messages of a topic in a second their digest is not compared, only their number.
DIGEST_LIMIT = 2_000
_ACCEPTED_IDS = 4_096


@dataclass(frozen=True)
class ReadStore:
    """Read what a store appended within the last so many seconds; deliver what did not come."""

    site: str
    within: float


@dataclass(slots=True)
class _Second:
    """What came of a topic in one second of message time. accepted: of stores that were read and had no more."""

    count: int = 0
    digest: int = 0
    touched: float = 0.0
    accepted: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True)
class _Doubt:
    """A store's figures that are not this subscription's: told since then, and last then."""

    count: int
    digest: int
    since: float
    told: float


@dataclass
class _Store:
    """good: until when all that it appended has surely come. due: when to read it."""

    good: float
    heard: float
    due: float | None = None
    again: float | None = None
    check_every: float = _FIRST_CHECK
    retry: float = _FIRST_RETRY
    reading: bool = False
    doubts: dict[tuple[str, int | bytes], _Doubt] = field(default_factory=dict)


class GapDetector:
    """For one subscription and one durable topic (or family, or channel) that it takes messages of.

    sites: of its stores. is_delivered: whether the message with this id came. choice: spreads reads.
    holding: whether live messages are to wait because older ones are about to be read.
    """

    def __init__(
        self,
        sites: Iterable[str],
        is_delivered: Callable[[bytes], bool],
        choice: random.Random,
        now: float,
        *,
        since: Mapping[str, float] | None = None,
    ) -> None:
        """since: when an earlier process, which this one continues, had read all of each store."""
        self._is_delivered, self._choice = is_delivered, choice
        self._begun = now if not since else min(since.values()) - MARGIN
        self._stores = {site: _Store((since or {}).get(site, self._begun), now) for site in sites}
        self._seconds: dict[tuple[str, int], _Second] = {}
        self._accepted_ids: OrderedDict[bytes, None] = OrderedDict()
        self._waited_for: set[str] = set()
        self._swept = now
        if since:
            self.reconnected(now)

    @property
    def holding(self) -> bool:
        return bool(self._waited_for)

    @property
    def positions(self) -> dict[str, float]:
        """By site, until when all that its store appended has surely come."""
        return {site: store.good for site, store in self._stores.items()}

    @property
    def sites(self) -> list[str]:
        return list(self._stores)

    def set_sites(self, sites: Iterable[str], now: float) -> None:
        """The topic's stores have changed. A new one may have anything since the subscription began."""
        for site in sites:
            if site not in self._stores:
                self._stores[site] = _Store(min((s.good for s in self._stores.values()), default=self._begun), now)
        for site in set(self._stores) - set(sites):
            del self._stores[site]
            self._waited_for.discard(site)

    def delivered(self, topic: str, second: int, id_hash: Callable[[], int], now: float) -> None:
        """A message came; second: of its time. id_hash: computed only where it is compared."""
        key = topic, second
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = _Second()
        found.count += 1
        found.touched = now
        if found.count <= DIGEST_LIMIT:
            found.digest = add_digests(found.digest, id_hash())

    def reconnected(self, now: float) -> None:
        """Messages may have been lost: read all stores, and once more when interest in the topic has settled."""
        for site, store in self._stores.items():
            store.due, store.again, store.retry, store.heard = now, now + SETTLE, _FIRST_RETRY, now
            store.reading = False
            self._waited_for.add(site)

    def release(self) -> None:
        """Wait no longer for stores that do not answer."""
        self._waited_for.clear()

    def tip(self, topic: str, tip: Tip, now: float) -> None:
        """A store of the topic says what it has of the last seconds."""
        store = self._stores[tip.site]
        silent, store.heard = now - store.heard > min(SILENCE, tip.counted), now
        store.check_every = _FIRST_CHECK
        if silent and store.due is None:
            store.due = now + self._choice.uniform(0, _JITTER)
        for n, (count, digest) in enumerate(zip(tip.counts, tip.digests, strict=False)):
            key = topic, tip.second + n
            before = store.doubts.pop(key, None)
            if self._differs(key, count, digest):
                store.doubts[key] = _Doubt(count, digest, before.since if before else now, now)
        for message_id in tip.late:
            if message_id not in self._accepted_ids and not self._is_delivered(message_id):
                store.doubts.setdefault((topic, message_id), _Doubt(0, 0, now, now))
        if not store.doubts and not silent and store.due is None and not store.reading:
            store.good = max(store.good, now - 2 * SETTLE)

    def due(self, now: float) -> list[ReadStore]:
        """What to read now."""
        if now - self._swept > _SWEEP:
            self._sweep(now)
        reads = []
        for site, store in self._stores.items():
            if store.reading:
                continue
            unheard = now - store.heard > store.check_every
            if self._doubtful(store, now) or unheard or (store.due is not None and store.due <= now):
                store.reading, store.due = True, None
                if unheard:
                    store.heard, store.check_every = now, min(2 * store.check_every, _LONGEST_CHECK)
                reads.append(ReadStore(site, max(0.0, min(now - store.good + MARGIN, now - self._begun))))
        return reads

    def read(self, site: str, started: float) -> None:
        """All that a store had appended when the reading started has been delivered."""
        store = self._stores.get(site)
        self._waited_for.discard(site)
        if store is None or not store.reading:
            return
        store.reading, store.retry, store.good = False, _FIRST_RETRY, max(store.good, started)
        for key, doubt in list(store.doubts.items()):
            if doubt.told <= started:
                self._accept(key, doubt, started)
                del store.doubts[key]
        if store.again is not None:
            store.due, store.again = max(started, store.again), None

    def failed(self, site: str, now: float) -> None:
        """A store could not be read."""
        store = self._stores.get(site)
        self._waited_for.discard(site)
        if store is not None and store.reading:
            store.reading = False
            store.due, store.retry = now + store.retry, min(2 * store.retry, _LONGEST_RETRY)

    def _differs(self, key: tuple[str, int], count: int, digest: int) -> bool:
        """Whether a store with these figures may have something that did not come."""
        if not count:
            return False
        found = self._seconds.get(key)
        if found is None:
            return True
        if (count, digest) in found.accepted:
            return False
        return count > found.count or (found.count <= DIGEST_LIMIT and digest != found.digest)

    def _doubtful(self, store: _Store, now: float) -> bool:
        """Whether a doubt has lasted: what it is about has had time to arrive, here and at the store."""
        for (topic, what), doubt in list(store.doubts.items()):
            if isinstance(what, bytes):
                differs, more = not self._is_delivered(what), True
            else:
                differs = self._differs((topic, what), doubt.count, doubt.digest)
                found = self._seconds.get((topic, what))
                more = found is None or doubt.count > found.count
            if not differs:
                del store.doubts[topic, what]  # it came meanwhile
            elif now - doubt.since >= SETTLE and (more or doubt.told - doubt.since >= 2 * SETTLE):
                return True
        return False

    def _accept(self, key: tuple[str, int | bytes], doubt: _Doubt, now: float) -> None:
        topic, what = key
        if isinstance(what, bytes):
            self._accepted_ids[what] = None
            if len(self._accepted_ids) > _ACCEPTED_IDS:
                self._accepted_ids.popitem(last=False)
            return
        found = self._seconds.setdefault((topic, what), _Second())
        found.accepted.add((doubt.count, doubt.digest))
        found.touched = max(found.touched, now)

    def _sweep(self, now: float) -> None:
        self._swept = now
        for key in [k for k, found in self._seconds.items() if now - found.touched > _REMEMBERED_SECONDS]:
            del self._seconds[key]
