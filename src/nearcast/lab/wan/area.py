"""The handle of a wide area that is up: addresses of its nodes, state of its links, changes to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Unpack

import msgspec

from nearcast.errors import InputError
from nearcast.lab.wan import control_socket
from nearcast.lab.wan.topology import EVERY_OTHER, Topology

__all__ = ["Area", "AreaRecord"]

# `ip netns` keeps its names in /run as well, and needs the same right to write there.
FOLDER = Path("/run/nearcast/wan")
AREA_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")


class AreaRecord(msgspec.Struct, frozen=True):
    """An area as its folder keeps it. A leased one ends when the process that started it does."""

    name: str
    topology: Topology
    seed: int = 0
    leased: bool = False

    def __post_init__(self) -> None:
        if not AREA_NAME.fullmatch(self.name):
            raise InputError(f"{self.name!r} cannot name an area: 1 to 32 letters, digits or '_' are allowed")

    @property
    def folder(self) -> Path:
        """Where the area keeps its record, its emulator's lock and its control socket."""
        return FOLDER / self.name

    def namespaces(self) -> list[str]:
        """The namespaces of all nodes. The area is part of their names: areas do not meet."""
        return [f"nc-{self.name}-{node}" for node in self.topology.nodes]

    def addresses(self) -> list[str]:
        """The addresses of all nodes. They exist only inside the area, so every area has the same range."""
        return [f"10.77.{n // 256}.{n % 256}" for n in range(1, len(self.topology.nodes) + 1)]


class Area:
    """The handle of a running area."""

    def __init__(self, record: AreaRecord) -> None:
        self.record = record
        self.topology = record.topology
        self._control = record.folder / "control"

    def address(self, node: str) -> str:
        """The IPv4 address of a node, reachable from every node of the area and from nowhere else."""
        return self.record.addresses()[self.topology.index(node)]

    def namespace(self, node: str) -> str:
        """The name of a node's network namespace."""
        return self.record.namespaces()[self.topology.index(node)]

    def command(self, node: str, *command: str) -> list[str]:
        """The command line that runs a command at a node."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def set(self, a: str, b: str, **fields: Unpack[control_socket.LinkFields]) -> None:
        """Give both directions between two nodes other values of some fields of `LinkSettings`, from now on.

        `b` may be "all": the links to every other node, as when a client moves to another access network.
        """
        one, nodes = self.topology.index(a), range(len(self.topology.nodes))
        others = [n for n in nodes if n != one] if b == EVERY_OTHER else [self.topology.index(b)]
        if others == [one]:
            raise InputError(f"{a!r} has no link to itself")
        pairs = [pair for other in others for pair in ((one, other), (other, one))]
        control_socket.ask_change(self._control, [control_socket.LinkChange(i, j, fields) for i, j in pairs])

    def set_one_way(self, source: str, destination: str, **fields: Unpack[control_socket.LinkFields]) -> None:
        """Change one direction only, as when a router drops what comes from one side."""
        change = control_socket.LinkChange(self.topology.index(source), self.topology.index(destination), fields)
        control_socket.ask_change(self._control, [change])

    def cut(self, a: str, b: str) -> None:
        """Drop everything between two nodes, packets in transit included."""
        self.set(a, b, cut=True)

    def heal(self, a: str, b: str) -> None:
        """Undo `cut`."""
        self.set(a, b, cut=False)

    def links(self, node: str) -> dict[str, control_socket.LinkState]:
        """The links from a node, by the node they lead to."""
        states = control_socket.ask_links(self._control, self.topology.index(node))
        return {to: state for to, state in zip(self.topology.nodes, states, strict=True) if to != node}
