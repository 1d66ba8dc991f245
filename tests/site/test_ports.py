"""Free ports: neighbours that nobody uses, and later ones at each call."""

from __future__ import annotations

import contextlib
import socket

from nearcast.site.ports import free_ports, port_problem


def test_each_call_gives_other_ports_that_are_free() -> None:
    first, second = free_ports(5), free_ports(5)
    assert not set(range(first, first + 5)) & set(range(second, second + 5))
    assert not any(port_problem("127.0.0.1", port) for port in range(second, second + 5))


def test_ports_in_use_are_passed_over() -> None:
    while True:
        taken = free_ports(3) + 4
        with contextlib.suppress(OSError):  # another program was faster
            server = socket.create_server(("127.0.0.1", taken))
            break
    with server:
        assert port_problem("127.0.0.1", taken) == "is in use by another program"
        first = free_ports(3)
        assert taken not in range(first, first + 3)
