"""Live brokers, and a connection per subscriber that is moved between them.

Five edge brokers and one of the cloud, joined by gateways. What the data cluster would publish (the results of seven
channels with periods of 10, 20 and 30 s) is published by a client at the cloud; Spark is not part of it. A move opens a
connection to the new broker before the old one is closed. Time is compressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.lab.workloads.emergency import emergency
from nearcast.lab.workloads.emergency_scene import EmergencyParameters, generate_scene
from nearcast.lab.workloads.schedule import PUBLISH
from nearcast.nats.tasks import retry
from nearcast.placement import balance
from nearcast.site.ports import free_ports
from nearcast.site.servers import fetch_monitoring
from nearcast.site.site import run_sites

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nearcast.lab.experiments.experiment import Row
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["WINDOW_S", "BrokerTestbed", "brokers", "run_policy"]

SITES, WINDOW_S = 5, 120.0  # brokers of the edge; how often they are read and balanced, in seconds of the workload
ALPHA, GAMMA = 0.05, 0.5  # migrate above this variation; shuffle above this one
HOT, SPREAD_KM = 0.6, 1.5  # this share of the people lives around the first site
LIMIT = 60.0
END, TAIL = re.compile(rb"MSG end\.(\d+) "), 15
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\n'


class Subscriber(asyncio.Protocol):
    """A connection that subscribes and drops what it gets; `ready` once the broker has taken its subscriptions.

    `seen` is the last end of a window that came: what was published before it has come, too.
    """

    def __init__(self, subjects: Iterable[int]) -> None:
        keys = b"".join(b"SUB chn.%d %d\r\n" % (key, n) for n, key in enumerate(subjects, 1))
        self._hello = HELLO + b"SUB end.* 0\r\n" + keys + b"PING\r\n"
        self.ready = asyncio.get_running_loop().create_future()
        self.seen = -1
        self._transport: Any = None
        self._tail = b""  # what is looked for may come in two parts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        self._tail = data[-TAIL:]
        if not self.ready.done() and b"PONG\r\n" in data:
            self.ready.set_result(None)
        for end in END.finditer(data):
            self.seen = max(self.seen, int(end[1]))
        if data.endswith(b"PING\r\n"):
            self._transport.write(b"PONG\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the broker closed the connection"))

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.abort()


class BrokerTestbed:
    """The workload, the brokers and who is connected where."""

    def __init__(self, users: int, duration_s: float, seed: int) -> None:
        reports = int(10_000 * duration_s / 1800)
        p = EmergencyParameters(users=users, sites=SITES, reports=reports, duration_s=duration_s, login_s=60, seed=seed)
        made = emergency(generate_scene(p), p)
        keys = {str(key): n for n, key in enumerate(made.tables["rates"]["subscription"])}
        names = {str(name): n for n, name in enumerate(made.tables["current"]["subscriber"])}
        pairs = made.tables["subscriptions"]
        self.subscriber = np.array([names[str(name)] for name in pairs["subscriber"]])
        self.subscription = np.array([keys[str(key)] for key in pairs["subscription"]])
        self.users, self.backend, self.duration_s = users, len(keys), duration_s
        self._results(made.schedule, keys)
        rng = np.random.default_rng([seed, 3])
        there = np.stack([made.places.x, made.places.y], axis=1)
        around = there[0] + rng.normal(0, SPREAD_KM, (users, 2))
        anywhere = rng.uniform(0, p.field_km, (users, 2))
        self.nearest = balance.nearest(np.where(rng.random((users, 1)) < HOT, around, anywhere), there)
        self._seed = seed

    def _results(self, schedule: Any, keys: dict[str, int]) -> None:
        topic_key = np.array([keys.get(name.removeprefix("channel."), -1) for name in schedule.topics])
        chosen = (schedule.kind == PUBLISH) & (schedule.topic >= 0)
        chosen &= topic_key[np.maximum(schedule.topic, 0)] >= 0
        self.time_s, self.size = schedule.time_s[chosen], schedule.size[chosen]
        self.key = topic_key[schedule.topic[chosen]]

    def placed(self, placement: str) -> Ints:
        if placement == "NR":
            return self.nearest
        if placement == "RR":
            return balance.round_robin(self.users, SITES)
        return balance.random(self.users, SITES, self._seed)

    def problem(self, rates: Floats) -> balance.BalanceProblem:
        return balance.from_pairs(self.subscriber, self.subscription, rates, subscribers=self.users, sites=SITES)


def planned(policy: str, problem: balance.BalanceProblem, at: Ints, cov: float) -> Ints:
    """Where everybody should be, given the variation that the brokers measured."""
    if policy == "none" or cov <= ALPHA:
        return at
    if policy == "gsh" and cov > GAMMA:
        return balance.gsh(problem, at).assignment
    migrate = balance.sdm if policy == "sdm" else balance.ldm
    return migrate(problem, at, alpha=ALPHA).assignment


@contextlib.asynccontextmanager
async def brokers() -> AsyncIterator[list[SiteSpec]]:
    """Running sites, the cloud last."""
    names = [*(f"b{n}" for n in range(SITES)), "cloud"]
    first = free_ports(10 * len(names))
    specs = [SiteSpec(name, port=first + 10 * n) for n, name in enumerate(names)]
    with tempfile.TemporaryDirectory(prefix="nearcast-") as folder:
        async with run_sites(Deployment(tuple(specs)), Path(folder)):
            yield specs


async def _connected(bed: BrokerTestbed, user: int, site: SiteSpec) -> Subscriber:
    subjects = bed.subscription[bed.subscriber == user].tolist()

    async def connected() -> Subscriber:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(lambda: Subscriber(subjects), site.host, site.port)
        await protocol.ready
        return protocol

    # A broker closes connections that are slow to say hello, as those of a busy machine may be.
    async with asyncio.timeout(LIMIT):
        return await retry(connected, within=LIMIT, on=OSError)


async def _all_connected(bed: BrokerTestbed, at: Ints, edges: list[SiteSpec]) -> list[Subscriber]:
    """Some at a time, for the same reason."""
    found: list[Subscriber] = []
    for first in range(0, bed.users, 20):
        some = enumerate(at[first : first + 20].tolist(), first)
        found += await asyncio.gather(*(_connected(bed, user, edges[site]) for user, site in some))
    return found


async def _bytes(sites: list[SiteSpec]) -> Floats:
    """What each broker has taken in and sent, by its own count."""
    answers = await asyncio.gather(*(fetch_monitoring(site, "varz") for site in sites))
    return np.array([float(answer["in_bytes"] + answer["out_bytes"]) for answer in answers])


async def _end(window: int, connections: list[Subscriber], cluster: Subscriber) -> None:
    """Until everybody has got all of a window; told again, as a subscription may not be known everywhere yet."""
    async with asyncio.timeout(LIMIT):
        for attempt in itertools.count():
            if all(each.seen >= window for each in connections):
                return
            if attempt % 20 == 0:
                cluster.write(b"PUB end.%d 0\r\n\r\n" % window)
            await asyncio.sleep(0.05)


async def run_policy(bed: BrokerTestbed, specs: list[SiteSpec], at: Ints, policy: str, speed: float) -> list[Row]:
    edges, cloud = specs[:SITES], specs[SITES]
    connections = await _all_connected(bed, at, edges)
    cluster = Subscriber([])
    await asyncio.get_running_loop().create_connection(lambda: cluster, cloud.host, cloud.port)
    async with asyncio.timeout(LIMIT):
        await cluster.ready
    rows: list[Row] = []
    moves = 0
    try:
        for window in range(int(bed.duration_s / WINDOW_S)):
            before = await _bytes(edges)
            inside = (bed.time_s >= window * WINDOW_S) & (bed.time_s < (window + 1) * WINDOW_S)
            await _publish(bed, np.flatnonzero(inside), cluster, window * WINDOW_S, speed)
            await _end(window, connections, cluster)
            load = (await _bytes(edges) - before) / WINDOW_S / 1000  # kB in a second of the workload
            cov = balance.cov(load)
            rates = np.bincount(bed.key[inside], weights=bed.size[inside], minlength=bed.backend) / WINDOW_S
            computed = balance.loads(bed.problem(rates), at) / 1000
            rows.append(
                {
                    "method": policy, "minute": (window + 1) * WINDOW_S / 60, "cov": cov,
                    "max_load": float(load.max()), "moves": float(moves), "computed_max": float(computed.max()),
                }
            )  # fmt: skip
            target = planned(policy, bed.problem(rates), at, cov)
            for user in np.flatnonzero(target != at).tolist():
                old, connections[user] = connections[user], await _connected(bed, user, edges[target[user]])
                old.close()
            moves += int((target != at).sum())
            at = target
    finally:
        for connection in (*connections, cluster):
            connection.close()
    return rows


async def _publish(bed: BrokerTestbed, events: Ints, cluster: Subscriber, begin: float, speed: float) -> None:
    """The results of one window at their times."""
    clock, started = time.perf_counter, time.perf_counter()
    for event in events[np.argsort(bed.time_s[events], kind="stable")].tolist():
        wait = (bed.time_s[event] - begin) / speed - (clock() - started)
        if wait > 0.001:
            await asyncio.sleep(wait)
        size = int(bed.size[event])
        cluster.write(b"PUB chn.%d %d\r\n%b\r\n" % (bed.key[event], size, bytes(size)))
    await asyncio.sleep(max(0.0, WINDOW_S / speed - (clock() - started)))
