"""Where a topic should run, chosen by what clients measured, judged by the true delays on ePulsar's two scenarios.

Reports, aggregation and model are the system's own: clients report the round trips to their eight nearest sites, sites
one constant-size report per topic. AllPairs knows the coordinate of every client; the ideal knows every true delay.
NEARCAST_DATA names the folder with WonderProxy's pings, for the round trips between cities.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.measure import Figure
from benchmarks.placement_coordinates import wonderproxy
from numpy.typing import NDArray

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinates import Coordinate
from nearcast.coordinates.simulation import Fit, fit
from nearcast.coordinator.model.build_model import build_model
from nearcast.coordinator.model.client_columns import client_columns
from nearcast.coordinator.monitor import Monitor
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.placement.partitioning import PartitionClients, PartitionSites, aggregate, all_pairs
from nearcast.protocol.control import TopicRecord
from nearcast.protocol.registration import SiteInfo
from nearcast.protocol.reports import BrokerFigures, ClientReport, ClientTopic, SiteReport
from nearcast.site.agent import aggregation

__all__ = ["choice"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_MEASURED, _SITE_MEASURED = 8, 16  # sites that a client measures, and a site
_NOISE = 0.05  # of a round trip that was measured
_TRIALS = 5


@dataclass(frozen=True)
class World:
    """True round trips between sites and from each client to each site; topics with one role per row."""

    between: Floats
    to_site: Floats
    topic: Ints
    client: Ints
    publishes: NDArray[np.bool_]
    bound_ms: float
    topics: int

    def worst(self, site: Ints) -> Floats:
        """The true worst one-way latency of each topic, everybody at home at the nearest site."""
        home = self.to_site.argmin(axis=1)
        way = self.to_site[np.arange(len(home)), home][self.client] / 2
        way = way + self.between[home[self.client], site[self.topic]] / 2
        legs = np.zeros((2, self.topics))
        np.maximum.at(legs, ((~self.publishes).astype(int), self.topic), way)
        return np.asarray(legs.sum(axis=0))


def choice() -> Iterable[Figure]:
    """Sites chosen by what was measured, beside AllPairs: topics above their bound, mean of the worst latencies."""
    for name, worlds in _scenarios():
        late: dict[str, list[float]] = {}
        mean: dict[str, list[float]] = {}
        for seed, world in enumerate(worlds):
            plans = {"measured": _measured(world, seed), "AllPairs": _all_pairs(world, seed), "ideal": _ideal(world)}
            for who, site in plans.items():
                worst = world.worst(site)
                late.setdefault(who, []).append(float(np.mean(worst > world.bound_ms)))
                mean.setdefault(who, []).append(float(worst.mean()))
        shown = {who: f"{np.mean(late[who]):.1%} late, {np.mean(mean[who]):.1f} ms" for who in late}
        yield Figure(
            name, shown["measured"], f"AllPairs {shown['AllPairs']}; ideal {shown['ideal']}",
            float(np.mean(mean["measured"]) / np.mean(mean["AllPairs"])), "≤ 1",
        )  # fmt: skip


def _scenarios() -> Iterable[tuple[str, list[World]]]:
    for zones in (4, 16, 36):
        yield f"drones, {zones} zones, bound 40 ms", [_drones(zones, seed) for seed in range(_TRIALS)]
    if folder := os.environ.get("NEARCAST_DATA"):
        nodes, source, destination, rtt = wonderproxy(Path(folder), "United States")
        measured = np.full((nodes, nodes), np.nan)
        measured[source, destination] = rtt
        both = np.where(np.isnan(measured), measured.T, measured)
        both = np.where(np.isnan(both), np.nanmax(both), (both + np.where(np.isnan(both.T), both, both.T)) / 2)
        np.fill_diagonal(both, 0.0)
        for cities in (5, 10, 20, 40):
            yield f"game, {cities} cities, bound 100 ms", [_game(both, cities, seed) for seed in range(_TRIALS)]


def _drones(zones: int, seed: int) -> World:
    """Zones on a grid, 30 ms (round trip) and up to 10 more between neighbours; swarms of eight, most in one zone."""
    rng = np.random.default_rng(seed)
    side = int(np.sqrt(zones))
    at = np.array([(n // side, n % side) for n in range(zones)], dtype=float)
    between = 30.0 * np.sqrt(((at[:, None] - at[None, :]) ** 2).sum(axis=2)) + rng.uniform(0, 10, (zones, zones))
    between = np.triu(between, 1)
    between += between.T
    swarms, drones = 64, 8
    zone = np.repeat(rng.integers(zones, size=swarms), drones)
    near = np.array([rng.permutation(np.argsort(between[z])[1:4])[0] for z in zone])
    zone = np.where(rng.random(len(zone)) < 0.1, near, zone)  # some are ahead, or behind
    to_site = 20.0 + rng.uniform(-5, 5, (len(zone), 1)) + between[zone]
    clients = np.arange(swarms * drones)
    topic = clients // drones
    return World(
        between,
        to_site,
        np.tile(topic, 2),
        np.tile(clients, 2),
        np.arange(2 * len(clients)) < len(clients),
        40.0,
        swarms,
    )


def _game(rtt: Floats, cities: int, seed: int) -> World:
    """512 players in 64 groups, 5 ms from their city; a player's topic has the others of the group as subscribers."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(rtt), cities, replace=False)
    between = rtt[np.ix_(chosen, chosen)]
    players = 512
    home, group = rng.integers(cities, size=players), rng.permutation(players) % 64
    topic, client = np.nonzero(group[:, None] == group[None, :])
    other = topic != client
    topic, client = (
        np.concatenate([np.arange(players), topic[other]]),
        np.concatenate([np.arange(players), client[other]]),
    )
    return World(between, 10.0 + between[home], topic, client, np.arange(len(topic)) < players, 100.0, players)


