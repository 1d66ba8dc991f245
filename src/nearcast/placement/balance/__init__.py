"""Which site each subscriber connects to, so that no site carries much more than the others.

Nguyen et al., "Multistage Adaptive Load Balancing for Big Active Data Publish Subscribe Systems".
"""

from nearcast.placement.balance.bound import lower_bound
from nearcast.placement.balance.groups import grouped, similar_groups
from nearcast.placement.balance.planners import Thresholds, gsh, ldm, nearest, random, round_robin, sdm, staged
from nearcast.placement.balance.problem import NOWHERE, BalancePlan, BalanceProblem, cov, from_pairs, loads, report
from nearcast.placement.balance.refined import MOVE_PRICE, refined, trade_off

__all__ = [
    "MOVE_PRICE",
    "NOWHERE",
    "BalancePlan",
    "BalanceProblem",
    "Thresholds",
    "cov",
    "from_pairs",
    "grouped",
    "gsh",
    "ldm",
    "loads",
    "lower_bound",
    "nearest",
    "random",
    "refined",
    "report",
    "round_robin",
    "sdm",
    "similar_groups",
    "staged",
    "trade_off",
]
