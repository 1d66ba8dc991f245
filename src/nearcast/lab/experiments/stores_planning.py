"""Storage planning (Sourlas et al.), Fig. 4 to 8: hops of requests under the planners, on random trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.workloads.content import locality, popularity, random_tree
from nearcast.placement import storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Results
    from nearcast.placement.arrays import Floats

__all__ = ["EXPERIMENTS", "METHODS", "demand_on", "given_stores", "plans"]

TOPICS, CAPACITY, REQUESTS = 10, 5, 25.0  # T, L, requests/s at each node over all topics
METHODS = ("random", "sequential", "wrr", "refined", "greedy, no limits")


def demand_on(network: storage.Network, s_p: float, s_l: float, rng: np.random.Generator) -> Floats:
    """r_i^t: 25·p_t requests/s from the l_t·N nodes closest to a random one; s_l = 0 is uniform locality, all nodes."""
    demand = np.repeat(REQUESTS * popularity(TOPICS, s_p)[:, None], network.nodes, axis=1)
    for row, share in zip(demand, locality(TOPICS, s_l), strict=True):
        nearest = np.argsort(network.distance[rng.integers(network.nodes)], kind="stable")
        row[nearest[int(np.ceil(share * network.nodes - 1e-9)) :]] = 0.0
    return demand


def given_stores(network: storage.Network, demand: Floats, stores: int) -> storage.StorageProblem:
    """Section 6.1.2: M stores of L topics are there; replicas by weight fill them."""
    degrees = storage.weighted_degrees(storage.topic_weights(demand), 1, stores, CAPACITY)
    return storage.StorageProblem(network, demand, stores, CAPACITY, degrees)


def plans(problem: storage.StorageProblem, seed: int) -> dict[str, storage.StoragePlan]:
    wrr = storage.wrr(problem)
    found = (
        storage.random(problem, seed),
        storage.sequential(problem),
        wrr,
        storage.refined(problem, wrr, seed=seed),
        storage.greedy_unconstrained(problem),
    )
    return dict(zip(METHODS, found, strict=True))


def _rows(problem: storage.StorageProblem, seed: int) -> Iterator[Row]:
    for method, plan in plans(problem, seed).items():
        yield {
            "method": method,
            "mean_hops": plan.mean_hops,
            "traffic": plan.traffic,
            "stores": float(len(plan.stores)),
            "replicas": float(plan.placed.sum()),
        }


def measure_given_stores(task: Task) -> Iterator[Row]:
    """Fig. 7 and 8."""
    rng = np.random.default_rng(task.seed)
    network = random_tree(100, rng)
    demand = demand_on(network, task.number("s_p"), task.number("s_l"), rng)
    return _rows(given_stores(network, demand, int(task.number("M"))), task.seed)


def _against(results: Results, points: Sequence[Point], method: str, other: str) -> tuple[list[float], str]:
    """By how many percent the method has fewer hops than the other, at each point; and their range in words."""
    better = [
        100 * (1 - results.ratio("mean_hops", {"method": method}, {"method": other}, **point).mean) for point in points
    ]
    return better, f"{min(better):.0f} to {max(better):.0f} %"


def _popularity_points(quick: bool) -> list[Point]:
    exponents = (0.0, 0.8, 1.6) if quick else (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
    return [{"M": float(stores), "s_p": s_p, "s_l": 0.0} for stores in (20, 10) for s_p in exponents]


def _popularity_claims(results: Results) -> list[Claim]:
    points = [{"M": m, "s_p": s} for m in results.values("M") for s in results.values("s_p")]
    refined, refined_text = _against(results, points, "refined", "random")
    wrr, wrr_text = _against(results, points, "wrr", "random")
    behind, _ = _against(results, points, "wrr", "greedy, no limits")
    order, order_text = _against(results, points, "wrr", "sequential")
    return [
        Claim(
            "The proposed placement needs fewer hops than random.",
            "10 to 25 % fewer",
            f"wrr {wrr_text} fewer; refined {refined_text}",
            verdict(min(wrr) >= 10, min(refined) >= 10),
        ),
        Claim(
            "It is close to greedy without limits.",
            "less than 9 % more hops",
            f"wrr {-max(behind):.0f} to {-min(behind):.0f} % more",
            verdict(-min(behind) < 9),
        ),
        Claim("WRR is better than sequential.", "4 to 17 %", order_text, verdict(min(order) > 0)),
    ]


POPULARITY = Experiment(
    name="stores-popularity",
    paper="003",
    figure="Fig. 7",
    title="Mean hops against the popularity exponent, M stores given",
    about="N = 100, T = 10, L = 5, uniform locality; all M·L places are filled.",
    points=_popularity_points,
    seeds=(4, 20),
    measure=measure_given_stores,
    claims=_popularity_claims,
    panels=[
        Panel("s_p", "mean_hops", "popularity exponent s_p", "mean hops", title=f"M = {m:g}", where={"M": m})
        for m in (20.0, 10.0)
    ],
)

EXPERIMENTS = (POPULARITY,)
