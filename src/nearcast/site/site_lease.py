"""The lease of a site: until when its workers may own durable topics. Decisions only; the agent does the I/O.

A coordinator that answers a report grants the site a lease, counted by the site's own clock from the moment the report
was sent. It ends before the coordinator may give the site's topics away, because that is counted from the moment the
report arrived, and takes longer. No clocks are compared. A site whose lease has ended owns durable topics again when it
has done what the records say that came with the next grant: its topics may have been given away.
"""

from __future__ import annotations

import time
from math import inf

__all__ = ["SiteLeaseMachine", "lease_clock"]


def lease_clock() -> float:
    """Seconds of a clock that all processes of the machine share, that nobody sets, and that runs while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SiteLeaseMachine:
    """One site's lease. Before a coordinator assigned topics here none is needed, and it never ends."""

    def __init__(self) -> None:
        self.until = inf

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
        if self.required and seconds > 0 and self.is_valid(now):
            self.until = max(self.until, sent + seconds)
            return True
        return False

    def resumed(self, sent: float, seconds: float) -> None:
        """The records that came with a grant, or after it, are followed: topics that they take away are stopped."""
        if self.required and seconds > 0:
            self.until = max(self.until, sent + seconds)
