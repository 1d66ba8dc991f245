"""Play a schedule through the SDK against real sites, and count what arrives.

Each client of the schedule is a connection of its own. Events happen in order; a change of who listens waits for what
was published before it and is known at every site before the next message, so that the counts are exactly those the
schedule predicts. The time this takes is lateness, which is measured.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import nearcast
from nearcast.errors import InputError, NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from nearcast.lab.workloads.schedule import Event, Schedule

__all__ = ["Played", "play"]

# Publish no further ahead of the subscribers than this: their buffers are bounded.
_UNDER_WAY = 10_000
_PROBE_S = 0.05
_LIMIT_S = 30.0


@dataclass(frozen=True)
class Played:
    """What happened, per topic; `lost` is what did not arrive within the limit."""

    published: dict[str, int]
    delivered: dict[str, int]
    lost: int
    seconds: float
    most_late_s: float


async def play(schedule: Schedule, urls: Sequence[str], *, speed: float = 1.0) -> Played:
    """Play the events, `speed` seconds of the schedule in one of ours (infinity: as fast as it goes).

    The schedule's sites are assigned to the brokers at `urls` in turn.
    """
    if not urls or speed <= 0:
        raise InputError(f"{len(urls)} brokers at speed {speed:g}; at least one broker and a speed above 0 are needed")
    site_of = {name: n % len(urls) for n, name in enumerate(schedule.sites)}
    clock = asyncio.get_running_loop().time
    late = 0.0
    async with _Player(urls) as player:
        start = clock()
        for event in schedule:
            ahead = start + event.time_s / speed - clock()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
            late = max(late, -ahead)
            await player.act(event, site_of.get(event.site, 0))
        await player.arrived(player.expected)
        seconds = clock() - start
    return Played(dict(player.published), dict(player.delivered), player.lost, seconds, late)


@dataclass
class _PlayedClient:
    """A client that is connected now."""

    client: nearcast.Client
    site: int
    subscriptions: dict[str, nearcast.Subscription] = field(default_factory=dict)


class _Player:
    """The connected clients, who listens to what, and what was published and heard."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self._clients: dict[str, _PlayedClient] = {}
        self._markers: list[nearcast.Client] = []
        self._marker_names: set[str] = set()
        self._listeners: Counter[tuple[str, int]] = Counter()
        self._new: set[tuple[str, int]] = set()
        self._heard: Counter[tuple[str, int, str]] = Counter()
        self._connections = 0
        self.published: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.expected: Counter[str] = Counter()
        self._under_way = self.lost = 0

    async def __aenter__(self) -> _Player:
        for url in self._urls:
            self._markers.append(await self._connect("marker", url))
        self._marker_names = {marker.name for marker in self._markers}
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        clients = [*self._markers, *(played.client for played in self._clients.values())]
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))

    async def act(self, event: Event, site: int) -> None:
        """Execute one event."""
        played = self._clients.get(event.client)
        if event.kind == "join":
            client = await self._connect(event.client, self._urls[site])
            self._clients[event.client] = _PlayedClient(client, site)
        elif played is None:
            raise NearcastError(f"the schedule has {event.client} {event.kind} before it joins")
        elif event.kind == "publish":
            await self._publish(played, event)
        elif event.kind == "subscribe":
            await self._subscribe(played, event.topic)
        elif event.kind == "unsubscribe":
            await self.arrived([event.topic])
            await self._unsubscribe(played, event.topic)
        elif event.kind == "move":
            await self._move(played, event.client, site)
        else:
            await self.arrived(played.subscriptions)
            for topic in list(played.subscriptions):
                await self._unsubscribe(played, topic)
            del self._clients[event.client]
            await played.client.__aexit__(None, None, None)

    async def arrived(self, topics: Collection[str]) -> None:
        """Wait until all that was published to some topics has been heard; after the limit it is lost."""
        if not await self._until(lambda: all(self.delivered[t] >= self.expected[t] for t in topics)):
            for topic in topics:
                missing = max(self.expected[topic] - self.delivered[topic], 0)
                self.lost += missing
                self._under_way -= missing
                self.expected[topic] -= missing

    async def _publish(self, played: _PlayedClient, event: Event) -> None:
        if self._new:
            await self._settle()
        if self._under_way > _UNDER_WAY:
            await self._until(lambda: self._under_way <= _UNDER_WAY // 2)
        topic = event.topic
        listeners = sum(self._listeners[topic, site] for site in range(len(self._urls)))
        self.published[topic] += 1
        self.expected[topic] += listeners
        self._under_way += listeners
        await played.client.publish(topic, event.payload())

    async def _subscribe(self, played: _PlayedClient, topic: str) -> None:
        site = played.site

        def heard(message: nearcast.Message) -> None:
            if message.publisher in self._marker_names:
                self._heard[topic, site, message.publisher] += 1
            else:
                self.delivered[topic] += 1
                self._under_way -= 1

        played.subscriptions[topic] = await played.client.subscribe(topic, callback=heard)
        self._listeners[topic, site] += 1
        if self._listeners[topic, site] == 1 and len(self._urls) > 1:
            self._new.add((topic, site))

    async def _unsubscribe(self, played: _PlayedClient, topic: str) -> None:
        self._listeners[topic, played.site] -= 1
        if not self._listeners[topic, played.site]:
            self._new.discard((topic, played.site))
        await played.subscriptions.pop(topic).close()

    async def _move(self, played: _PlayedClient, name: str, site: int) -> None:
        """Make before break: all subscriptions are at the new site before the old connection goes."""
        if site == played.site:
            return
        await self.arrived(played.subscriptions)
        new = _PlayedClient(await self._connect(name, self._urls[site]), site)
        for topic in played.subscriptions:
            await self._subscribe(new, topic)
        self._clients[name] = new
        for topic in list(played.subscriptions):
            await self._unsubscribe(played, topic)
        await played.client.__aexit__(None, None, None)

    async def _settle(self) -> None:
        """Wait until every site knows of new subscriptions at another one.

        Brokers learn that in the background and do not report it: markers from every other site are repeated until
        one arrives.
        """
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        new, self._new = self._new, set()
        await asyncio.gather(
            *(
                self._mark(marker, topic, site, deadline)
                for topic, site in new
                for other, marker in enumerate(self._markers)
                if other != site
            )
        )

    async def _mark(self, marker: nearcast.Client, topic: str, site: int, deadline: float) -> None:
        key = topic, site, marker.name
        before = self._heard[key]
        while self._heard[key] == before:
            if asyncio.get_running_loop().time() > deadline:
                raise NearcastError(f"topic {topic}: no message from {marker.home} arrives; are the sites connected?")
            await marker.publish(topic, {})
            await self._until(lambda: self._heard[key] > before, _PROBE_S)

    async def _connect(self, name: str, url: str) -> nearcast.Client:
        self._connections += 1
        return await nearcast.connect(url, name=f"{name}-{self._connections}", timeout=_LIMIT_S).__aenter__()

    async def _until(self, holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_s
        while not holds():
            if clock() > deadline:
                return False
            await asyncio.sleep(0.001)
        return True
