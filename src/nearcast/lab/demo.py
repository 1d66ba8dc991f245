"""The demonstration: sites on loopback, people and cars on the move, and a count of every message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.deployment_keys import add_tls, make_deployment_keys
from nearcast.auth.roles import Grants
from nearcast.client import Client, connect
from nearcast.domain.deployment import AuthSpec, Deployment
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.errors import NearcastError
from nearcast.message import Message
from nearcast.site.site import Site, run_sites

__all__ = ["DemoResult", "demo_deployment", "raise_if_incomplete", "run_demo"]

_FIELD_METRES = 150.0
_EVERY_SECONDS = 0.1
_SETTLE_LIMIT = 20.0


@dataclass
class DemoResult:
    """What was sent and what arrived. Latency: from publication to the notification at a subscriber, milliseconds."""

    published: int = 0
    processed: dict[str, int] = field(default_factory=dict)
    delegated: int = 0
    dead_letters: int = 0
    notified: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Publications that no processor finished, and notifications that a subscriber did not get."""
        unprocessed = self.published - sum(self.processed.values()) - self.dead_letters
        return max(0, unprocessed) + max(0, self.expected - self.received)

    def percentile(self, q: float) -> float:
        """A percentile of the latency."""
        return float(np.percentile(self.latencies_ms, q)) if self.latencies_ms else float("nan")


def demo_deployment(port: int) -> Deployment:
    """Two edge sites that both manage the main road, and a cloud that alone manages the ring road."""
    names = (("north", "edge"), ("south", "edge"), ("cloud", "cloud"))
    sites = tuple(
        SiteSpec(name, "cloud" if kind == "cloud" else "edge", port=port + 10 * n)
        for n, (name, kind) in enumerate(names)
    )
    topics = (TopicSpec("road.main", ("north", "south")), TopicSpec("road.ring", ("cloud",)))
    return Deployment(sites, topics, ("nearcast.lab.demo_processor",))


async def run_demo(
    folder: Path, port: int, publishers: int, seconds: float, seed: int, tick: Callable[[float], None]
) -> DemoResult:
    """Run it; `tick` is called with the share of the time that has passed."""
    deployment = demo_deployment(port)
    auth = make_deployment_keys(folder / "auth", deployment.sites)
    add_tls(auth, deployment.sites)
    deployment = replace(deployment, auth=AuthSpec(auth.path))
    result = DemoResult()
    async with run_sites(deployment, folder) as sites, _clients(deployment, auth, publishers) as clients:
        seen: list[set[str]] = [set() for _ in clients]
        async with AsyncExitStack() as stack:
            for n, client in enumerate(clients):
                topic = _topic(n)
                subscription = client.subscribe(topic, callback=_counter(result, seen[n]))
                await stack.enter_async_context(subscription)
            await _settle_interest(clients)
            await asyncio.gather(
                *(_wander(client, n, seconds, seed, result) for n, client in enumerate(clients)),
                _progress(seconds, tick),
            )
            await _wait_until_all_arrived(sites, clients, result)
    return result


@asynccontextmanager
async def _clients(deployment: Deployment, auth: AuthFolder, number: int) -> AsyncIterator[list[Client]]:
    """Clients spread over the edge sites, each with credentials for its road."""
    edges = [site for site in deployment.sites if site.kind == "edge"]
    async with AsyncExitStack() as stack:
        clients = []
        for n in range(number):
            grants = Grants((_topic(n),), (_topic(n),))
            credentials = auth.add_user("device", f"{_kind(n)}-{n}", grants=grants)
            client = connect(edges[n // 2 % len(edges)].url, credentials=credentials, timeout=20)
            clients.append(await stack.enter_async_context(client))
        yield clients


async def _wander(client: Client, n: int, seconds: float, seed: int, result: DemoResult) -> None:
    """Walk (or drive) about, telling where, and turn at the edge of the field."""
    rng = np.random.default_rng((seed, n))
    position = rng.uniform(0, _FIELD_METRES, 2)
    speed = 1.5 if _kind(n) == "pedestrian" else 10.0
    angle = rng.uniform(0, 2 * np.pi)
    velocity = speed * np.array([np.cos(angle), np.sin(angle)])
    clock = asyncio.get_running_loop().time
    start = clock() + float(rng.uniform(0, _EVERY_SECONDS))
    for step in range(int(seconds / _EVERY_SECONDS)):
        await asyncio.sleep(max(0.0, start + step * _EVERY_SECONDS - clock()))
        position += velocity * _EVERY_SECONDS
        velocity = np.where((position < 0) | (position > _FIELD_METRES), -velocity, velocity)
        position = np.clip(position, 0, _FIELD_METRES)
        x, y, vx, vy = (round(float(v), 2) for v in (*position, *velocity))
        report = {"who": client.name, "kind": _kind(n), "x": x, "y": y, "vx": vx, "vy": vy}
        await client.publish(_topic(n), report)
        result.published += 1


def _counter(result: DemoResult, seen: set[str]) -> Callable[[Message], None]:
    def count(message: Message) -> None:
        if message.id in seen:
            result.duplicated += 1
            return
        seen.add(message.id)
        result.received += 1
        result.latencies_ms.append(time.time() * 1e3 - message.stamp.published_us / 1e3)

    return count


async def _wait_until_all_arrived(sites: dict[str, Site], clients: list[Client], result: DemoResult) -> None:
    """Ask the workers what they did until it accounts for all that was published, and subscribers have got it."""
    listeners = {topic: sum(_topic(n) == topic for n in range(len(clients))) for topic in ("road.main", "road.ring")}
    clock = asyncio.get_running_loop().time
    deadline = clock() + _SETTLE_LIMIT
    while True:
        result.processed, result.delegated, result.dead_letters, result.notified, result.expected = {}, 0, 0, 0, 0
        for name, site in sites.items():
            topic = "road.ring" if name == "cloud" else "road.main"
            for stats in await site.worker_stats():
                result.processed[name] = result.processed.get(name, 0) + stats.processed
                result.delegated += stats.delegated
                result.dead_letters += stats.dead_letters
                result.notified += stats.notified
                result.expected += stats.notified * listeners[topic]
        if result.lost == 0 or clock() > deadline:
            return
        await asyncio.sleep(0.1)


async def _settle_interest(clients: list[Client]) -> None:
    """Subscriptions reach other sites in the background; publish only once they have."""
    for client in clients:
        await client.flush()
    await asyncio.sleep(1.0)


async def _progress(seconds: float, tick: Callable[[float], None]) -> None:
    steps = max(1, int(seconds * 5))
    for step in range(steps):
        await asyncio.sleep(seconds / steps)
        tick((step + 1) / steps)


def _topic(n: int) -> str:
    """Four of five are on the main road."""
    return "road.ring" if n % 5 == 4 else "road.main"


def _kind(n: int) -> str:
    return "car" if n % 2 else "pedestrian"


def raise_if_incomplete(result: DemoResult) -> None:
    """The demonstration fails when a message was lost or came twice, and when nothing happened at all."""
    if result.lost or result.duplicated:
        raise NearcastError(f"{result.lost} messages were lost and {result.duplicated} came twice")
    if not result.notified:
        raise NearcastError("no warning was made: the demonstration shows nothing")
