"""Free ports: neighbours that nobody uses, and later ones at each call."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from nearcast import InputError
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.site.ports import free_ports, host_problem, port_problem
from nearcast.site.site import Site, refuse_ports_in_use


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


def test_a_host_that_is_not_this_machine_is_no_wrong_port() -> None:
    assert not host_problem("127.0.0.1")
    spec = SiteSpec("tokyo", host="192.0.2.1", port=free_ports())
    complaint = r"site tokyo: host '192\.0\.2\.1' is no address of this machine: .*; choose another `host`"
    with pytest.raises(InputError, match=complaint):
        refuse_ports_in_use(Site(Deployment((spec,)), "tokyo", Path("unused")))
