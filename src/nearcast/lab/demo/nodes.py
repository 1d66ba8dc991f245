"""Where processes and clients run: at nodes of an emulated wide area, or all on loopback, without delays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nearcast.lab.wan import Area, call_at, namespaces
from nearcast.site.ports import free_ports

__all__ = ["EmulatedNodes", "LoopbackNodes", "Nodes"]

T = TypeVar("T")
_PORT = 4222
_PORTS_PER_SITE = 10


class EmulatedNodes:
    """Nodes of a wide area: there are delays between them."""

    emulated = True

    def __init__(self, area: Area) -> None:
        self._area = area

    def address(self, site: str) -> tuple[str, int]:
        """Host and port of a site's broker; each site has an address of its own."""
        return self._area.address(site), _PORT

    def command(self, node: str, *command: str) -> list[str]:
        """The command line that runs a command at a node, in its network namespace."""
        return self._area.command(node, *command)

    async def call(self, node: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine that runs at a node, in a thread of its own."""
        return await call_at(self._area, node, call)

    def move(self, node: str, ways: Mapping[str, float]) -> None:
        """Give a node other delays to sites, at once."""
        for site, delay in ways.items():
            self._area.set(node, site, delay_ms=delay)

    def processes(self, node: str, started: int) -> list[int]:
        """All processes of a site whose first one was started with this number: those of its namespace."""
        return namespaces.processes([self._area.namespace(node)])


class LoopbackNodes:
    """The same on one machine: every node is here."""

    emulated = False

    def __init__(self, sites: tuple[str, ...]) -> None:
        first = free_ports(_PORTS_PER_SITE * len(sites))
        self._ports = {site: first + _PORTS_PER_SITE * n for n, site in enumerate(sites)}

    def address(self, site: str) -> tuple[str, int]:
        """Each site has ports of its own."""
        return "127.0.0.1", self._ports[site]

    def command(self, node: str, *command: str) -> list[str]:
        """As it is."""
        return list(command)

    async def call(self, node: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Here."""
        return await call()

    def move(self, node: str, ways: Mapping[str, float]) -> None:
        """There is no distance."""

    def processes(self, node: str, started: int) -> list[int]:
        """The first one and its descendants."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # it may end while we look
                    # The name in brackets may have blanks; the parent is the second field after it.
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    parents.setdefault(parent, []).append(int(entry.name))
        found, new = [started], [started]
        while new:
            new = [child for parent in new for child in parents.get(parent, [])]
            found += new
        return found


Nodes = EmulatedNodes | LoopbackNodes
