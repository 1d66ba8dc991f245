"""The optimum for small instances: a capacitated k-median per topic, joined by the stores they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from nearcast.errors import NearcastError
from nearcast.placement.storage.problem import StorageInfeasibleError, StoragePlan, StorageProblem, evaluate

if TYPE_CHECKING:
    from nearcast.placement.arrays import Ints

__all__ = ["exact"]


def exact(problem: StorageProblem, stores: Ints | None = None, time_limit: float = 60.0) -> StoragePlan:
    """Least traffic (Eq. 3) over the choice of M stores and of k_t of them per topic, by MILP.

    Given `stores`, only the assignment to them is optimised. Takes seconds up to about 12 nodes and 6
    topics; raises when the optimum is not proven within the time limit.
    """
    sites = np.arange(problem.network.nodes) if stores is None else stores
    topics, nodes, places = len(problem.demand), problem.network.nodes, len(sites)
    asking = [(t, node) for t in range(topics) for node in range(nodes) if problem.demand[t, node] > 0]
    # Variables: open[n], then place[t, n], then serve[request, n] (fractional: the nearest is taken anyway).
    place0, serve0 = places, places + topics * places
    cost = np.zeros(serve0 + len(asking) * places)
    for request, (t, node) in enumerate(asking):
        start = serve0 + request * places
        cost[start : start + places] = problem.demand[t, node] * problem.network.distance[node, sites]

    rows: list[tuple[list[int], list[float], float, float]] = [
        (list(range(places)), [1.0] * places, 0.0, float(problem.stores))
    ]
    for n in range(places):  # a store holds at most L, a node without one nothing
        held = [place0 + t * places + n for t in range(topics)]
        rows.append(([n, *held], [-problem.capacity, *problem.sizes], -np.inf, 1e-9))
        rows += [([n, h], [-1.0, 1.0], -np.inf, 0.0) for h in held]
    for t in range(topics):
        held = [place0 + t * places + n for n in range(places)]
        rows.append((held, [1.0] * places, float(problem.replicas[t]), float(problem.replicas[t])))
    for request, (t, _) in enumerate(asking):
        served = [serve0 + request * places + n for n in range(places)]
        rows.append((served, [1.0] * places, 1.0, 1.0))
        rows += [([s, place0 + t * places + n], [1.0, -1.0], -np.inf, 0.0) for n, s in enumerate(served)]

    row = np.repeat(np.arange(len(rows)), [len(columns) for columns, *_ in rows])
    column = np.concatenate([columns for columns, *_ in rows])
    value = np.concatenate([values for _, values, *_ in rows])
    matrix = coo_array((value, (row, column)), shape=(len(rows), len(cost))).tocsr()
    solution = milp(
        cost,
        constraints=LinearConstraint(matrix, [low for *_, low, _ in rows], [high for *_, high in rows]),
        integrality=np.arange(len(cost)) < serve0,
        bounds=Bounds(0, 1),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    if solution.status == 2:
        raise StorageInfeasibleError(f"capacity too small: no choice of {problem.stores} stores holds all replicas")
    if solution.status != 0:
        raise NearcastError(f"no proven optimum within {time_limit:g} s: {solution.message}")
    placed = np.zeros(problem.demand.shape, dtype=bool)
    placed[:, sites] = solution.x[place0:serve0].reshape(topics, places) > 0.5
    chosen = sites[solution.x[:places] > 0.5] if stores is None else stores
    return evaluate(problem, chosen, placed)
