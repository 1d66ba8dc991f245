"""How low the maximum load could possibly be: what a plan is measured against."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import LinearOperator, eigsh

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats
    from nearcast.placement.balance.problem import BalanceProblem

__all__ = ["lower_bound"]


def lower_bound(problem: BalanceProblem) -> float:
    """No assignment has a smaller maximum load. Three reasons, the strongest counts."""
    if not (problem.outgoing > 0).any():
        return 0.0
    largest = float(problem.rates.max())
    scaled = replace(problem, rates=problem.rates / largest)  # squares of large rates would overflow
    heaviest = _heaviest_subscribers(scaled)
    return largest * max(heaviest, _each_subscription_held(scaled, heaviest), _low_similarity(scaled))


def _held_once(problem: BalanceProblem) -> csr_array:
    held = csr_array(problem.subscriptions, copy=True)
    held.data = np.minimum(held.data, 1)
    return held


def _heaviest_subscribers(problem: BalanceProblem) -> float:
    """The heaviest subscriber is somewhere; of the m + 1 heaviest two are at one site."""
    incoming = _held_once(problem) @ problem.rates
    floor = float((problem.outgoing + incoming).max())
    if problem.subscribers > problem.sites:
        heaviest = np.argsort(-problem.outgoing)[: problem.sites + 1]
        floor = max(floor, float(problem.outgoing[heaviest[-2:]].sum() + incoming[heaviest].min()))
    return floor


def _each_subscription_held(problem: BalanceProblem, floor: float) -> float:
    """Everything is sent, and each subscription fetched by every site that holds it.

    Those are more than one where what the subscribers of k are sent does not fit into one site.
    """
    outgoing, sites = float(problem.outgoing.sum()), problem.sites
    followers = _held_once(problem).T @ problem.outgoing
    followers, rates = followers[followers > 0], problem.rates[followers > 0]

    def enough(maximum: float) -> bool:
        spare = maximum - rates
        if (spare <= 0).any():
            return False
        holders = np.maximum(1, np.ceil(followers / spare * (1 - 1e-12)))
        return bool(holders.max() <= sites) and outgoing + float(rates @ holders) <= sites * maximum

    low, high = floor, outgoing + float(rates.sum())
    if enough(low):
        return low
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def _low_similarity(problem: BalanceProblem) -> float:
    """Subscribers with little in common cannot share much, however they are grouped.

    Some site sends O ≥ U/m, the mean. By Cauchy-Schwarz (Σ λ n)² ≤ (Σ λ z) (Σ λ n²), so it fetches at
    least O² / Σ_k λ_k n_k². With Z = D^-½ Y Λ^½, D = diag(u), that sum is |Zᵀx|² for a vector x of length √O
    whose part along v = D^½ 1/√U is O/√U; the rest of x is stretched by at most the largest singular value
    of Z orthogonal to v.
    """
    active = problem.outgoing > 0
    outgoing = problem.outgoing[active]
    total, mean = float(outgoing.sum()), float(outgoing.sum()) / problem.sites
    z = diags_array(1 / np.sqrt(outgoing)) @ problem.subscriptions[active] @ diags_array(np.sqrt(problem.rates))
    z, along = csr_array(z), np.sqrt(outgoing / total)
    z_along = z.T @ along
    image = z @ z_along
    across = float(np.linalg.norm(image - along * (along @ image)))
    stretch = _largest_eigenvalue(z, z_along) * (1 + 1e-6)  # the iteration comes from below

    def squares(sent: float) -> float:
        """At least Σ_k λ_k n_k² of any site that sends at most `sent`."""
        rest = min(sent, total / 2) * (1 - min(sent, total / 2) / total)
        part = sent / np.sqrt(total)
        return float(part**2 * (z_along @ z_along) + 2 * part * np.sqrt(rest) * across + stretch * rest)

    highest = mean + mean**2 / squares(mean)  # a site that sends more than this has a higher load anyway
    return mean + mean**2 / squares(min(highest, total))


def _largest_eigenvalue(z: csr_array, z_along: Floats) -> float:
    """Of ZᵀZ without the part along v."""
    size = len(z_along)
    if size <= 64:
        return max(0.0, float(np.linalg.eigvalsh((z.T @ z).toarray() - np.outer(z_along, z_along))[-1]))
    trace = float(z.data @ z.data - z_along @ z_along)  # no eigenvalue is above the trace
    if trace <= 1e-9 * float(z_along @ z_along):
        return max(0.0, trace)
    gram = LinearOperator((size, size), matvec=lambda x: z.T @ (z @ x) - z_along * (z_along @ x), dtype=float)
    start = np.random.default_rng(0).random(size)
    return float(eigsh(gram, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
