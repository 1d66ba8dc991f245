"""The loop and its control socket, with socket pairs in place of TUN devices: no right is needed."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nearcast import InputError, NearcastError
from nearcast.lab.wan import from_rtts
from nearcast.lab.wan.control_socket import LinkChange, ask_change, ask_links, serve
from nearcast.lab.wan.forwarder import Forwarder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADDRESSES = [bytes([10, 77, 0, n]) for n in (1, 2, 3)]


def packet(destination: int, payload: bytes = b"") -> bytes:
    """An IPv4 header as far as the emulator reads it."""
    return bytes([0x45]) + bytes(15) + ADDRESSES[destination] + payload


@dataclass
class Running:
    hosts: list[socket.socket]
    control: Path


@pytest.fixture
def area(tmp_path: Path) -> Iterator[Running]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in ADDRESSES]
    for device, host in pairs:
        device.setblocking(False)
        host.settimeout(10)
    topology = from_rtts({("a", "b"): 20.0, ("a", "c"): 60.0, ("b", "c"): 2.0})
    forwarder = Forwarder(topology, [device.fileno() for device, _ in pairs], ADDRESSES)
    reading, writing = os.pipe()

    def end() -> None:
        forwarder.running = False

    forwarder.watch(reading, end)
    with serve(forwarder, tmp_path / "control"):
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        yield Running([host for _, host in pairs], tmp_path / "control")
        os.close(writing)
        thread.join()
    os.close(reading)
    for device, host in pairs:
        device.close()
        host.close()


def test_packets_go_where_they_are_addressed_not_before_the_delay_and_in_order(area: Running) -> None:
    a, b, c = area.hosts
    start = time.monotonic()
    for n in range(100):
        a.send(packet(1, bytes([n])))
        a.send(packet(2, bytes([n])))
    assert [b.recv(100)[20] for _ in range(100)] == list(range(100))
    assert time.monotonic() - start >= 0.010
    assert [c.recv(100)[20] for _ in range(100)] == list(range(100))
    assert time.monotonic() - start >= 0.030


def test_what_is_not_addressed_to_a_node_goes_nowhere(area: Running) -> None:
    a, b, _ = area.hosts
    for stray in (bytes(40), b"x", packet(0), bytes([0x60]) + bytes(60)):
        a.send(stray)
    a.send(packet(1, b"real"))
    assert b.recv(100) == packet(1, b"real")
    assert [state.sent for state in ask_links(area.control, 0)] == [0, 1, 0]


def test_a_link_is_changed_while_packets_flow(area: Running) -> None:
    a, b, _ = area.hosts
    ask_change(area.control, [LinkChange(0, 1, {"cut": True})])
    a.send(packet(1, b"lost"))
    while ask_links(area.control, 0)[1].lost == 0:
        time.sleep(0.001)
    ask_change(area.control, [LinkChange(0, 1, {"cut": False, "delay_ms": 1.0})])
    a.send(packet(1, b"after"))
    assert b.recv(100) == packet(1, b"after")
    assert ask_links(area.control, 0)[1].settings.delay_ms == 1.0


def test_changes_are_made_all_or_none(area: Running) -> None:
    with pytest.raises(InputError, match="loss is 2; 0 to 1"):
        ask_change(area.control, [LinkChange(0, 1, {"delay_ms": 99.0}), LinkChange(1, 0, {"loss": 2.0})])
    assert ask_links(area.control, 0)[1].settings.delay_ms == 10.0


@pytest.mark.parametrize("message", [b"{", b"[]", b'{"links_of": 77}', b'{"changes": [{"source": "x"}]}'])
def test_a_message_it_cannot_read_does_not_stop_it(area: Running, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(area.control))
        stranger.send(message)
        assert stranger.recv(100) == b""
    a, b, _ = area.hosts
    a.send(packet(1, b"still"))
    assert b.recv(100) == packet(1, b"still")


def test_a_host_that_is_gone_does_not_stop_the_others(area: Running) -> None:
    a, b, c = area.hosts
    c.close()
    a.send(packet(2, b"to nobody"))
    a.send(packet(1, b"to b"))
    assert b.recv(100) == packet(1, b"to b")
    b.send(packet(0, b"back"))
    assert a.recv(100) == packet(0, b"back")


def test_asking_where_nothing_listens_says_so(tmp_path: Path) -> None:
    with pytest.raises(NearcastError, match="does not answer"):
        ask_links(tmp_path / "nothing", 0)
