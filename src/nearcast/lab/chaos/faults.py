"""Makes faults happen, and undoes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.lab.chaos import disk
from nearcast.lab.chaos.deployment import SITES
from nearcast.lab.wan import namespaces
from nearcast.lab.wan.topology import EVERY_OTHER
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.lab.chaos.schedule import Fault
    from nearcast.lab.chaos.services import NodeService
    from nearcast.lab.wan import Area
    from nearcast.lab.wan.control_socket import LinkFields

__all__ = ["FaultInjector", "role_of"]

_KILL_EVERY = 5.0  # a process that comes back at once is killed again
_DELAY_MS, _LOSS = 400.0, 0.05
_DOWN = 3.0  # everything stays down for so long when all is restarted
# Words of the command lines of each role; the first that fits counts.
_WORDS = {
    "processor": ("nearcast.site.worker.processor_main",),
    "worker": ("nearcast.site.worker",),
    "broker": ("broker.conf",),
    "store": ("store.conf",),
    "agent": ("site", "run"),
    "coordinator": ("coordinator", "run"),
    "driver": ("cluster", "run"),
    "clients": ("nearcast.lab.chaos.clients",),
}


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
        node = fault.target[0]
        async with contextlib.AsyncExitStack() as stack:
            if role == "everything":
                await self._restart_all(kill=verb == "kill")
            elif fault.kind == "kill site":
                # A machine without power: all its processes are gone at once, and come back with it.
                for service in self._services.values():
                    if service.node == node:
                        service.hold()
                        stack.callback(service.release)
                self._kill(node)
            elif fault.kind == "kill devices":
                await stack.enter_async_context(self._devices_off(node))
                self._kill(node, "clients")
            elif verb == "kill":
                stack.push_async_callback(cancel_and_wait, asyncio.create_task(self._keep_killing(node, role)))
            elif verb == "stop":
                stopped = self._processes(node, "" if role == "site" else role)
                _send_signal(stopped, signal.SIGSTOP)
                stack.callback(self._resume, node, stopped)
            elif fault.kind == "full disk":
                stack.enter_context(disk.filled(self._small_disk))
            elif fault.kind == "false clock":
                await stack.enter_async_context(self._false_clock(3600.0 if node == "fast" else -3600.0))
            else:
                stack.callback(self._harm_links(fault))
            yield

    def _processes(self, node: str, role: str = "") -> list[int]:
        """The processes of a role at a node; all of them without one."""
        found = namespaces.processes([self._area.namespace(node)])
        return [pid for pid in found if not role or role_of(pid) == role]

    def _kill(self, node: str, role: str = "") -> None:
        _send_signal(self._processes(node, role), signal.SIGKILL)

    async def _keep_killing(self, node: str, role: str) -> None:
        while True:
            self._kill(node, role)
            await asyncio.sleep(_KILL_EVERY)

    def _resume(self, node: str, stopped: list[int]) -> None:
        """Processes that hang go on. Those that were replaced meanwhile are gone."""
        there = set(self._processes(node))
        _send_signal([pid for pid in stopped if pid in there], signal.SIGCONT)

    async def _restart_all(self, *, kill: bool) -> None:
        """Everything ends, killed or in order, and starts again a little later."""
        services = self._services.values()
        for service in services:
            service.hold()
        if kill:
            for site in SITES:
                self._kill(site)
        else:
            await asyncio.gather(*(service.terminate() for service in services))
        await asyncio.sleep(_DOWN)
        for service in services:
            service.release()

    def _harm_links(self, fault: Fault) -> Callable[[], None]:
        """Links that lose, delay or drop everything; what undoes it. The van moves meanwhile, so no more is undone."""
        area, (node, other) = self._area, (*fault.target, EVERY_OTHER)[:2]
        harm: LinkFields = {"cut": True}
        undo: LinkFields = {"cut": False}
        if fault.kind == "loss":
            harm, undo = {"loss": _LOSS}, {"loss": 0.0}
        elif fault.kind == "delay":
            harm, undo = {"delay_ms": _DELAY_MS}, {"delay_ms": area.links(node)[other].settings.delay_ms}
        change = area.set_one_way if fault.kind == "cut one way" else area.set
        change(node, other, **harm)
        return lambda: area.set(node, other, **undo)


def role_of(pid: int) -> str:
    """What a process does, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    names = {Path(word).name for word in words}
    return next((role for role, wanted in _WORDS.items() if names.issuperset(wanted)), "")


def _send_signal(pids: list[int], number: signal.Signals) -> None:
    """Signal processes; those that are gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
