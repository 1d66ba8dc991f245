"""Migration recorded move by move: every prefix is a plan, so one run answers all thresholds and all caps on moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.balance.planners import migration_moves
from nearcast.placement.balance.problem import loads

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.balance.planners import Scheme
    from nearcast.placement.balance.problem import BalanceProblem

__all__ = ["MigrationPath", "migration_path"]


@dataclass(frozen=True)
class MigrationPath:
    """Which subscriber went where, in order; and after each prefix of that how many are away from their first site
    (a subscriber may move twice) and what the maximum load is. Row 0 is the start."""

    start: Ints
    subscriber: Ints
    to: Ints
    away: Ints
    maximum: Floats

    def assignment(self, length: int) -> Ints:
        """The assignment after so many moves."""
        found = self.start.copy()
        found[self.subscriber[:length]] = self.to[:length]  # of several moves of one subscriber the last counts
        return found

    def best_lengths(self) -> list[int]:
        """The prefixes that no other one beats in moves and maximum, by rising moves."""
        order = np.lexsort((self.maximum, self.away))
        lowest = np.minimum.accumulate(self.maximum[order])
        first = np.r_[True, lowest[1:] < lowest[:-1]]
        return [int(length) for length in order[first]]


def migration_path(problem: BalanceProblem, current: Ints, scheme: Scheme) -> MigrationPath:
    """LDM or SDM until no valid move is left."""
    subscriber, to, maximum = [], [], [float(loads(problem, current).max())]
    away, site = [0], current.copy()
    for who, there, highest in migration_moves(problem, current, scheme):
        away.append(away[-1] + int(there != current[who]) - int(site[who] != current[who]))
        site[who] = there
        subscriber.append(who)
        to.append(there)
        maximum.append(highest)
    return MigrationPath(
        current,
        np.array(subscriber, dtype=np.int64),
        np.array(to, dtype=np.int64),
        np.array(away, dtype=np.int64),
        np.array(maximum),
    )
