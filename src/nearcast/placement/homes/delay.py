"""The delay of notifications for given homes: Eq. 1 to 9 of the paper, for all publications at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from nearcast.placement.homes.problem import pattern

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.homes.problem import HomesProblem

__all__ = ["HomesPlan", "evaluate", "local_share"]


@dataclass(frozen=True, eq=False)
class HomesPlan:
    """Homes and what they lead to. In the paper: Y, Y1 and Y2 (`*_delay_ms`), θ_l (`local_share`).

    `delegated_share` is the part of all publications that the cloud processes.
    """

    home: Ints
    delay_ms: float
    distance_delay_ms: float
    resource_delay_ms: float
    storage_used: Floats
    compute_used: Floats
    local_share: Floats
    delegated_share: float


def local_share(problem: HomesProblem, storage_used: Floats, compute_used: Floats, sites: Any = slice(None)) -> Floats:
    """θ of Eq. 2 for all sites or some. A site with nothing to hold or compute keeps all of it."""
    share = np.ones(np.broadcast_shapes(storage_used.shape, compute_used.shape))
    for limit, used in ((problem.storage[sites], storage_used), (problem.compute[sites], compute_used)):
        fits = used <= limit
        np.minimum(share, np.where(fits, 1.0, limit / np.where(fits, 1.0, used)), out=share)
    return share


def evaluate(problem: HomesProblem, home: Ints) -> HomesPlan:
    """The plan that these homes are. One sparse product per sum: the cost grows with the memberships."""
    home = np.asarray(home, dtype=np.int64)
    weights = problem.delay_weights
    at_site = sparse.csr_array(
        (np.ones(problem.clients), home, np.arange(problem.clients + 1)), shape=(problem.clients, problem.sites)
    )
    storage_used, compute_used = _resources(problem, at_site)
    theta = local_share(problem, storage_used, compute_used)

    published = np.asarray(weights.publishing.sum(axis=0)).ravel() @ at_site  # P_l
    # Weight sent from l to subscribers at l', over all topics; then X_l.
    flows = ((weights.sending @ at_site).T @ (weights.receiving @ at_site)).toarray()
    between = (flows * problem.site_site_ms).sum(axis=1)

    total = weights.total or 1.0
    distance = float(weights.distance @ problem.client_site_ms[np.arange(problem.clients), home]) / total
    resource = float((2 * problem.cloud_ms * (1 - theta) * published + theta * between).sum()) / total
    all_published = np.asarray(problem.publications.sum(axis=0)).ravel() @ at_site
    delegated = float((1 - theta) @ all_published) / (float(all_published.sum()) or 1.0)
    return HomesPlan(home, distance + resource, distance, resource, storage_used, compute_used, theta, delegated)


def _resources(problem: HomesProblem, at_site: Any) -> tuple[Floats, Floats]:
    """Storage Σ u_n over the managed topics and compute v_l (Eq. 1) of every site."""
    publishers = (pattern(problem.publications) @ at_site).tocsr()  # |C^P_{n,l}|
    return pattern(publishers).T @ problem.spool_size, publishers.T @ problem.spool_size
