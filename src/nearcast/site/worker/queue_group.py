"""The queue groups a worker is a member of: those of durable topics only while its site has a lease.

A worker that leaves them at the end of the lease goes on being a member as far as handovers are concerned; the broker
gives its publications to others, and the stores redeliver what nobody marks.
"""

from __future__ import annotations

import contextlib
from math import inf
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.nats import subjects
from nearcast.site.site_lease import lease_clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.nats.connection import Connection, Handler
    from nearcast.site.worker.topics import TopicFamily

__all__ = ["QueueGroups"]


class QueueGroups:
    """Enters and leaves queue groups. lease_until: told by the agent; before that, durable topics are not taken."""

    def __init__(self, published: Handler, redelivered: Handler) -> None:
        self._published, self._redelivered = published, redelivered
        self.lease_until = -inf

    def has_lease(self) -> bool:
        """Whether publications of durable topics may be taken and marked now."""
        return lease_clock() < self.lease_until

    async def enter(self, connection: Connection, family: TopicFamily) -> None:
        """Enter the group of a topic, now or when there is a lease."""
        if family.spec.durable and not self.has_lease():
            family.subscriptions["queue"] = None
            return
        name, group = family.spec.name, subjects.PROCESSORS
        family.subscriptions["queue"] = await connection.subscribe_raw(
            subjects.publications(name), self._published, group
        )
        if family.spec.durable:
            family.redeliveries = await connection.subscribe_raw(subjects.redelivery(name), self._redelivered, group)

    async def leave(self, connection: Connection, family: TopicFamily) -> None:
        """Leave the group of a topic, after taking what was sent here before."""
        subscriptions = family.subscriptions.pop("queue", None), family.redeliveries
        family.redeliveries = None
        for subscription in subscriptions:
            if subscription is not None:
                await connection.drain_subscription(subscription)

    async def follow_lease(self, connection: Connection, families: Iterable[TopicFamily]) -> None:
        """Enter or leave the groups of durable topics as the lease says."""
        for family in list(families):
            if not family.spec.durable or self._is_right(family):
                continue
            async with family.io_lock:
                if self._is_right(family):  # it has left meanwhile
                    continue
                if self.has_lease():
                    await self.enter(connection, family)
                else:
                    await self.leave(connection, family)
                    family.subscriptions["queue"] = None
        with contextlib.suppress(NatsError, TimeoutError):
            await connection.flush()

    def _is_right(self, family: TopicFamily) -> bool:
        if "queue" not in family.subscriptions:
            return True
        return (family.subscriptions["queue"] is not None) == self.has_lease()
