"""What a worker does as its site's lease begins and ends."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING

from nearcast.nats.tasks import TaskSet
from nearcast.site.site_lease import lease_clock

if TYPE_CHECKING:
    from nearcast.protocol.worker import SiteLease
    from nearcast.site.worker.queue_group import QueueGroups
    from nearcast.site.worker.topics import TopicTable
    from nearcast.site.worker.worker_lease import WorkerLease

__all__ = ["LeaseFollower"]

_log = logging.getLogger(__name__)
_LEASE_CHECK = 0.01  # timers may be early by a clock's resolution


class LeaseFollower:
    """Enters and leaves queue groups as the lease begins and ends."""

    def __init__(self, site: str, lease: WorkerLease, groups: QueueGroups, table: TopicTable) -> None:
        self._site, self._lease, self._groups, self._table = site, lease, groups, table
        self._end: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()

    async def handle(self, told: SiteLease) -> None:
        """The agent tells each second. When its word fails to come, or the lease is not renewed, it ends by itself."""
        self._lease.until = told.until
        self._cancel_timer()
        left = told.until - lease_clock()
        if 0 < left < inf:
            self._end = asyncio.get_running_loop().call_later(left + _LEASE_CHECK, self._ended)
        await self._groups.follow_lease(self._table.families.values())

    async def stop(self) -> None:
        """Follow it no longer."""
        self._cancel_timer()
        await self._tasks.cancel()

    def _ended(self) -> None:
        _log.warning("the lease of site %s has ended; durable topics wait", self._site)
        leaving = self._groups.follow_lease(self._table.families.values())
        self._tasks.spawn(leaving, name="leave the queue groups")

    def _cancel_timer(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