def _ideal(world: World) -> Ints:
    sites = range(len(world.between))
    return np.asarray(np.argmin([world.worst(np.full(world.topics, site)) for site in sites], axis=0))


def _all_pairs(world: World, seed: int) -> Ints:
    """By coordinates: sites' fitted to all round trips, a client's as ePulsar's mobile ones get them."""
    place = _fitted(world, seed)
    home, access = world.to_site.argmin(axis=1), world.to_site.min(axis=1)
    position, height = place.position[home], place.height[home] + access
    clients = PartitionClients(
        world.topic, world.publishes, ~world.publishes, position[world.client], height[world.client]
    )
    sites = PartitionSites(place.position, place.height, np.full(len(world.between), np.inf))
    bound, rate = np.zeros(world.topics), np.full(world.topics, 1.0)  # a bound that nobody keeps: each gets its best
    topics = aggregate(clients, sites, np.zeros(world.topics, np.int64), bound, rate)
    return all_pairs(topics, clients, sites).site


def _fitted(world: World, seed: int) -> Fit:
    count = len(world.between)
    source, destination = np.nonzero(~np.eye(count, dtype=bool))
    return fit(count, source, destination, world.between[source, destination], seed=seed)


def _measured(world: World, seed: int) -> Ints:
    """The system's own way: reports of clients, aggregated by their homes, put together by the model."""
    rng = np.random.default_rng(seed)
    place, count = _fitted(world, seed), len(world.between)
    noisy = world.to_site * (1 + _NOISE * rng.standard_normal(world.to_site.shape))
    noisy_sites = world.between * (1 + _NOISE * rng.standard_normal(world.between.shape))
    names, topics = [f"site{n:02}" for n in range(count)], [f"topic{n:04}" for n in range(world.topics)]
    at = [Coordinate(tuple(p.tolist()), float(h)) for p, h in zip(place.position, place.height, strict=True)]
    parts: list[list[ClientTopic]] = [[] for _ in world.to_site]
    for topic, client, publishes in zip(world.topic, world.client, world.publishes, strict=True):
        parts[client].append(ClientTopic(topics[topic], bool(publishes), not publishes))
    reports: dict[int, list[ClientReport]] = {}
    for client, (ways, part) in enumerate(zip(noisy, parts, strict=True)):
        nearest = np.argsort(ways)[:_MEASURED]
        home = int(world.to_site[client].argmin())
        near = {names[n]: float(ways[n]) for n in nearest}
        coordinate = Coordinate(at[home].position, at[home].height + float(world.to_site[client, home]))
        reports.setdefault(home, []).append(ClientReport(f"c{client}", 1.0, coordinate, part, near))
    monitor = Monitor(1e9)
    for site in range(count):
        near_sites = np.argsort(world.between[site])[1 : _SITE_MEASURED + 1]
        trips = {names[n]: float(noisy_sites[site, n]) for n in near_sites}
        told = aggregation.aggregate(reports.get(site, []), topics, {}, names[site], trips, len(at[0].position))
        monitor.take(SiteReport(names[site], 1, at[site], BrokerFigures(), topics=told, round_trips=trips), 0.0)
    records = {name: TopicRecord(TopicSpec(name, (names[0],)), 1, (WorkerId(names[0], "worker-0"),)) for name in topics}
    infos = {name: SiteInfo(name, f"nats://{name}", name, 1) for name in names}
    columns = client_columns({}, tuple(topics), tuple(names))
    model = build_model(infos, records, columns, monitor, 0.0, CoordinatorSettings())
    return np.asarray(model.topics.expected.argmin(axis=1))
