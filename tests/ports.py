"""Free ports for tests that run side by side.

Each test process has a range of its own, below the range from which the system takes ports for outgoing connections,
and moves on through it, so that a port is not used again soon.
"""

from __future__ import annotations

import os

from nearcast import NearcastError
from nearcast.site.ports import free_ports

_RANGE = 1000
_next = os.getpid() * 10 % _RANGE  # two test runs at the same time start at different places


def free_block(number: int = 10) -> int:
    """The first of some neighbouring ports that are free now."""
    global _next
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
    start = 20_000 + worker * _RANGE
    try:
        first = free_ports(number, start + _next, start + _RANGE)
    except NearcastError:  # the end of the range: from the beginning again
        first = free_ports(number, start, start + _RANGE)
    _next = first - start + number
    return first
