"""Which site hosts a topic, so that latency bounds hold and no site is overloaded (ePulsar).

`problem.py` shrinks a topic's clients to a constant size, `planners.py` is Algorithm 1 and its baselines, `refined.py`
improves its plan (with `search.py` and `relaxation.py`), `exact.py` is the optimum for small instances.
"""

from nearcast.placement.partitioning.exact import exact
from nearcast.placement.partitioning.planners import Partition, all_pairs, by_latencies, centroid, hashed
from nearcast.placement.partitioning.problem import (
    PartitionClients,
    PartitionSites,
    PartitionTopics,
    aggregate,
    late_pairs,
    pair_counts,
    worst_latencies,
)
from nearcast.placement.partitioning.refined import refined

__all__ = [
    "Partition",
    "PartitionClients",
    "PartitionSites",
    "PartitionTopics",
    "aggregate",
    "all_pairs",
    "by_latencies",
    "centroid",
    "exact",
    "hashed",
    "late_pairs",
    "pair_counts",
    "refined",
    "worst_latencies",
]
