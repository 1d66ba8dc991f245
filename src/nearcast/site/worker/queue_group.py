"""The queue groups a worker is a member of: those of durable topics only while its site has a lease.

A worker that leaves them at the end of the lease stays a member for handovers; the broker
gives its publications to others, and the stores redeliver what nobody marks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from math import inf
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.nats import subjects
from nearcast.nats.tasks import TaskSet
from nearcast.site.site_lease import lease_clock

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection, Handler
    from nearcast.protocol.worker import SiteLease
    from nearcast.site.worker.topics import TopicFamily, TopicTable

__all__ = ["QueueGroups"]

_log = logging.getLogger(__name__)
_LEASE_CHECK = 0.01  # timers may be early by a clock's resolution


class QueueGroups:
    """Enters and leaves queue groups as topics come and go, and as the lease begins and ends.

    published, redelivered: called with each message that comes by them.
    """

    def __init__(
        self, site: str, connection: Connection, table: TopicTable, *, published: Handler, redelivered: Handler
    ) -> None:
        self._site, self._connection, self._table = site, connection, table
        self._published, self._redelivered = published, redelivered
        self._lease_until = -inf  # told by the agent; before that, durable topics are not taken
        self._lease_end: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()

    def has_lease(self) -> bool:
        """Whether publications of durable topics may be taken and marked now."""
        return lease_clock() < self._lease_until

    async def handle(self, told: SiteLease) -> None:
        """The agent tells each second. When its word fails to come, or the lease is not renewed, it ends by itself."""
        self._lease_until = told.until
        self._cancel_timer()
        left = told.until - lease_clock()
        if 0 < left < inf:
            self._lease_end = asyncio.get_running_loop().call_later(left + _LEASE_CHECK, self._lease_ended)
        await self._follow_lease()

    async def stop(self) -> None:
        """Follow the lease no longer."""
        self._cancel_timer()
        await self._tasks.cancel()

    async def enter(self, family: TopicFamily) -> None:
        """Enter the group of a topic, now or when there is a lease."""
        connection = self._connection
        if family.spec.durable and not self.has_lease():
            family.subscriptions["queue"] = None
            return
        name, group = family.spec.name, subjects.PROCESSORS
        family.subscriptions["queue"] = await connection.subscribe_raw(
            subjects.publications(name), self._published, group
        )
        if family.spec.durable:
            family.redeliveries = await connection.subscribe_raw(subjects.redelivery(name), self._redelivered, group)

    async def leave(self, family: TopicFamily) -> None:
        """Leave the group of a topic, after taking what was sent here before."""
        subscriptions = family.subscriptions.pop("queue", None), family.redeliveries
        family.redeliveries = None
        for subscription in subscriptions:
            if subscription is not None:
                await self._connection.drain_subscription(subscription)

    async def _follow_lease(self) -> None:
        """Enter or leave the groups of durable topics as the lease says."""
        for family in list(self._table.families.values()):
            if not family.spec.durable or self._is_right(family):
                continue
            async with family.io_lock:
                if self._is_right(family):  # it has left meanwhile
                    continue
                if self.has_lease():
                    await self.enter(family)
                else:
                    await self.leave(family)
                    family.subscriptions["queue"] = None
        with contextlib.suppress(NatsError, TimeoutError):
            await self._connection.flush()

    def _is_right(self, family: TopicFamily) -> bool:
        if "queue" not in family.subscriptions:
            return True
        return (family.subscriptions["queue"] is not None) == self.has_lease()

    def _lease_ended(self) -> None:
        _log.warning("the lease of site %s has ended; durable topics wait", self._site)
        self._tasks.spawn(self._follow_lease(), name="leave the queue groups")

    def _cancel_timer(self) -> None:
        if self._lease_end is not None:
            self._lease_end.cancel()
            self._lease_end = None
