"""Beyond the paper: plans that trade moves against the maximum load, and the one that is worth its moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from nearcast.placement.balance.bound import lower_bound
from nearcast.placement.balance.groups import group_shuffle, grouped
from nearcast.placement.balance.migration_path import migration_path
from nearcast.placement.balance.planners import gsh, ldm
from nearcast.placement.balance.problem import BalancePlan, BalanceProblem, loads, report
from nearcast.placement.balance.relief import relieved
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.placement.arrays import Ints
    from nearcast.placement.balance.planners import Scheme
    from nearcast.placement.progress import Advance

__all__ = ["MOVE_PRICE", "refined", "trade_off"]

MOVE_PRICE = 0.1
# A shuffle this close to the lower bound leaves nothing worth searching for.
_NEAR_BOUND = 1.01
_TOLERANCE = 0.0001
# Goals between the lowest maximum that is known to be reachable (0) and the present one (1).
_GOALS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
_BISECTIONS = 8
# The paper's migrations are made one move at a time; beyond this they would take longer than all the rest.
_MOST_MIGRATING = 200_000
_FEW = 100


def refined(
    problem: BalanceProblem,
    current: Ints,
    *,
    moves_at_most: int | None = None,
    move_price: float = MOVE_PRICE,
    seed: int = 0,
    advance: Advance = no_progress,
) -> BalancePlan:
    """The plan with the lowest maximum load that is worth its moves, and none with more moves than allowed.

    `move_price` is the one figure that trades moves against balance: moving everybody must lower the maximum load by
    this share of the lowest one known, moving a tenth of them by a tenth of it. At 0 the lowest maximum is taken, with
    the fewest moves for it. With as many moves no plan of GSH, and up to 200,000 subscribers none of LDM and SDM, has
    a lower maximum.
    """
    plans = trade_off(problem, current, moves_at_most=moves_at_most, seed=seed, advance=advance)
    lowest = plans[-1].max_load or 1.0
    subscribers = max(problem.subscribers, 1)
    return min(plans, key=lambda plan: (plan.max_load / lowest + move_price * plan.moves / subscribers, plan.moves))


def trade_off(
    problem: BalanceProblem,
    current: Ints,
    *,
    moves_at_most: int | None = None,
    seed: int = 0,
    advance: Advance = no_progress,
) -> tuple[BalancePlan, ...]:
    """Plans of which none is beaten by another in both moves and maximum load, by rising moves; the first moves nobody.

    They come from LDM and SDM (the best prefixes of their moves), from shuffles of subscribers and of similar groups
    with their sites renamed so that most subscribers stay, and from relief: sites above a goal give away just enough.
    """
    stay = report(problem, current, current)
    most = problem.subscribers if moves_at_most is None else moves_at_most
    if problem.sites == 1 or not problem.outgoing.any() or most == 0:
        return (stay,)
    found = [stay, *_shuffles(problem, current, seed)]
    advance(0.3)
    # Few subscribers have few different plans, and for very many each goal takes seconds.
    goals = np.array(_GOALS if _FEW < problem.subscribers <= _MOST_MIGRATING else _GOALS[::3])
    if problem.subscribers <= _MOST_MIGRATING:
        found += [*_migrations(problem, current, "ldm", most), *_migrations(problem, current, "sdm", most)]
    advance(0.5)
    lowest = min(plan.max_load for plan in found) * (1 + _TOLERANCE)
    span = stay.max_load - lowest
    if span > 0:
        found += _reliefs(problem, current, (lowest + span * goals).tolist(), most)
    advance(1.0)
    return _undominated(plan for plan in found if plan.moves <= most)


def _shuffles(problem: BalanceProblem, current: Ints, seed: int) -> list[BalancePlan]:
    found = [_renamed(problem, current, gsh(problem, current).assignment)]
    if found[0].max_load > _NEAR_BOUND * lower_bound(problem):
        by_group = group_shuffle(problem, seed)
        # Worth levelling only where keeping groups together has saved load.
        if loads(problem, by_group).mean() < found[0].max_load:
            found.append(_renamed(problem, current, ldm(problem, by_group).assignment))
            found.append(grouped(problem, current, seed=seed))
    return found


def _renamed(problem: BalanceProblem, current: Ints, assignment: Ints) -> BalancePlan:
    """Brokers are alike: give each set of subscribers to the site that already has most of it."""
    stay = np.zeros((problem.sites, problem.sites))
    np.add.at(stay, (assignment, current), 1)
    name = linear_sum_assignment(stay, maximize=True)[1]
    return report(problem, current, name[assignment])


def _migrations(problem: BalanceProblem, current: Ints, scheme: Scheme, most: int) -> list[BalancePlan]:
    """The best prefix within the allowed moves, and some before it: all would be as many plans as moves."""
    path = migration_path(problem, current, scheme)
    lengths = [length for length in path.best_lengths() if path.away[length] <= most]
    chosen = sorted({round(i) for i in np.linspace(0, len(lengths) - 1, 2 * len(_GOALS))})
    return [report(problem, current, path.assignment(lengths[i])) for i in chosen]


def _reliefs(problem: BalanceProblem, current: Ints, goals: list[float], most: int) -> list[BalancePlan]:
    """Relief down to each of the rising goals; where the moves run out between two of them, also to goals between."""
    plans = [relieved(problem, current, goal) for goal in goals]
    found = [plan for plan in plans if plan is not None and plan.moves <= most]
    first = next((i for i, plan in enumerate(plans) if plan is not None and plan.moves <= most), 0)
    if first == 0:
        return found
    low, high = goals[first - 1], goals[first]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        plan = relieved(problem, current, middle)
        if plan is not None and plan.moves <= most:
            found.append(plan)
            high = middle
        else:
            low = middle
    return found


def _undominated(plans: Iterable[BalancePlan]) -> tuple[BalancePlan, ...]:
    kept: list[BalancePlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.moves, plan.max_load)):
        if not kept or plan.max_load < kept[-1].max_load:
            kept.append(plan)
    return tuple(kept)
