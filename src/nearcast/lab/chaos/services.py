"""Services of a run, restarted when they end as an init system does, unless a fault holds them down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from nearcast.errors import NearcastError
from nearcast.lab.scenarios.processes import NodeProcess
from nearcast.nats.tasks import cancel_and_wait

__all__ = ["NodeService"]

_RESTART_PAUSE = 1.0
_READY_LIMIT = 300.0


class NodeService:
    """One program at a node. begin: starts it once more, given how often it was started before.

    restarts: how often it was started again.
    """

    def __init__(self, name: str, node: str, begin: Callable[[int], Awaitable[NodeProcess]]) -> None:
        self.name, self.node, self.restarts = name, node, -1
        self._begin = begin
        self._process: NodeProcess | None = None
        self._allowed, self._up = asyncio.Event(), asyncio.Event()
        self._allowed.set()
        self._task: asyncio.Task[None] | None = None

    async def start(self, limit: float) -> None:
        """Start it, and again whenever it ends; wait until it is up."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.name}")
        await self.is_up(limit)

    async def is_up(self, limit: float) -> None:
        """Wait until it is up; raises NearcastError when that takes too long."""
        try:
            async with asyncio.timeout(limit):
                await self._up.wait()
        except TimeoutError:
            said = self._process.last_words() if self._process is not None else "it was not started"
            raise NearcastError(f"{self.name} is not up after {limit:g} s: {said}") from None

    def hold(self) -> None:
        """Do not start it again until `release`. Who holds it down ends it."""
        self._allowed.clear()

    def release(self) -> None:
        """Start it again."""
        self._allowed.set()

    async def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        if self._process is not None:
            await self._process.terminate()

    async def stop(self) -> None:
        """Do not start it again; who owns the processes ends them."""
        await cancel_and_wait(self._task)

    async def _keep(self) -> None:
        while True:
            self.restarts += 1
            self._process = await self._begin(self.restarts)
            with contextlib.suppress(NearcastError):  # it ended or hangs: seen below, or by the fault's end
                await self._process.said("Ready", _READY_LIMIT)
                self._up.set()
            await self._process.has_ended()
            self._up.clear()
            await asyncio.sleep(_RESTART_PAUSE)
            await self._allowed.wait()
