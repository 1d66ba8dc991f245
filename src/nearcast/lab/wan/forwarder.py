"""The loop that moves packets between TUN devices, each after the delay of its link.

It alternates between two bounded batches, packets that are due and packets that came in, so that neither
makes the other late, and sleeps until the next packet is due when there is nothing to do.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from nearcast.lab.wan.delay_queue import DelayQueue, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.lab.wan.topology import LinkSettings, Topology

__all__ = ["Forwarder"]

BATCH = 64
# After work that woke it, the loop rests this long (s) before it sleeps again, so that packets gather, as a
# network card does. Without it a sender on the same core is interrupted after each of its packets.
PAUSE = 0.0001
# Larger than the devices' MTU: a read returns one packet.
READ_SIZE = 2048
# Where the destination is in an IPv4 header.
DESTINATION = slice(16, 20)


class Forwarder:
    """Links between the devices of a topology's nodes, and whatever else wakes the loop."""

    def __init__(self, topology: Topology, devices: Sequence[int], addresses: Sequence[bytes], seed: int = 0) -> None:
        self.links = [
            [
                Link(settings, exit=device, number=source * len(devices) + destination, seed=seed)
                for destination, (settings, device) in enumerate(zip(row, devices, strict=True))
            ]
            for source, row in enumerate(topology.links)
        ]
        self.running = True
        self._woke = 0.0
        self._delay_queue = DelayQueue()
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        # device -> destination address -> link. What is not in it (IPv6, broadcasts) goes nowhere.
        self._routes = {
            device: {addresses[other]: self.links[own][other] for other in range(len(devices)) if other != own}
            for own, device in enumerate(devices)
        }
        for device in devices:
            self._epoll.register(device, select.EPOLLIN)

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call when a descriptor other than a device can be read."""
        self._watched[descriptor] = call
        self._epoll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """No longer watch a descriptor; before it is closed."""
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)

    def change(self, source: int, destination: int, settings: LinkSettings) -> None:
        """Give one link other settings from now on."""
        self._delay_queue.change(self.links[source][destination], settings)

    def run(self) -> None:
        """Forward until `running` is set to false by something watched."""
        while self.running:
            ready = self._epoll.poll(0)
            if not ready and not self._write_due():
                self._sleep()
            for descriptor, _ in ready:
                # Between any two batches that come in: otherwise many busy devices would make what is due late.
                self._write_due()
                if descriptor in self._routes:
                    self._read_from(descriptor)
                else:
                    self._watched[descriptor]()

    def _read_from(self, device: int) -> None:
        routes, read, enter, clock = self._routes[device], os.read, self._delay_queue.enter, time.monotonic
        try:
            for _ in range(BATCH):
                packet = read(device, READ_SIZE)
                link = routes.get(packet[DESTINATION])
                if link is not None:
                    enter(link, clock(), packet)
        except BlockingIOError:
            pass
        except OSError:
            # Somebody removed the device: nothing will come from it any more.
            self._epoll.unregister(device)

    def _write_due(self) -> bool:
        """Whether any packet was due."""
        write, due = os.write, self._delay_queue.leave(time.monotonic(), BATCH)
        for device, packet in due:
            try:  # noqa: SIM105 (a context manager per packet would cost as much as the rest)
                write(device, packet)
            except OSError:
                # Somebody took the device down: the packet is lost, as it would be on a real host.
                pass
        return bool(due)

    def _sleep(self) -> None:
        """Until something can be read or a packet is due."""
        now = time.monotonic()
        if now - self._woke < PAUSE:
            self._woke = 0.0
            time.sleep(PAUSE)
            return
        due = self._delay_queue.next_due()
        wait = None if due is None else max(0.0, due - now)
        if wait != 0.0:
            # epoll counts in ms, select in µs: so select on epoll.
            select.select([self._epoll], [], [], wait)
            self._woke = time.monotonic()
