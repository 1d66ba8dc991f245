"""Eq. 1-8 and Algorithm 1 written out, in plain Python, for comparison."""

from __future__ import annotations

from itertools import product
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from nearcast.placement.balance import BalanceProblem, from_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence


def subscriptions_of(problem: BalanceProblem, subscriber: int) -> set[int]:
    first, last = problem.subscriptions.indptr[subscriber : subscriber + 2]
    return set(problem.subscriptions.indices[first:last].tolist())


def loads(problem: BalanceProblem, assignment: Sequence[int]) -> list[float]:
    result = []
    for site in range(problem.sites):
        load = 0.0
        for k, rate in enumerate(problem.rates.tolist()):
            attached = sum(1 for i, at in enumerate(assignment) if at == site and k in subscriptions_of(problem, i))
            load += (1 if attached else 0) * (1 + attached) * rate  # Eq. 5
        result.append(load)
    return result


def cov(load: Sequence[float]) -> float:
    return pstdev(load) / fmean(load) if fmean(load) > 0 else 0.0


def best_maximum(problem: BalanceProblem) -> float:
    """The optimum, by trying every assignment."""
    everyone = product(range(problem.sites), repeat=problem.subscribers)
    return min(max(loads(problem, assignment)) for assignment in everyone)


def outgoing(problem: BalanceProblem, subscriber: int) -> float:
    return sum(problem.rates[k] for k in subscriptions_of(problem, subscriber))


def heaviest_first(problem: BalanceProblem) -> list[int]:
    return sorted(range(problem.subscribers), key=lambda i: (-outgoing(problem, i), i))


def shuffle(problem: BalanceProblem) -> list[int]:
    """GSH: the load of every site is computed anew after each subscriber."""
    assignment = [-1] * problem.subscribers
    for subscriber in heaviest_first(problem):
        load = loads(problem, assignment)
        assignment[subscriber] = load.index(min(load))
    return assignment


def migrate(problem: BalanceProblem, current: Sequence[int], scheme: str, alpha: float) -> list[int]:
    """Algorithm 1, lines 6-24, with the slips mended: x_ib is cleared, and it ends when no move is valid."""
    assignment = list(current)
    while cov(load := loads(problem, assignment)) > alpha:
        source = load.index(max(load))
        mean = fmean(load)
        for subscriber in heaviest_first(problem):
            if assignment[subscriber] != source or not outgoing(problem, subscriber):
                continue
            if scheme == "ldm":
                to = load.index(min(load))
            else:
                below = [j for j in range(problem.sites) if load[j] < mean]
                held = {
                    j: {k for i, at in enumerate(assignment) if at == j for k in subscriptions_of(problem, i)}
                    for j in below
                }
                mine = subscriptions_of(problem, subscriber)
                similarity = {j: sum(problem.rates[k] for k in mine & held[j]) for j in below}
                to = min(below, key=lambda j: (-similarity[j], load[j], j))
            moved = [to if i == subscriber else at for i, at in enumerate(assignment)]
            after = loads(problem, moved)
            # Valid, and one step nearer: the higher of the two falls, or stays while the lower falls.
            if after[to] <= load[source] and sorted((after[source], after[to]))[::-1] < [
                load[source],
                load[to],
            ]:
                assignment = moved
                break
        else:
            return assignment
    return assignment


@st.composite
def problems(draw: st.DrawFn, *, largest: int = 10) -> BalanceProblem:
    """Small instances with whole-number rates, some 0, and subscribers who asked for nothing."""
    subscribers, subscriptions = draw(st.integers(1, largest)), draw(st.integers(1, 6))
    pairs = [(i, k) for i in range(subscribers) for k in sorted(draw(st.sets(st.integers(0, subscriptions - 1))))]
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    rates = np.array([draw(st.integers(0, 9)) for _ in range(subscriptions)], dtype=float)
    sites = draw(st.integers(1, 4))
    return from_pairs(columns[:, 0], columns[:, 1], rates, subscribers=subscribers, sites=sites)


def anywhere(problem: BalanceProblem, seed: int) -> np.ndarray:
    """A current assignment that is not level: sites are taken with falling probability."""
    share = 0.5 ** np.arange(problem.sites)
    return np.random.default_rng(seed).choice(problem.sites, size=problem.subscribers, p=share / share.sum())
