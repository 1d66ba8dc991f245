"""Packets on their way: when each is due at the other end, and which are due now.

No I/O and no clock: the time is passed in. A link is first in, first out, so order within every
flow is kept and the packets of a link need no sorting: a queue per link, and a heap of the links that have
any, by the time their first packet is due.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.lab.wan.topology import LinkSettings

__all__ = ["DelayQueue", "Link"]

# A limited link holds what it can send in this time, as the buffer of a router; what comes on top is lost.
BUFFER_SECONDS = 0.1
# The jitter of a link changes once in this many times its own size, not with every packet. Were it drawn for
# each packet, a busy link that keeps order would show the largest of many draws, never the mean.
JITTER_HOLD = 4.0


class Link:
    """One direction between two nodes: decides when a packet arrives at `exit`, or that it never does."""

    __slots__ = (
        "_delay",
        "_free_at",
        "_jitter",
        "_last_due",
        "_loss",
        "_plain",
        "_random",
        "_redraw_at",
        "_seconds_per_byte",
        "_seed",
        "_shift",
        "exit",
        "lost",
        "number",
        "packets",
        "sent",
        "settings",
    )

    def __init__(self, settings: LinkSettings, exit: int, *, number: int = 0, seed: int = 0) -> None:  # noqa: A002
        self.exit = exit
        self.number = number
        self.packets: deque[tuple[float, bytes]] = deque()
        self.sent = self.lost = 0
        self._seed = f"{seed}/{number}"
        # Made when needed: most links lose nothing, and a large area has a hundred thousand of them.
        self._random: random.Random | None = None
        self._last_due = self._free_at = self._redraw_at = self._shift = 0.0
        self.change(settings)

    def change(self, settings: LinkSettings) -> None:
        """Follow other settings from the next packet on."""
        self.settings = settings
        self._delay = settings.delay_ms / 1000
        self._jitter = settings.jitter_ms / 1000
        self._loss = 1.0 if settings.cut else settings.loss
        self._seconds_per_byte = 0.0 if settings.mbit is None else 8e-6 / settings.mbit
        self._plain = not (self._jitter or self._loss or self._seconds_per_byte)
        if not self._plain and self._random is None:
            self._random = random.Random(self._seed)

    def due(self, now: float, size: int) -> float | None:
        """When a packet that enters now leaves at the other end; nothing if it is lost."""
        if self._plain:
            due = now + self._delay
        else:
            assert self._random is not None
            if self._loss and self._random.random() < self._loss:
                return None
            leaves = now
            if self._seconds_per_byte:
                if self._free_at - now > BUFFER_SECONDS:
                    return None
                leaves = self._free_at = max(now, self._free_at) + size * self._seconds_per_byte
            if self._jitter and now >= self._redraw_at:
                self._shift = self._jitter * self._random.uniform(-1.0, 1.0)
                self._redraw_at = now + JITTER_HOLD * self._jitter
            due = leaves + self._delay + (self._shift if self._jitter else 0.0)
        if due < self._last_due:
            return self._last_due
        self._last_due = due
        return due

    def clear(self) -> None:
        """Lose what is on its way; what comes next waits for nothing."""
        self.lost += len(self.packets)
        self.packets.clear()
        self._last_due = self._free_at = 0.0


class DelayQueue:
    """The packets of all links that are on their way."""

    def __init__(self) -> None:
        self._heads: list[tuple[float, int, Link]] = []

    def enter(self, link: Link, now: float, packet: bytes) -> None:
        """A packet enters a link."""
        due = link.due(now, len(packet))
        if due is None:
            link.lost += 1
            return
        packets = link.packets
        if not packets:
            heappush(self._heads, (due, link.number, link))
        packets.append((due, packet))

    def leave(self, now: float, most: int) -> list[tuple[int, bytes]]:
        """Take out about `most` of the packets that are due, with the exits they leave by."""
        heads = self._heads
        out: list[tuple[int, bytes]] = []
        while heads and heads[0][0] <= now and len(out) < most:
            link = heappop(heads)[2]
            packets, before = link.packets, len(out)
            while packets and packets[0][0] <= now and len(out) < most:
                out.append((link.exit, packets.popleft()[1]))
            link.sent += len(out) - before
            if packets:
                heappush(heads, (packets[0][0], link.number, link))
        return out

    def next_due(self) -> float | None:
        """When the next packet is due."""
        return self._heads[0][0] if self._heads else None

    def change(self, link: Link, settings: LinkSettings) -> None:
        """Give a link other settings. Cutting it loses what is on its way, as pulling a cable does."""
        link.change(settings)
        if settings.cut:
            link.clear()
            self._heads = [head for head in self._heads if head[2] is not link]
            heapify(self._heads)
