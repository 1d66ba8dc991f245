"""Which ports of this machine are free."""

from __future__ import annotations

import errno
import os
import socket

from nearcast.errors import NearcastError

__all__ = ["IN_USE", "free_ports", "host_problem", "port_problem"]

IN_USE = "is in use by another program"

# Below the range from which the system takes ports for outgoing connections. Each test process has a part of its own.
_FIRST, _SPAN, _PARTS = 20_000, 1000, 12
_offset = os.getpid() * 10 % _SPAN  # two processes at the same time begin at different places


def host_problem(host: str) -> str:
    """Why no server of this machine could listen at an address; empty when one could."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            unknown = isinstance(error, socket.gaierror)
            return "is not known" if unknown else f"is no address of this machine: {error.strerror}"
    return ""


def port_problem(host: str, port: int) -> str:
    """Why a server could not listen on a port; empty when it could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return IN_USE if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
    return ""


def free_ports(number: int = 10) -> int:
    """The first of so many neighbouring ports of loopback that are free now; later calls return later ports."""
    global _offset
    start = _FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PARTS * _SPAN
    for _ in range(_SPAN // number):
        if _offset + number > _SPAN:
            _offset = 0
        first = start + _offset
        _offset += number
        if not any(port_problem("127.0.0.1", port) for port in range(first, first + number)):
            return first
    raise NearcastError(f"there are no {number} free neighbouring ports between {start} and {start + _SPAN}")
