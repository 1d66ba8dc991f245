"""Round-trip times measured inside a wide area: ICMP echoes from one node's namespace to another's."""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from nearcast.lab.wan.namespaces import call_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.lab.wan.area import Area

__all__ = ["round_trips"]

ECHO_REQUEST, ECHO_REPLY = 8, 0
# Type, code, checksum, identifier, sequence number; then, as what is echoed, the number of the probe.
ECHO = struct.Struct("!BBHHHI")
IP_HEADER_SIZE = 20
TIMESPEC = struct.Struct("qq")
# From asm-generic/socket.h: the kernel stamps a packet when it arrives, however late we read it.
SO_TIMESTAMPNS = 35


def round_trips(
    area: Area, pairs: Sequence[tuple[str, str]], *, count: int = 5, gap: float = 0.001, patience: float = 1.0
) -> dict[tuple[str, str], list[float]]:
    """Round trips in ms by (source, destination), `count` each, sent one by one with a gap in seconds.

    An echo that does not come within `patience` seconds after the last was sent is missing from the list.
    """
    sources = dict.fromkeys(source for source, _ in pairs)
    sockets = {source: call_inside(area.namespace(source), _open) for source in sources}
    identifier = secrets.randbits(16)
    sent: list[int] = []
    times: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    missing = len(pairs) * count

    def receive_until(limit: float) -> None:
        nonlocal missing
        while missing and (wait := limit - time.monotonic()) > 0:
            for ready in select.select(list(sockets.values()), [], [], wait)[0]:
                message, ancillary, _, _ = ready.recvmsg(256, 64)
                kind, _, _, whose, _, probe = ECHO.unpack_from(message, IP_HEADER_SIZE)
                if kind == ECHO_REPLY and whose == identifier and probe < len(sent):
                    seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                    arrived = seconds * 1_000_000_000 + nanoseconds
                    times[pairs[probe % len(pairs)]].append((arrived - sent[probe]) / 1e6)
                    missing -= 1

    try:
        for probe in range(missing):
            source, destination = pairs[probe % len(pairs)]
            sent.append(time.time_ns())
            sockets[source].sendto(_echo(identifier, probe), (area.address(destination), 0))
            receive_until(time.monotonic() + gap)
        receive_until(time.monotonic() + patience)
    finally:
        for each in sockets.values():
            each.close()
    return times


def _open() -> socket.socket:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return raw


def _echo(identifier: int, probe: int) -> bytes:
    empty = ECHO.pack(ECHO_REQUEST, 0, 0, identifier, 0, probe)
    total = sum(word for (word,) in struct.iter_unpack("!H", empty))
    total = (total & 0xFFFF) + (total >> 16)
    return ECHO.pack(ECHO_REQUEST, 0, ~(total + (total >> 16)) & 0xFFFF, identifier, 0, probe)
