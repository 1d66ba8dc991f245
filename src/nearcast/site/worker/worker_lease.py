"""The site's lease, as a worker knows it."""

from __future__ import annotations

from math import inf

from nearcast.site.site_lease import lease_clock

__all__ = ["WorkerLease"]


class WorkerLease:
    """until: told by the agent; before that, durable topics are not taken."""

    def __init__(self) -> None:
        self.until = -inf

    def is_valid(self) -> bool:
        """Whether publications of durable topics may be taken and marked now."""
        return lease_clock() < self.until
