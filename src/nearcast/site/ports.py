"""Which ports of this machine are free."""

from __future__ import annotations

import errno
import socket

from nearcast.errors import NearcastError

__all__ = ["free_ports", "port_problem"]


def port_problem(host: str, port: int) -> str:
    """Why a server could not listen on a port; empty when it could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
    return ""


def free_ports(number: int, start: int, stop: int) -> int:
    """The first of so many neighbouring ports of loopback that are free, looking from `start` on."""
    for first in range(start, stop - number + 1, number):
        if not any(port_problem("127.0.0.1", first + offset) for offset in range(number)):
            return first
    raise NearcastError(f"there are no {number} free neighbouring ports between {start} and {stop}")
