"""Quality of the home planners: the paper's simulation, and the distance from the optimum.

.venv/bin/python -m benchmarks.placement_homes_quality [FOLLOWS]

FOLLOWS is a file of `follower followee` pairs, as in Section 7 of the paper: a follower with its followees
is a topic. Without it, made-up memberships of the same size are used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.errors import NearcastError
from nearcast.lab.workloads.city import CityParameters, city, random_members
from nearcast.placement.homes import (
    HomesPlan,
    HomesProblem,
    RelocParameters,
    exact,
    membership,
    nearest,
    one_topic_one_site,
    random,
    refined,
    reloc,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(3)
METHODS: dict[str, Callable[[HomesProblem, int], HomesPlan]] = {
    "random": lambda problem, seed: random(problem, seed),
    "nearest": lambda problem, seed: nearest(problem),
    "one_topic_one_site": lambda problem, seed: one_topic_one_site(problem),
    "reloc, K = 4": lambda problem, seed: reloc(problem, RelocParameters(clusters=4, seed=seed)),
    "reloc, K chosen": lambda problem, seed: reloc(problem, RelocParameters(seed=seed)),
    "refined": lambda problem, seed: refined(problem),
}


def followed_topics(path: Path, topics: int, seed: int) -> Any:
    """Topics × clients from a follow graph: 64 followers with 3 to 20 followees, a client in at most four."""
    pairs = np.loadtxt(path, dtype=np.int64)
    followers, counts = np.unique(pairs[:, 0], return_counts=True)
    fitting = followers[(counts >= 3) & (counts <= 20)]
    chosen = np.random.default_rng(seed).choice(fitting, size=topics, replace=False)
    topic_of, client_of = [], []
    seen: dict[int, int] = {}
    for topic, follower in enumerate(chosen.tolist()):
        for client in [follower, *pairs[pairs[:, 0] == follower, 1].tolist()]:
            if seen.setdefault(client, 0) < 4:
                seen[client] += 1
                topic_of.append(topic)
                client_of.append(client)
    _, client = np.unique(client_of, return_inverse=True)
    pairs_kept = np.unique(np.stack([topic_of, client]), axis=1)
    return membership(pairs_kept[0], pairs_kept[1], (topics, int(client.max()) + 1))


def papers_simulation(follows: Path | None) -> None:
    """Mean delay Y and how full the sites are, over the locality σ (Fig. 14)."""
    print("\n| σ km | method | Y ms | Y1 | Y2 | storage mean (max) of A | compute mean (max) of B | delegated |")
    print("|---|---|---|---|---|---|---|---|")
    for spread_km in (1, 5, 10, 15, 20):
        for name, method in METHODS.items():
            rows = []
            for seed in SEEDS:
                members = followed_topics(follows, 64, seed) if follows else random_members(64, 600, seed)
                problem = city(members, CityParameters(spread_km=spread_km), seed)
                plan = method(problem, seed)
                storage, compute = plan.storage_used / problem.storage, plan.compute_used / problem.compute
                delays = (plan.delay_ms, plan.distance_delay_ms, plan.resource_delay_ms)
                fill = (storage.mean(), storage.max(), compute.mean(), compute.max())
                rows.append([*delays, *fill, plan.delegated_share])
            y, y1, y2, s, s_max, c, c_max, gone = np.mean(rows, axis=0)
            print(
                f"| {spread_km} | {name} | {y:.2f} | {y1:.2f} | {y2:.2f} | {s:.2f} ({s_max:.2f}) "
                f"| {c:.2f} ({c_max:.2f}) | {gone:.1%} |",
                flush=True,
            )


def distance_from_optimum(instances: int = 20) -> None:
    """How far above the optimum each method is, on cities small enough to solve."""
    above: dict[str, list[float]] = {name: [] for name in METHODS}
    unsolved = 0
    for seed in range(instances):
        members = random_members(4, 9, seed, sizes=(3, 5))
        limits = CityParameters(sites=3 + seed % 2, spread_km=8, storage=(14, 20, 1000)[seed % 3], compute=40)
        problem = city(members, limits, seed)
        try:
            best = exact(problem, seconds=60).delay_ms
        except NearcastError:
            unsolved += 1
            continue
        for name, method in METHODS.items():
            if name != "reloc, K = 4" or problem.sites >= 4:
                above[name].append(method(problem, seed).delay_ms / best - 1)
    print(f"\n| method | mean | largest | optimal in | ({instances} cities, {unsolved} not solved in 60 s)")
    print("|---|---|---|---|")
    for name, gaps in above.items():
        optimal = sum(gap < 1e-9 for gap in gaps)
        print(f"| {name} | {np.mean(gaps):.1%} | {np.max(gaps):.1%} | {optimal} of {len(gaps)} |", flush=True)


if __name__ == "__main__":
    distance_from_optimum()
    papers_simulation(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
