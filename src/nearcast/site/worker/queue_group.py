"""The queue groups a worker is a member of: those of durable topics only while its site has a lease.

A worker that leaves them at the end of the lease stays a member for handovers; the broker
gives its publications to others, and the stores redeliver what nobody marks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.nats.connection import Connection, Handler
    from nearcast.site.worker.topics import TopicFamily
    from nearcast.site.worker.worker_lease import WorkerLease

__all__ = ["QueueGroups"]


class QueueGroups:
    """Enters and leaves queue groups. published, redelivered: called with each message that comes by them."""

    def __init__(self, connection: Connection, lease: WorkerLease, *, published: Handler, redelivered: Handler) -> None:
        self._connection, self._lease = connection, lease
        self._published, self._redelivered = published, redelivered

    async def enter(self, family: TopicFamily) -> None:
        """Enter the group of a topic, now or when there is a lease."""
        connection = self._connection
        if family.spec.durable and not self._lease.is_valid():
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

    async def follow_lease(self, families: Iterable[TopicFamily]) -> None:
        """Enter or leave the groups of durable topics as the lease says."""
        for family in list(families):
            if not family.spec.durable or self._is_right(family):
                continue
            async with family.io_lock:
                if self._is_right(family):  # it has left meanwhile
                    continue
                if self._lease.is_valid():
                    await self.enter(family)
                else:
                    await self.leave(family)
                    family.subscriptions["queue"] = None
        with contextlib.suppress(NatsError, TimeoutError):
            await self._connection.flush()

    def _is_right(self, family: TopicFamily) -> bool:
        if "queue" not in family.subscriptions:
            return True
        return (family.subscriptions["queue"] is not None) == self._lease.is_valid()
