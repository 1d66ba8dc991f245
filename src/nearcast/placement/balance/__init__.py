"""Which broker each subscriber connects to, so that no broker carries much more than the others.

Nguyen et al., "Multistage Adaptive Load Balancing for Big Active Data Publish Subscribe Systems".
"""

from nearcast.placement.balance import initial
from nearcast.placement.balance.bound import lower_bound
from nearcast.placement.balance.groups import group_shuffle, grouped, similar_groups
from nearcast.placement.balance.migration import ldm, sdm
from nearcast.placement.balance.model import (
    Balance,
    BalanceProblem,
    cov,
    from_pairs,
    loads,
    report,
)
from nearcast.placement.balance.refined import refined
from nearcast.placement.balance.shuffle import gsh
from nearcast.placement.balance.staged import Thresholds, staged

__all__ = [
    "Balance",
    "BalanceProblem",
    "Thresholds",
    "cov",
    "from_pairs",
    "group_shuffle",
    "grouped",
    "gsh",
    "initial",
    "ldm",
    "loads",
    "lower_bound",
    "refined",
    "report",
    "sdm",
    "similar_groups",
    "staged",
]
