"""The clients of the migration experiment: each has a topic of its own and notes when its messages come back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from nearcast.client import Client, connect
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.message import Message

__all__ = ["Device", "DeviceCrowd"]

CONNECT_SECONDS = 30.0


class Device:
    """A client with a topic of its own: it publishes at an interval and notes when its messages come back."""

    def __init__(self, number: int, interval: float, urls: dict[str, str]) -> None:
        self.name, self.topic = f"device{number}", f"mig.{number}"
        self._interval, self._urls = interval, urls
        self._came: list[float] = []
        self._client: Client | None = None

    async def open(self, site: str | None = None) -> None:
        """With the address of a site, or asking the coordinator which one it should be."""
        if site is None:
            client = connect(coordinator=self._urls["west"], name=self.name, report_seconds=60, timeout=CONNECT_SECONDS)
        else:
            client = connect(self._urls[site], name=self.name, timeout=CONNECT_SECONDS)
        self._client = await client.__aenter__()
        await self._client.subscribe(self.topic, callback=self._note)

    def _note(self, _: Message) -> None:
        self._came.append(time.perf_counter())

    async def publish(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self._client is not None:
                with contextlib.suppress(NearcastError):  # while it is between two homes
                    await self._client.publish(self.topic, b"{}")
            await asyncio.sleep(self._interval)

    async def break_then_make(self, site: str | None) -> None:
        await self.close()
        await self.open(site)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    def longest_gap(self, since: float, until: float) -> float:
        """Between two receipts, in ms."""
        times = [since, *(at for at in self._came if since <= at <= until), until]
        return 1000 * max(b - a for a, b in pairwise(times))


class DeviceCrowd:
    """All devices, on the loop of their own node; the driver at the cloud calls them from its own thread."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.open = threading.Event()

    async def run(self, led: threading.Event) -> None:
        """Connect once a coordinator leads, publish until told to stop."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(led.wait)
        if self._stop.is_set():
            return
        for first in range(0, len(self.devices), 16):
            await asyncio.gather(*(device.open() for device in self.devices[first : first + 16]))
        publishing = [asyncio.create_task(device.publish(self._stop)) for device in self.devices]
        self.open.set()
        await asyncio.to_thread(self._stop.wait)
        await asyncio.gather(*publishing)
        await asyncio.gather(*(device.close() for device in self.devices))

    async def break_then_make(self, site: str | None) -> None:
        assert self._loop is not None

        async def all_at_once() -> None:
            await asyncio.gather(*(device.break_then_make(site) for device in self.devices))

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(all_at_once(), self._loop))

    def stop(self) -> None:
        self._stop.set()
