"""A local search from the plan of another planner: single moves, swaps of two clients, and annealing in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.homes.annealing import anneal
from nearcast.placement.homes.delay import HomesPlan, evaluate
from nearcast.placement.homes.incremental_delay import IncrementalDelay
from nearcast.placement.homes.planners import RelocParameters, nearest, one_topic_one_site, reloc
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.homes.problem import HomesProblem
    from nearcast.placement.progress import Advance

__all__ = ["RefineParameters", "refine", "refined", "refined_with_few_moves"]


@dataclass(frozen=True)
class RefineParameters:
    """A search ends after `rounds`, or once neither a move nor one of `swap_trials` swaps helps.

    Then it is perturbed: a few clients move to random sites and the search continues from there. There are at most
    `perturbations`, fewer where perturbations × clients × sites would exceed `perturbation_work`.

    `refined` anneals in `sweeps` over all clients, fewer where sweeps × clients × sites would exceed `annealing_work`,
    and for at most `seconds`: a limit that is reached makes the plan depend on the speed of the machine. Where that
    work allows, it does so `anneals` times: one run ends in any of several optima when sites are nearly full. While the
    best plan overflows, it does so up to `overflow_anneals` times more, for as long again, with a cloud that is farther
    than it is.
    """

    rounds: int = 50
    swap_trials: int = 400
    perturbations: int = 40
    perturbation_work: int = 20_000
    sweeps: int = 600
    anneals: int = 4
    overflow_anneals: int = 3
    annealing_work: int = 3_000_000
    seconds: float = 60.0
    seed: int = 0


DEFAULTS = RefineParameters()


# A change must be worth more than this share of the total, or rounding could be mistaken for progress.
WORTHWHILE = 1e-10
# A cloud so many times as far: plans without overflow cost the same, and those on the way to them are left behind.
FAR_CLOUD = 10.0
# Clients that a perturbation moves to random sites.
PERTURBED_CLIENTS = 3
# For a swap between two sites, this many clients of each are considered: those that gain most.
SWAP_CLIENTS = 8
# Clients whose moves are computed together; bounds the memory for them.
BLOCK_CLIENTS = 4096


def refined(
    problem: HomesProblem,
    parameters: RefineParameters = DEFAULTS,
    advance: Advance = no_progress,
    current: Ints | None = None,
) -> HomesPlan:
    """`refine` from nearest, one topic one site and RELOC with its own K, then annealing from the best of them.

    If large, only `refine` from the best. `current`: homes to begin from as well; the plan is never worse than these.
    """
    plans = [nearest(problem), one_topic_one_site(problem)]
    plans.append(reloc(problem, RelocParameters(seed=parameters.seed)))
    if current is not None:
        plans.append(evaluate(problem, current))
    best = min(plans, key=lambda plan: plan.delay_ms)
    if _perturbations(problem, parameters):  # small enough to search from each of them
        plans = [refine(problem, plan.home, replace(parameters, perturbations=0)) for plan in plans]
        best = min(plans, key=lambda plan: plan.delay_ms)
    sweeps = min(parameters.sweeps, parameters.annealing_work // max(problem.clients * problem.sites, 1))
    if sweeps:
        rng = np.random.default_rng(parameters.seed)
        work = sweeps * max(problem.clients * problem.sites, 1)
        anneals = max(1, min(parameters.anneals, parameters.annealing_work // work))
        seconds, descent = parameters.seconds / anneals, replace(parameters, perturbations=0)
        for _ in range(anneals):
            home = anneal(problem, best.home, sweeps, rng, seconds, advance)
            best = min(best, refine(problem, home, descent), key=lambda plan: plan.delay_ms)
        far = replace(problem, cloud_ms=FAR_CLOUD * problem.cloud_ms)
        for _ in range(parameters.overflow_anneals if _may_fit(problem) else 0):
            if not best.delegated_share:
                break
            home = anneal(far, best.home, sweeps, rng, parameters.seconds / parameters.overflow_anneals, advance)
            home = refine(far, home, descent).home
            best = min(best, refine(problem, home, descent), key=lambda plan: plan.delay_ms)
    return refine(problem, best.home, parameters, no_progress if sweeps else advance)


def _may_fit(problem: HomesProblem) -> bool:
    """Whether all sites together have the storage for every spool once, and the compute, which homes do not change."""
    publishers = np.diff(problem.publications.indptr)
    stored = problem.spool_size @ (publishers > 0) <= problem.storage.sum()
    return bool(stored and problem.spool_size @ publishers <= problem.compute.sum())


def refined_with_few_moves(
    problem: HomesProblem, current: Ints, moves_at_most: int, parameters: RefineParameters = DEFAULTS
) -> HomesPlan:
    """Better homes with at most so many clients moved from where they are: the moves that help most, first.

    A quarter of the moves that are left is made at a time; then all changes are computed again.
    """
    homes = IncrementalDelay(problem, current)
    for _ in range(max(parameters.rounds, moves_at_most)):
        homes.recompute()
        moved = homes.home != current
        left = moves_at_most - int(moved.sum())
        change, _ = _changes(homes)
        if left <= 0:
            change[~moved] = 0.0  # who has moved may still move on, or back
        if not _take_moves(homes, change, max(left // 4, 1)):
            break
    return min(evaluate(problem, current), evaluate(problem, homes.home), key=lambda plan: plan.delay_ms)


def refine(
    problem: HomesProblem, start: Ints, parameters: RefineParameters = DEFAULTS, advance: Advance = no_progress
) -> HomesPlan:
    """Improve homes until no move and no likely swap lowers the total delay. Never worse than `start`."""
    rng = np.random.default_rng(parameters.seed)
    homes = IncrementalDelay(problem, start)
    _search(homes, parameters, advance)
    best = homes.home.copy()
    perturbations = _perturbations(problem, parameters)
    for number in range(perturbations):
        before = homes.total_ms()
        perturbed = rng.choice(problem.clients, size=min(PERTURBED_CLIENTS, problem.clients), replace=False)
        for client in perturbed.tolist():
            homes.move(client, int(rng.integers(problem.sites)))
        _search(homes, parameters, advance=no_progress)
        if homes.total_ms() < before:
            best = homes.home.copy()
        else:
            homes = IncrementalDelay(problem, best)
        advance((number + 1) / perturbations)
    return min(evaluate(problem, start), evaluate(problem, best), key=lambda plan: plan.delay_ms)


def _perturbations(problem: HomesProblem, parameters: RefineParameters) -> int:
    return min(parameters.perturbations, parameters.perturbation_work // max(problem.clients * problem.sites, 1))


def _search(homes: IncrementalDelay, parameters: RefineParameters, advance: Advance) -> None:
    for number in range(parameters.rounds):
        advance(number / parameters.rounds)
        homes.recompute()
        change, relaxed = _changes(homes)
        if not _take_moves(homes, change) and not _take_swaps(homes, relaxed, parameters):
            break


def _changes(homes: IncrementalDelay) -> tuple[Floats, Floats]:
    blocks = [
        homes.move_changes(np.arange(first, min(first + BLOCK_CLIENTS, homes.problem.clients)))
        for first in range(0, max(homes.problem.clients, 1), BLOCK_CLIENTS)
    ]
    return np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])


def _take_moves(homes: IncrementalDelay, change: Floats, most: int | None = None) -> int:
    """Each client's best move, best first; one that no longer helps after those before it is taken back.

    most: how many at most.
    """
    best = change.argmin(axis=1)
    gain = change[np.arange(len(best)), best]
    total, taken = homes.total_ms(), 0
    least = WORTHWHILE * total
    order = np.argsort(gain, kind="stable")
    for client in order[gain[order] < -least].tolist():
        if taken == most:
            break
        old = int(homes.home[client])
        homes.move(client, int(best[client]))
        after = homes.total_ms()
        if after < total - least:
            total, taken = after, taken + 1
        else:
            homes.move(client, old)
    return taken


def _take_swaps(homes: IncrementalDelay, relaxed: Floats, parameters: RefineParameters) -> int:
    """Swaps, most promising first: both would gain if each found the room that the other leaves."""
    total, taken = homes.total_ms(), 0
    least = WORTHWHILE * total
    for one, other in _swap_candidates(homes.home, relaxed, parameters):
        here, there = int(homes.home[one]), int(homes.home[other])
        if here == there:
            continue
        homes.move(one, there)
        homes.move(other, here)
        after = homes.total_ms()
        if after < total - least:
            total, taken = after, taken + 1
        else:
            homes.move(other, there)
            homes.move(one, here)
    return taken


def _swap_candidates(home: Ints, relaxed: Floats, parameters: RefineParameters) -> list[tuple[int, int]]:
    """Pairs of clients at different sites, by the sum of their relaxed changes, a bound in their favour."""
    sites = relaxed.shape[1]
    at_site = [np.flatnonzero(home == site) for site in range(sites)]
    # gaining[a][b]: the clients at a that gain most at b.
    gaining = [
        [clients[np.argsort(relaxed[clients, b], kind="stable")[:SWAP_CLIENTS]] for b in range(sites)]
        for clients in at_site
    ]
    ones, others = [], []
    for a in range(sites):
        for b in range(a + 1, sites):
            one, other = np.meshgrid(gaining[a][b], gaining[b][a], indexing="ij")
            ones.append(one.ravel())
            others.append(other.ravel())
    if not ones:
        return []
    one, other = np.concatenate(ones), np.concatenate(others)
    estimate = relaxed[one, home[other]] + relaxed[other, home[one]]
    order = np.argsort(estimate, kind="stable")
    order = order[estimate[order] < 0][: parameters.swap_trials]
    return list(zip(one[order].tolist(), other[order].tolist(), strict=True))
