"""Beyond the paper: topics come, go and change, and the others stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.planners import check_k, slowest_first
from nearcast.placement.colocation.problem import MAX_LOAD

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Ints
    from nearcast.placement.colocation.problem import ColocationPlan, Feasibility

__all__ = ["adjusted"]

NEW = -1
ASKED_AT_ONCE = 32


def adjusted(possible: Feasibility, k: int, current: Ints, changed: Bools | None = None) -> ColocationPlan:
    """A plan for the topics as they are now, close to the one in force.

    `current`: the worker of each topic so far, -1 for a new one; topics that are gone are simply not among
    the topics any more. `changed`: topics whose rate, processing time or bound is not what it was (None: any
    may be). A worker that is no longer feasible loses changed topics, heaviest first, and others only when
    those are not enough. What has no place goes, slowest first, to the fullest worker that takes it, or to
    a new one.
    """
    check_k(possible, k)
    suspect = np.ones(len(current), dtype=bool) if changed is None else changed
    worker = current.copy()
    waiting = set(np.flatnonzero(worker == NEW).tolist())
    members = {int(b): np.flatnonzero(worker == b).tolist() for b in np.unique(worker[worker != NEW])}
    for number, topics in _infeasible(possible, members, k):
        kept = _kept(possible, topics, suspect, k)
        waiting.update(set(topics) - set(kept))
        members[number] = kept
    load = {number: float(possible.load[topics].sum()) for number, topics in members.items()}
    unused = int(current.max(initial=NEW)) + 1
    for topic in (t for t in slowest_first(possible).tolist() if t in waiting):
        found = _fullest(possible, members, load, topic, k)
        if found is None:
            found, unused = unused, unused + 1
        members.setdefault(found, []).append(topic)
        load[found] = load.get(found, 0.0) + float(possible.load[topic])
    for number, topics in members.items():
        worker[topics] = number
    return possible.plan(worker)


def _infeasible(possible: Feasibility, members: dict[int, list[int]], k: int) -> list[tuple[int, list[int]]]:
    small = [number for number, topics in members.items() if len(topics) <= k]
    feasible = possible.groups([members[number] for number in small])
    good = {number for number, fine in zip(small, feasible, strict=True) if fine}
    return [(number, topics) for number, topics in members.items() if number not in good]


def _kept(possible: Feasibility, topics: list[int], suspect: Bools, k: int) -> list[int]:
    """The topics that stay: the unchanged ones first, then the lightest, as far as they go together."""
    kept: list[int] = []
    for topic in sorted(topics, key=lambda t: (bool(suspect[t]), float(possible.load[t]))):
        if len(kept) < k and possible.groups([[*kept, topic]])[0]:
            kept.append(topic)
    return kept


def _fullest(
    possible: Feasibility, members: dict[int, list[int]], load: dict[int, float], topic: int, k: int
) -> int | None:
    """The worker with the highest load among those that take the topic."""
    room = MAX_LOAD - possible.load[topic]
    places = [number for number, topics in members.items() if len(topics) < k and load[number] <= room]
    places.sort(key=lambda number: -load[number])
    for start in range(0, len(places), ASKED_AT_ONCE):
        asked = places[start : start + ASKED_AT_ONCE]
        feasible = possible.groups([[*members[number], topic] for number in asked])
        if feasible.any():
            return asked[int(np.argmax(feasible))]
    return None
