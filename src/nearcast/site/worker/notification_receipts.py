"""Which notifications are stored, where that is not plain.

Usually a notification is safe once the broker has it: the site's own store takes it, and others are repaired from
there. Where all stores are at other sites, a link that breaks may swallow a notification and let its mark pass a moment
later. So may a broker that has just started: it takes notifications before its store is connected to it. So stores
acknowledge the notifications (and dead letters) of such topics, and of all topics on a new link to the broker until the
site's own store was heard on it. A publication is finished when each of its own was acknowledged by a store.

Decisions only. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["NotificationReceipts"]

T = TypeVar("T")
_LIMIT = 5.0


class _Awaited(Generic[T]):
    __slots__ = ("item", "missing", "until")

    def __init__(self, item: T, count: int, until: float) -> None:
        self.item, self.missing, self.until = item, set(range(count)), until


class NotificationReceipts(Generic[T]):
    """Items (publications) whose notifications are not all stored, by a token that acknowledgements carry."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._heard_on: object = None  # the link to the broker on which the site's own store was heard
        self._awaited: dict[int, _Awaited[T]] = {}  # in the order of their limits
        self._last = 0

    def needed(self, stores: Collection[str], link: object) -> bool:
        """Whether a notification that is sent on this link may get lost before one of its stores has it."""
        return self._site not in stores or link != self._heard_on

    def heard(self, store: str, link: object) -> None:
        """A store acknowledged something, and that came on this link."""
        if store == self._site:
            self._heard_on = link

    def expect(self, item: T, count: int, now: float) -> int:
        """So many notifications of an item are sent; the token to acknowledge them by."""
        self._last += 1
        self._awaited[self._last] = _Awaited(item, count, now + _LIMIT)
        return self._last

    def stored(self, token: int, number: int) -> T | None:
        """A store has a notification; the item when it was the last one that was missing."""
        awaited = self._awaited.get(token)
        if awaited is None:
            return None
        awaited.missing.discard(number)
        if awaited.missing:
            return None
        return self._awaited.pop(token).item

    def expire(self, now: float) -> list[T]:
        """The items that were not acknowledged in time: they are not finished."""
        found = []
        while self._awaited:
            token, awaited = next(iter(self._awaited.items()))
            if awaited.until > now:
                break
            found.append(self._awaited.pop(token).item)
        return found
