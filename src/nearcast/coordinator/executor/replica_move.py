"""Changing the stores that keep a topic: add the new ones, wait until they have its past, then let go of the old ones.

The record names old and new stores together in between. A coordinator that dies there leaves a copy too many, never one
too few; the next plan takes it away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.coordinator.registry import Registry
    from nearcast.wire.connection import Connection

__all__ = ["move_replicas"]

_LOOK_EVERY = 0.2


async def move_replicas(
    registry: Registry,
    connection: Connection,
    topic: str,
    replicas: tuple[str, ...],
    limit: float,
    term: Callable[[], int],
) -> str:
    """Have these sites' stores keep a topic; why that was not done is returned."""
    record = registry.topics.get(topic)
    if record is None:
        return "the topic was removed"
    before = record.spec.replicas
    fresh = tuple(site for site in replicas if site not in before)
    term()
    await registry.put_replicas(record, (*before, *fresh))
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit
    waiting = set(fresh)
    while waiting and clock() < deadline:
        waiting -= {site for site in waiting if await _has_the_past(connection, site, topic)}
        if waiting:
            await asyncio.sleep(_LOOK_EVERY)
    term()
    record = registry.topics.get(topic)
    if record is None:
        return "the topic was removed"
    if waiting:
        await registry.put_replicas(record, before)
        return f"the store of {', '.join(sorted(waiting))} did not have its past within {limit:g} s"
    await registry.put_replicas(record, replicas)
    return ""


async def _has_the_past(connection: Connection, site: str, topic: str) -> bool:
    """A store that still copies names its source; one that kept the topic before and no longer does takes nothing."""
    try:
        manager = connection.jsm(prefix=subjects.store_api(site), timeout=5)
        config = (await manager.stream_info(subjects.stream_name(topic))).config
        return subjects.publications(topic) in (config.subjects or []) and not config.sources
    except (NatsError, TimeoutError):
        return False
