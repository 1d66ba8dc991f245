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
    from nearcast.lab.experiments.results import Estimate, Results, Value
    from nearcast.placement.arrays import Floats

__all__ = ["CAPACITY", "EXPERIMENTS", "METHODS", "demand_on", "given_stores", "plans"]

TOPICS, CAPACITY, REQUESTS = 10, 5, 25.0  # T, L, requests/s at each node over all topics
METHODS = ("random", "sequential", "wrr", "refined", "greedy, no limits", "assignment searched")


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
    wrr, sequential = storage.wrr(problem), storage.sequential(problem)
    found = (
        storage.random(problem, seed),
        sequential,
        wrr,
        storage.refined(problem, wrr, seed=seed, min_replicas=int(problem.replicas.min())),
        storage.greedy_unconstrained(problem),
        storage.refined(problem, sequential, seed=seed, keep_stores=True),  # the same stores and degrees
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


def measure_minimum(task: Task) -> Iterator[Row]:
    """Fig. 4 to 6: k_t = ⌈w_t / w_t' · min_k⌉ and the least M that holds them; s_p = 1, uniform locality."""
    rng = np.random.default_rng(task.seed)
    network = random_tree(int(task.number("N")), rng)
    demand = demand_on(network, 1.0, 0.0, rng)
    degrees = storage.minimum_degrees(storage.topic_weights(demand), int(task.number("min_k")))
    degrees = np.minimum(degrees, network.nodes)
    stores = min(storage.stores_needed(degrees, task.number("L")), network.nodes)
    return _rows(storage.StorageProblem(network, demand, stores, task.number("L"), degrees), task.seed)


class Comparison:
    """Hops of a method against another's: paired by tree, at each point and over all of them."""

    def __init__(self, results: Results, points: Sequence[Point], method: str, other: str) -> None:
        def ratio(**point: Value) -> Estimate:
            return results.ratio("mean_hops", {"method": method}, {"method": other}, **point)

        self.overall, self.at = ratio(), [ratio(**point) for point in points]

    @property
    def text(self) -> str:
        """For example `-8.1 ± 0.9 % (-12 to -3 % by point)`."""
        low, high = (100 * (f(each.mean for each in self.at) - 1) for f in (min, max))
        return f"{self.overall.percent()} ({low:.0f} to {high:.0f} % by point)"

    def better(self) -> tuple[bool, bool]:
        """Whether it has fewer hops at every point and over all, each by more than the confidence interval."""
        return all(each.high < 1 for each in self.at), self.overall.high < 1

    def within(self, share: float) -> bool:
        """Whether it has at most this share more hops, at every point."""
        return all(each.mean <= 1 + share for each in self.at)


WHY_RANDOM = (
    "Our random baseline chooses its stores by the same greedy, for all topics together; only assignment is random. "
    "How little greedy without limits is ahead of it, the plot shows."
)
WHY_BEHIND = "Greedy without limits puts every topic at nodes of its own; where stores are small or few, that tells."
WHY_ORDER = (
    "Where all topics are asked for alike everywhere, all prefer the same stores: who comes first keeps a good set "
    "whole, and rounds break up the sets of all. Where topics differ (locality), rounds help. Ties are broken by what "
    "is still far, which the paper leaves open, in both."
)


def _claims(
    results: Results, points: Sequence[Point], paper_random: str, most_behind: str, behind_limit: float
) -> list[Claim]:
    wrr, refined = (Comparison(results, points, method, "random") for method in ("wrr", "refined"))
    behind, searched = (Comparison(results, points, method, "greedy, no limits") for method in ("wrr", "refined"))
    order, searched_order = (
        Comparison(results, points, method, "sequential") for method in ("wrr", "assignment searched")
    )
    return [
        Claim(
            "The proposed placement needs fewer hops than random.",
            paper_random,
            f"wrr {wrr.text}; refined {refined.text}",
            verdict(*wrr.better(), *refined.better()),
            WHY_RANDOM,
        ),
        Claim(
            "It is close to greedy without limits on stores.",
            most_behind,
            f"wrr {behind.text}; refined {searched.text}",
            verdict(behind.within(behind_limit), searched.within(behind_limit)),
            WHY_BEHIND,
        ),
        Claim(
            "WRR is better than sequential.",
            "4 to 17 % fewer hops",
            order.text,
            verdict(*order.better()),
            f"{WHY_ORDER} What a better assignment to the same stores with the same degrees could win: a local search "
            f"finds {searched_order.text} against sequential.",
        ),
    ]


def _points_of(results: Results, *names: str) -> list[Point]:
    return [
        dict(zip(names, values, strict=True))
        for values in dict.fromkeys(tuple(row[n] for n in names) for row in results.rows)
    ]


def _popularity_points(quick: bool) -> list[Point]:
    exponents = (0.0, 0.8, 1.6) if quick else (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
    return [{"M": float(stores), "s_p": s_p, "s_l": 0.0} for stores in (20, 10) for s_p in exponents]


def _locality_points(quick: bool) -> list[Point]:
    exponents = (0.0, 1.0, 2.0) if quick else (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
    return [{"M": float(stores), "s_p": 0.0, "s_l": s_l} for stores in (20, 10) for s_l in exponents]


def _locality_claims(results: Results) -> list[Claim]:
    claims = _claims(results, _points_of(results, "M", "s_l"), "5 to 25 % fewer", "up to 4 times the hops", 3.0)
    by_exponent = [
        results.ratio("stores", {"method": "greedy, no limits"}, {"method": "wrr"}, M=20.0, s_l=float(s_l))
        for s_l in results.values("s_l")
    ]
    most = max(by_exponent, key=lambda ratio: ratio.mean)
    more = Claim(
        "Greedy without limits installs about three times the stores.",
        "3 times",
        f"{min(each.mean for each in by_exponent):.1f} to {most.text(1)} times, by the exponent (M = 20)",
        verdict(most.mean >= 2.5, most.mean > 1.5),
        "Topics that are asked for everywhere want the same nodes; only the local ones want nodes of their own.",
    )
    return [*claims, more]


def _minimum(
    name: str, figure: str, varied: str, label: str, quick: Sequence[float], full: Sequence[float]
) -> Experiment:
    return Experiment(
        name=name,
        paper="003",
        figure=figure,
        title=f"Mean hops and traffic against {label}",
        about="T = 10, s_p = 1, uniform locality; N = 100, L = 5, min_k = 2 unless varied. M is the least that "
        "fits. `refined` chooses the degrees, from min_k on, and fills places that the others leave free.",
        points=lambda q: [{"N": 100.0, "L": 5.0, "min_k": 2.0, varied: value} for value in (quick if q else full)],
        seeds=(4, 20),
        measure=measure_minimum,
        claims=lambda results: _claims(
            results, _points_of(results, varied), "5 to 25 % fewer", "less than 10 % more hops", 0.1
        ),
        panels=[
            Panel(varied, "mean_hops", label, "mean hops"),
            Panel(varied, "traffic", label, "overall network traffic, req·hops/s"),
            Panel(varied, "stores", label, "stores"),
        ],
    )


def _by_m(x: str, label: str) -> list[Panel]:
    return [Panel(x, "mean_hops", label, "mean hops", title=f"M = {m:g}", where={"M": m}) for m in (20.0, 10.0)]


BROKERS = _minimum("stores-brokers", "Fig. 4", "N", "brokers N", (50, 100, 200), (50, 100, 150, 200, 250, 300))
CAPACITIES = _minimum("stores-capacity", "Fig. 5", "L", "storage capacity L", (2, 5, 10), (2, 3, 4, 5, 6, 8, 10))
REPLICAS = _minimum("stores-replicas", "Fig. 6", "min_k", "minimum replication degree", (1, 2, 4), (1, 2, 3, 4, 5))
POPULARITY = Experiment(
    name="stores-popularity",
    paper="003",
    figure="Fig. 7",
    title="Mean hops against the popularity exponent, M stores given",
    about="N = 100, T = 10, L = 5, uniform locality; all M·L places are filled.",
    points=_popularity_points,
    seeds=(4, 20),
    measure=measure_given_stores,
    claims=lambda results: _claims(
        results, _points_of(results, "M", "s_p"), "10 to 25 % fewer", "less than 9 % more hops", 0.09
    ),
    panels=_by_m("s_p", "popularity exponent s_p"),
)
LOCALITY = Experiment(
    name="stores-locality",
    paper="003",
    figure="Fig. 8",
    title="Mean hops against the locality exponent, M stores given",
    about="N = 100, T = 10, L = 5, uniform popularity; s_l = 0: every topic is asked for everywhere.",
    points=_locality_points,
    seeds=(4, 20),
    measure=measure_given_stores,
    claims=_locality_claims,
    panels=_by_m("s_l", "locality exponent s_l"),
)

EXPERIMENTS = (BROKERS, CAPACITIES, REPLICAS, POPULARITY, LOCALITY)
