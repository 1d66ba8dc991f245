"""Which topics share a worker: a learned 90th percentile latency, and planners that use few workers and keep
every topic within its bound (Khare et al., Scalable Edge Computing for Low Latency Data Dissemination).

The paper's "broker" is one worker process here. `training.py` learns the model of `latency_model.py` from samples
that `worker_simulation.py` or `nearcast profile worker` makes.
"""

from nearcast.placement.colocation.exact import exact, lower_bound
from nearcast.placement.colocation.incremental import adjusted
from nearcast.placement.colocation.latency_model import LatencyModel
from nearcast.placement.colocation.plan_check import PlanCheck, check_plan, with_checked_margin
from nearcast.placement.colocation.planners import ffd, hybrid, lfs, matching
from nearcast.placement.colocation.problem import (
    ColocationPlan,
    ColocationTopics,
    Feasibility,
    InfeasibleTopicError,
    feasibility,
    max_rate,
)
from nearcast.placement.colocation.refined import refined

__all__ = [
    "ColocationPlan",
    "ColocationTopics",
    "Feasibility",
    "InfeasibleTopicError",
    "LatencyModel",
    "PlanCheck",
    "adjusted",
    "check_plan",
    "exact",
    "feasibility",
    "ffd",
    "hybrid",
    "lfs",
    "lower_bound",
    "matching",
    "max_rate",
    "refined",
    "with_checked_margin",
]
