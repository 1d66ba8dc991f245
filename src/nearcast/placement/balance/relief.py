"""Sites above a goal give away just enough subscribers: the fewest moves we know for a given maximum load."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.balance.incremental_load import IncrementalLoad
from nearcast.placement.balance.problem import BalancePlan, BalanceProblem, report

if TYPE_CHECKING:
    from nearcast.placement.arrays import Ints

__all__ = ["relieved"]

_SWAPS_TRIED = 64
# How many may leave a site at once while it is far above the goal.
_BATCH = 2048
_LEAST_BATCH = 8


def relieved(problem: BalanceProblem, current: Ints, goal: float) -> BalancePlan | None:
    """From the current assignment to a maximum load of at most `goal`; None where that fails.

    Sites above the goal give away subscribers, heavy ones first, to sites that stay below it.
    """
    state = IncrementalLoad(problem, current)
    if all(_relieve(state, int(site), goal) for site in np.argsort(-state.load, kind="stable")):
        return report(problem, current, state.assignment())
    return None


def _relieve(state: IncrementalLoad, source: int, goal: float) -> bool:
    """Bring one site down to the goal without lifting another above it."""
    mine = np.flatnonzero(state.site[: state.active] == source)
    while (excess := float(state.load[source]) - goal) > state.tiny:
        if _move_many(state, mine, excess, goal):
            mine = mine[state.site[mine] == source]
            continue
        move = _move_away(state, mine, excess, goal)
        if move is not None:
            position, to = move
            state.move(int(mine[position]), to)
            # Nearly always the first: a view, where deleting would copy all the others.
            mine = mine[1:] if position == 0 else np.delete(mine, position)
        elif not _swap(state, source, goal):
            return False
        else:
            mine = np.flatnonzero(state.site[: state.active] == source)
    return True


def _move_many(state: IncrementalLoad, mine: Ints, excess: float, goal: float) -> int:
    """Move as many at once as certainly must leave, those that single moves would take first; returns their number.

    A site far above the goal has thousands to give away. Half of the excess and half of every room are left
    for single moves.
    """
    destinations = np.argsort(state.load, kind="stable")
    room = goal - state.load[destinations]
    destinations, room = destinations[room > 0], room[room > 0] / 2
    if not len(destinations):
        return 0
    fits = bisect_left(mine, -room[0], key=lambda rank: -state.outgoing[rank])
    ranks = mine[fits : fits + _BATCH]
    # A subscriber's leaving relieves its site of no more than twice what it is sent.
    ranks = ranks[: np.searchsorted(np.cumsum(2 * state.outgoing[ranks]), excess, side="right")]
    if len(ranks) < _LEAST_BATCH:
        return 0
    incoming = state.incoming(ranks, destinations)
    incoming[state.outgoing[ranks] + incoming > room[:, None]] = np.inf
    possible = np.isfinite(incoming).any(axis=0)
    ranks, incoming = ranks[possible], incoming[:, possible]
    to = incoming.argmin(axis=0)
    added = np.zeros_like(incoming)
    added[to, np.arange(len(ranks))] = state.outgoing[ranks] + incoming.min(axis=0)
    # As many from the first as there is room for: together they add no more than each for itself.
    count = int(np.count_nonzero((np.cumsum(added, axis=1) <= room[:, None]).all(axis=0)))
    state.move_many(ranks[:count], destinations[to[:count]])
    return count


def _move_away(state: IncrementalLoad, mine: Ints, excess: float, goal: float) -> tuple[int, int] | None:
    """The subscriber to move, and where: the lightest that is enough alone, else the heaviest that fits."""
    destinations = np.argsort(state.load, kind="stable")
    destinations = destinations[state.load[destinations] < goal]
    if not len(destinations) or not len(mine):
        return None
    room = goal - state.load[destinations]
    # mine[:enough] are sent at least the excess, mine[fits:] no more than the widest room.
    enough = bisect_right(mine, -excess, key=lambda rank: -state.outgoing[rank])
    fits = bisect_left(mine, -room[0], key=lambda rank: -state.outgoing[rank])
    for some in (range(enough - 1, fits - 1, -1), range(max(enough, fits), len(mine))):
        tried = 0
        while tried < len(some):
            positions = np.array(some[tried : 2 * tried + 2])  # the first is nearly always the one
            tried += len(positions)
            incoming = state.incoming(mine[positions], destinations)
            within = state.outgoing[mine[positions]] + incoming <= room[:, None]
            added = np.where(within, incoming, np.inf)
            possible = np.flatnonzero(within.any(axis=0))
            if len(possible):
                return int(positions[possible[0]]), int(destinations[added[:, possible[0]].argmin()])
    return None


def _swap(state: IncrementalLoad, source: int, goal: float) -> bool:
    """Exchange a subscriber with a slightly lighter one elsewhere, where no subscriber fits as it is."""
    mine = np.flatnonzero(state.site[: state.active] == source)
    before = float(state.load[source])
    for other in np.argsort(state.load, kind="stable"):
        room = goal - float(state.load[other])
        if room <= 0 or other == source:
            break
        theirs = np.flatnonzero(state.site[: state.active] == other)
        if not len(theirs):
            continue
        wanted = min(before - goal, room)
        # For each of mine the heaviest of theirs that is lighter by as much as is wanted.
        partner = np.searchsorted(-state.outgoing[theirs], wanted - state.outgoing[mine])
        lighter = np.flatnonzero(partner < len(theirs))
        difference = state.outgoing[mine[lighter]] - state.outgoing[theirs[partner[lighter]]]
        for i in np.argsort(np.abs(difference - wanted), kind="stable")[:_SWAPS_TRIED]:
            give, take = int(mine[lighter[i]]), int(theirs[partner[lighter[i]]])
            state.move(give, int(other))
            state.move(take, source)
            if state.load[other] <= goal and state.load[source] < before - state.tiny:
                return True
            state.move(take, int(other))
            state.move(give, source)
    return False
