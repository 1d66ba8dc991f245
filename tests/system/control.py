"""Coordinators for tests: quick ones, on the state of the cloud's store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinator.leader import Leader
from nearcast.coordinator.leadership import Coordinator
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import RunningSites, until

# On a busy machine nobody is to lose a lease by itself, or a site: tests that wait for such a loss say how soon it is.
QUICK = CoordinatorSettings(
    period=0.3, lease=6.0, site_lost_after=20.0, client_lost_after=10.0, cool_down=1.0, automatic=False
)


class Control:
    """A running coordinator and a connection to ask it through."""

    def __init__(self, coordinator: Coordinator, connection: Connection) -> None:
        self.coordinator, self.connection = coordinator, connection

    @property
    def leader(self) -> Leader:
        assert self.coordinator.leader is not None
        return self.coordinator.leader

    async def ask(self, noun: str, verb: str, timeout: float = 30.0, **body: Any) -> Any:
        return await call_coordinator(self.connection, noun, verb, body, object, timeout)

    async def members(self, topic: str) -> list[str]:
        return list((await self.ask("topic", "info", name=topic))["members"])


@contextlib.asynccontextmanager
async def coordinator(c: RunningSites, *, wait: bool = True, **changes: Any) -> AsyncIterator[Control]:
    """A coordinator beside the cloud; with `wait`, it leads and knows all sites."""
    settings = msgspec.structs.replace(QUICK, **changes)
    connection = await open_connection([c.url("cloud")], name="coordinator")
    control = Control(Coordinator(connection, "cloud", settings), connection)
    task = asyncio.create_task(control.coordinator.run())

    def leads() -> bool:
        return control.coordinator.leading.is_set() and set(c.sites) <= set(control.leader.monitor.reports)

    try:
        if wait:
            await until(lambda: task.done() or leads())
        if task.done():
            await task
        yield control
    finally:
        await cancel_and_wait(task)
        await connection.close()
