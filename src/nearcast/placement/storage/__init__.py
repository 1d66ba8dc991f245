"""Which sites get a store and which topics each store keeps, so that requests for the past stay short.

Sourlas et al., "Storage planning and replica assignment in content-centric publish/subscribe networks".
"""

from nearcast.placement.storage.exact import exact
from nearcast.placement.storage.greedy import greedy, modified_greedy
from nearcast.placement.storage.network import Network, from_edges, network
from nearcast.placement.storage.planners import (
    assign_sequential,
    assign_wrr,
    choose_stores,
    greedy_unconstrained,
    plan_stores,
    random,
    reassign,
    sequential,
    wrr,
)
from nearcast.placement.storage.problem import (
    Failure,
    StorageInfeasibleError,
    StoragePlan,
    StorageProblem,
    evaluate,
    fail,
    random_failures,
)
from nearcast.placement.storage.refined import refined
from nearcast.placement.storage.replication import (
    minimum_degrees,
    relative_weights,
    store_count,
    stores_needed,
    topic_weights,
    weighted_degrees,
    wrr_rounds,
)

__all__ = [
    "Failure",
    "Network",
    "StorageInfeasibleError",
    "StoragePlan",
    "StorageProblem",
    "assign_sequential",
    "assign_wrr",
    "choose_stores",
    "evaluate",
    "exact",
    "fail",
    "from_edges",
    "greedy",
    "greedy_unconstrained",
    "minimum_degrees",
    "modified_greedy",
    "network",
    "plan_stores",
    "random",
    "random_failures",
    "reassign",
    "refined",
    "relative_weights",
    "sequential",
    "store_count",
    "stores_needed",
    "topic_weights",
    "weighted_degrees",
    "wrr",
    "wrr_rounds",
]
