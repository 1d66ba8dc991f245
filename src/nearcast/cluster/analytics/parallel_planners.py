"""The steps of the planners that grow fastest, run in parallel by Spark's tasks.

`stores` gives exactly the plan that it gives in memory. `reloc` does, too, for the same factors; Spark's factorisation
is the exact one, of which the one in memory is a seeded approximation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.placement import homes, storage
from nearcast.placement.homes.relations import Relations, block_relations, relation_blocks
from nearcast.placement.storage.greedy import modified_greedy

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

__all__ = ["factors", "reloc", "stores"]


def stores(spark: SparkSession, problem: storage.StorageProblem, assign: str) -> storage.StoragePlan:
    """`sequential` or `wrr`, with each topic's greedy choice (the part that grows with topics × nodes²) in parallel."""
    tasks = spark.sparkContext.defaultParallelism * 2
    blocks = [block for block in np.array_split(np.arange(len(problem.demand)), tasks) if len(block)]
    shared = spark.sparkContext.broadcast((problem.network, problem.publication))
    parts = [(n, problem.demand[block], problem.replicas[block]) for n, block in enumerate(blocks)]

    def choose(part: tuple[int, NDArray[np.float64], NDArray[np.int64]]) -> tuple[int, NDArray[np.float64]]:
        number, demand, replicas = part
        network, publication = shared.value
        return number, modified_greedy(network, demand, replicas, publication)

    chosen = dict(spark.sparkContext.parallelize(parts, len(parts)).map(choose).collect())
    votes = np.concatenate([chosen[n] for n in range(len(parts))])
    planning = storage.choose_stores(problem, votes, storage.topic_weights(problem.demand))
    return (storage.assign_wrr if assign == "wrr" else storage.assign_sequential)(problem, planning)


def reloc(spark: SparkSession, instance: homes.HomesProblem, parameters: homes.RelocParameters) -> homes.HomesPlan:
    """RELOC, with the relation matrix (which grows with the pairs that share topics) made and factorised by Spark."""
    return homes.reloc(instance, parameters, relations=_relations(spark, instance.members, parameters))


def _relations(spark: SparkSession, members: Any, parameters: homes.RelocParameters) -> Relations:
    members = members[np.diff(members.indptr) <= parameters.relation_topic_limit]
    if not members.nnz:
        return Relations(np.zeros(members.shape[1] + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    shared = spark.sparkContext.broadcast((members, factors(spark, members, parameters.rank)))
    count = parameters.relations

    def related(rows: slice) -> tuple[int, Any, Any]:
        sparse, strength = shared.value
        return rows.start, *block_relations(sparse, strength, rows, count)

    blocks = list(relation_blocks(members))
    found = sorted(spark.sparkContext.parallelize(blocks, len(blocks)).map(related).collect(), key=lambda part: part[0])
    kept = np.concatenate([part[2] for part in found])
    clients = np.concatenate([part[1] for part in found]).astype(np.int64)
    return Relations(np.concatenate([[0], np.cumsum(kept)]), clients)


def factors(spark: SparkSession, members: Any, rank: int) -> NDArray[np.float64]:
    """Line 19 by Spark's machine learning library: clients × rank, such that factors @ factors.T is Z at that rank.

    As in memory, Z = Bᵀ B is not made: the truncated singular value decomposition of the memberships B = U S Vᵀ gives
    V S. Spark multiplies by Bᵀ B in tasks that hold some topics each.
    """
    from pyspark.mllib.linalg import Vectors
    from pyspark.mllib.linalg.distributed import RowMatrix

    topics, clients = members.shape
    rows = [
        Vectors.sparse(clients, members.indices[start:end], members.data[start:end].astype(float))
        for start, end in zip(members.indptr[:-1], members.indptr[1:], strict=True)
    ]
    matrix = RowMatrix(spark.sparkContext.parallelize(rows), topics, clients)
    found = matrix.computeSVD(min(rank, topics, clients), computeU=False)
    return np.ascontiguousarray(found.V.toArray() * found.s.toArray())
