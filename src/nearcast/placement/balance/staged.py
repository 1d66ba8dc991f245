"""Algorithm 1: shuffle when the imbalance is extreme, then migrate while it is more than slight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nearcast.placement.balance.migration import ldm, sdm
from nearcast.placement.balance.model import Balance, BalanceProblem, cov, loads, report
from nearcast.placement.balance.shuffle import gsh

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Thresholds", "staged"]


@dataclass(frozen=True)
class Thresholds:
    """Migrate while cov > α and μ > β; shuffle first when cov > γ and μ > θ. Loads in the rates' unit."""

    alpha: float = 0.05
    beta: float = 0.0
    gamma: float = 0.5
    theta: float = 0.0


DEFAULT = Thresholds()


def staged(
    problem: BalanceProblem,
    current: NDArray[np.int64],
    thresholds: Thresholds = DEFAULT,
    scheme: Literal["ldm", "sdm"] = "ldm",
) -> Balance:
    """Both later stages in one plan; a subscriber appears in it once, with its last broker."""
    assignment, load = current, loads(problem, current)
    if cov(load) > thresholds.gamma and load.mean() > thresholds.theta:
        assignment = gsh(problem, current).assignment
    migrate = ldm if scheme == "ldm" else sdm
    migrated = migrate(problem, assignment, alpha=thresholds.alpha, beta=thresholds.beta)
    return report(problem, current, migrated.assignment)
