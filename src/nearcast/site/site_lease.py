"""The lease of a site: until when its workers may own durable topics. Decisions only; the agent does the I/O.

A coordinator that answers a report grants the site a lease, counted by the site's own clock from the moment the report
was sent. It ends before the coordinator may give the site's topics away, because that is counted from the moment the
report arrived, and takes longer. No clocks are compared. A site whose lease has ended owns durable topics again when it
has done what the records say that came with the next grant: its topics may have been given away.

While no coordinator answers, a lease that has not ended is extended with witnesses from a majority of all sites
(`nearcast.domain.lease_times`).
"""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from nearcast.domain.lease_times import CLOCK_MARGIN, is_majority, quiet_time, witnessed_time

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SiteLeaseMachine", "lease_clock"]


def lease_clock() -> float:
    """Seconds of a clock that all processes of the machine share, that nobody sets, and that runs while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SiteLeaseMachine:
    """One site's lease. Before a coordinator assigned topics here none is needed, and it never ends.

    started: when this process did; what an earlier one witnessed is not known.
    """

    def __init__(self, started: float) -> None:
        self.until = inf
        self._started = self._answered = started
        self._granted = 0.0  # the last one
        self._witnessed: dict[str, float] = {}  # when, by site

    def require(self) -> None:
        """A coordinator has assigned topics here before: nothing is owned until it answers."""
        if not self.required:
            self.until = -inf

    @property
    def required(self) -> bool:
        """Whether a coordinator decides what this site owns."""
        return self.until < inf

    def is_valid(self, now: float) -> bool:
        """Whether durable topics may be owned now."""
        return now < self.until

    def renewed(self, sent: float, seconds: float, now: float) -> bool:
        """The answer to a report sent then grants so many seconds, 0 for none. Whether that extends the lease.

        A lease that has ended is not extended: records are to be applied first, see `resumed`.
        """
        self._answered = now
        self._granted = seconds or self._granted
        if self.required and seconds > 0 and self.is_valid(now):
            self.until = max(self.until, sent + seconds)
            return True
        return False

    def resumed(self, sent: float, seconds: float) -> None:
        """The records that came with a grant, or after it, are followed: topics that they take away are stopped."""
        self._granted = seconds or self._granted
        if self.required and seconds > 0:
            self.until = max(self.until, sent + seconds)

    def is_unanswered(self, now: float) -> bool:
        """Whether no coordinator has answered for so long that none may lead."""
        return self._granted > 0 and now - self._answered >= quiet_time(self._granted)

    def witness(self, site: str, now: float) -> bool:
        """Another site asks whether a coordinator leads. If none does, as far as is known here, it counts on that."""
        if not self.is_unanswered(now):
            return False
        self._witnessed[site] = now
        return True

    def witnessed(self, now: float) -> list[str] | None:
        """The sites that may still count on what was witnessed here; nothing while that is not known."""
        lasting = witnessed_time(self._granted) / CLOCK_MARGIN
        if not self._granted or now - self._started < lasting:
            return None
        self._witnessed = {site: at for site, at in self._witnessed.items() if now - at < lasting}
        return list(self._witnessed)

    def extended(self, sent: float, witnesses: Collection[str], sites: Collection[str], now: float) -> bool:
        """These sites (this one among them) witness what was asked then. Whether that extends the lease."""
        if not self.required or not self.is_valid(now) or not is_majority(witnesses, sites):
            return False
        self.until = max(self.until, sent + witnessed_time(self._granted))
        return True
