"""Makes faults happen, and undoes them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.lab.chaos import disk
from nearcast.lab.chaos.deployment import SITES
from nearcast.lab.chaos.targets import processes_of, send_signal
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.lab.chaos.schedule import Fault
    from nearcast.lab.chaos.services import NodeService
    from nearcast.lab.wan import Area

__all__ = ["FaultInjector"]

_KILL_EVERY = 5.0  # a process that comes back at once is killed again
_DELAY_MS, _LOSS = 400.0, 0.05
_DOWN = 3.0  # everything stays down for so long when all is restarted


class FaultInjector:
    """Harms a deployment.

    false_clock: runs a client whose clock is off by so many seconds, inside a block. devices_off: starts the clients of
    a node again when the block ends, in which they were killed.
    """

    def __init__(
        self,
        area: Area,
        services: Mapping[str, NodeService],
        small_disk: Path,
        false_clock: Callable[[float], contextlib.AbstractAsyncContextManager[None]],
        devices_off: Callable[[str], contextlib.AbstractAsyncContextManager[None]],
    ) -> None:
        self._area, self._services, self._small_disk = area, services, small_disk
        self._false_clock, self._devices_off = false_clock, devices_off

    @contextlib.asynccontextmanager
    async def during(self, fault: Fault) -> AsyncIterator[None]:
        """The fault lasts as long as the block."""
        verb, _, role = fault.kind.partition(" ")
        async with contextlib.AsyncExitStack() as stack:
            if fault.kind == "kill everything" or fault.kind == "restart everything":
                await stack.enter_async_context(self._all_down(kill=verb == "kill"))
            elif fault.kind == "kill site":
                await stack.enter_async_context(self._site_down(fault.target[0]))
            elif fault.kind == "kill devices":
                await stack.enter_async_context(self._devices_off(fault.target[0]))
                self._kill(fault.target[0], "clients")
            elif verb == "kill":
                await stack.enter_async_context(self._repeated(lambda: self._kill(fault.target[0], role)))
            elif verb == "stop":
                stack.enter_context(self._stopped(fault.target[0], "" if role == "site" else role))
            elif fault.kind == "full disk":
                stack.enter_context(disk.filled(self._small_disk))
            elif fault.kind == "false clock":
                await stack.enter_async_context(self._false_clock(3600.0 if fault.target[0] == "fast" else -3600.0))
            else:
                stack.enter_context(self._links(fault))
            yield

    def _kill(self, node: str, role: str) -> None:
        send_signal(processes_of(self._area, node, role), signal.SIGKILL)

    @contextlib.contextmanager
    def _stopped(self, node: str, role: str) -> Iterator[None]:
        """Processes hang. Those that were replaced meanwhile are gone."""
        pids = processes_of(self._area, node, role)
        send_signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            there = set(processes_of(self._area, node))
            send_signal([pid for pid in pids if pid in there], signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def _repeated(self, harm: Callable[[], None]) -> AsyncIterator[None]:
        async def repeat() -> None:
            while True:
                harm()
                await asyncio.sleep(_KILL_EVERY)

        task = asyncio.create_task(repeat())
        try:
            yield
        finally:
            await cancel_and_wait(task)

    @contextlib.asynccontextmanager
    async def _site_down(self, node: str) -> AsyncIterator[None]:
        """A machine without power: all its processes are gone at once, and come back with it."""
        held = [service for service in self._services.values() if service.node == node]
        for service in held:
            service.hold()
        self._kill(node, "")
        try:
            yield
        finally:
            for service in held:
                service.release()

    @contextlib.asynccontextmanager
    async def _all_down(self, *, kill: bool) -> AsyncIterator[None]:
        """Everything ends, killed or in order, and starts again within the fault."""
        services = list(self._services.values())
        for service in services:
            service.hold()
        if kill:
            for site in SITES:
                self._kill(site, "")
        else:
            await asyncio.gather(*(service.terminate() for service in services))
        back = asyncio.create_task(self._release_all(services))
        try:
            yield
        finally:
            await back

    async def _release_all(self, services: list[NodeService]) -> None:
        await asyncio.sleep(_DOWN)
        for service in services:
            service.release()

    @contextlib.contextmanager
    def _links(self, fault: Fault) -> Iterator[None]:
        """Links that lose, delay or drop everything."""
        area, target = self._area, fault.target
        before = {node: area.links(node) for node in target}
        if fault.kind == "cut site":
            area.set(target[0], "all", cut=True)
        elif fault.kind == "loss":
            area.set(target[0], "all", loss=_LOSS)
        elif fault.kind == "cut one way":
            area.set_one_way(*target, cut=True)
        elif fault.kind == "delay":
            area.set(*target, delay_ms=_DELAY_MS)
        else:
            area.set(*target, cut=True)
        try:
            yield
        finally:
            # The van moves meanwhile: only what the fault changed is undone.
            if len(target) == 1:
                area.set(target[0], "all", cut=False, loss=0.0)
            else:
                area.set(*target, cut=False, delay_ms=before[target[0]][target[1]].settings.delay_ms)
