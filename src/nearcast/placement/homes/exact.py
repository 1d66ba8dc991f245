"""The best homes there are, for small instances: a CP-SAT model of the optimisation problem (Eq. 3 to 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.errors import InputError, NearcastError
from nearcast.placement.homes.refined import RefineParameters, refine, refined

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats
    from nearcast.placement.homes.delay import HomesPlan
    from nearcast.placement.homes.problem import HomesProblem

__all__ = ["exact"]

LARGEST = 100  # clients × sites; beyond, proofs take hours
SCALE = 10**6  # θ = 1 in integers


def exact(problem: HomesProblem, seconds: float = 300.0, seed: int = 0) -> HomesPlan:
    """Optimal up to the rounding of CP-SAT's integers, about one in a million.

    A site's cost is what keeping everything costs, plus 1 - θ_l times what the cloud costs more: a product of
    two integer variables. Raises when the optimum is not proven within the time.
    """
    from ortools.sat.python import cp_model

    if problem.clients * problem.sites > LARGEST:
        raise InputError(
            f"{problem.clients} clients × {problem.sites} sites are too many for the exact solver; "
            f"at most {LARGEST} together"
        )
    start = refined(problem, RefineParameters(perturbations=3, sweeps=50, seed=seed))
    if problem.sites == 1 or start.delay_ms == 0:
        return start
    model = cp_model.CpModel()
    at, total = _model(model, problem)
    model.minimize(total)
    for client, site in enumerate(start.home):
        for other in range(problem.sites):
            model.add_hint(at[client][other], int(other == site))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1  # the same answer on every run
    if solver.solve(model) != cp_model.OPTIMAL:
        raise NearcastError(f"the optimum was not proven within {seconds:g} s; try fewer clients or sites")
    home = np.array([next(s for s, x in enumerate(row) if solver.value(x)) for row in at])
    found = refine(problem, home, RefineParameters(perturbations=0))
    return min(start, found, key=lambda plan: plan.delay_ms)


def _model(model: Any, problem: HomesProblem) -> tuple[list[list[Any]], Any]:
    """x_{m,l} and the total delay in integers."""
    weights, clients, sites = problem.delay_weights, range(problem.clients), range(problem.sites)
    at = [[model.new_bool_var(f"x{m},{site}") for site in sites] for m in clients]  # Eq. 4
    for row in at:
        model.add_exactly_one(row)  # Eq. 5
    resource_unit = _resource_unit(problem)
    delegated = [_delegated(model, problem, at, site, resource_unit) for site in sites]

    # pair[m, m']: weight of what m sends to m'; a publisher does not send to itself.
    pair = (weights.sending.T @ weights.receiving).toarray()
    np.fill_diagonal(pair, 0.0)
    published = np.asarray(weights.publishing.sum(axis=0)).ravel()
    to_home = weights.distance[:, None] * problem.client_site_ms
    cloud = 2 * problem.cloud_ms * published
    # Delays in whole units, such that the largest total there can be is 100 * SCALE of them.
    farthest = pair.sum() * problem.site_site_ms.max()
    unit = 100 * SCALE / (to_home.max(axis=1).sum() + cloud.sum() + farthest)
    delay = unit * problem.site_site_ms
    objective: list[Any] = [SCALE * round(unit * to_home[m, site]) * at[m][site] for m in clients for site in sites]
    # both[m, m'][l, l']: m is at l and m' at l'. The sums over l and over l' make the relaxation tight.
    between: list[list[Any]] = [[] for _ in sites]
    for m in clients:
        for other in range(m + 1, problem.clients):
            if not pair[m, other] and not pair[other, m]:
                continue
            both = [[model.new_bool_var("") for _ in sites] for _ in sites]
            for site in sites:
                model.add(sum(both[site]) == at[m][site])
                model.add(sum(row[site] for row in both) == at[other][site])
            for here in sites:
                for there in sites:
                    if here != there:
                        between[here].append(round(pair[m, other] * delay[here, there]) * both[here][there])
                        between[there].append(round(pair[other, m] * delay[there, here]) * both[here][there])
    # Bounds of what the cloud costs more; each rounded term may be off by half a unit.
    rounding = problem.clients**2
    most = round(unit * cloud.sum()) + rounding
    cloud_is_farther = problem.site_site_ms.max() <= 2 * problem.cloud_ms
    least = -rounding if cloud_is_farther else -round(unit * farthest) - rounding
    for site in sites:
        # Eq. 6 at one site: what it costs to keep everything, plus 1 - θ times what the cloud costs more.
        objective += [SCALE * term for term in between[site]]
        if delegated[site] is None:
            continue
        by_cloud = sum(round(unit * cloud[m]) * at[m][site] for m in clients)
        more = model.new_int_var(least, most, "")
        model.add(more == by_cloud - sum(between[site]))
        product = model.new_int_var(least * SCALE, most * SCALE, "")
        model.add_multiplication_equality(product, [more, delegated[site]])
        objective.append(product)
    return at, sum(objective)


def _delegated(model: Any, problem: HomesProblem, at: list[list[Any]], site: int, unit: float) -> Any:
    """1 - θ_l of Eq. 2 in SCALE parts, for one site; None when it is 0 whatever the homes are."""
    publishers = problem.publications
    spool = _whole(problem.spool_size * unit)
    storage: list[Any] = []
    compute: list[Any] = []
    for topic in range(problem.topics):
        here = [at[m][site] for m in publishers.indices[publishers.indptr[topic] : publishers.indptr[topic + 1]]]
        if here and spool[topic]:
            managed = model.new_bool_var("")
            model.add_max_equality(managed, here)
            storage.append(spool[topic] * managed)
            compute += [spool[topic] * x for x in here]
    most = {
        "storage": sum(spool),
        "compute": sum(int(s) * int(n) for s, n in zip(spool, np.diff(publishers.indptr), strict=True)),
    }
    shares = []
    for name, used in (("storage", storage), ("compute", compute)):
        limit = _whole(getattr(problem, name)[[site]] * unit)[0]
        if most[name] <= limit:
            continue
        share = model.new_int_var(0, SCALE, "")
        if limit == 0:
            empty = model.new_bool_var("")
            model.add(sum(used) == 0).only_enforce_if(empty)
            model.add(sum(used) > 0).only_enforce_if(empty.negated())
            model.add(share == SCALE * empty)
        else:
            asked = model.new_int_var(limit, most[name], "")
            model.add_max_equality(asked, [sum(used), limit])
            model.add_division_equality(share, limit * SCALE, asked)
            # 1 - limit / asked is concave: it lies above its chord, which the relaxation can use.
            model.add((SCALE - share) * most[name] >= SCALE * (asked - limit) - most[name])
        shares.append(share)
    if not shares:
        return None
    theta = model.new_int_var(0, SCALE, "")
    model.add_min_equality(theta, shares)
    delegated = model.new_int_var(0, SCALE, "")
    model.add(delegated == SCALE - theta)
    return delegated


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in np.rint(values)]


def _resource_unit(problem: HomesProblem) -> float:
    """Integers per unit of storage and compute: 1 where all are whole numbers already."""
    values = np.concatenate([problem.storage, problem.compute, problem.spool_size])
    return 1.0 if (values == np.rint(values)).all() else SCALE / values.max()
