"""Query plans that are made once and evaluated for each micro-batch.

Spark plans every query again and broadcasts a small table to its tasks: for a micro-batch of some hundred records that
takes longer than the join. A frame that is evaluated again is not planned again. So the plan of a channel is made once,
over a `PlanInput` whose rows are replaced for each batch: they are the content of the partition of an RDD and travel
with the task. The records of a long batch are in files (`file_input`).

An exchange keeps the rows of its first evaluation; `is_reusable` tells whether a plan has none above its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["INPUT_NAME", "PlanInput", "is_reusable"]

_AS_RDD = "spark.sql.execution.arrow.localRelationThreshold"
INPUT_NAME = "nearcast_plan_input"
"""Of RDDs whose rows are replaced."""
# Parts of plans that keep the rows of their first evaluation.
_CACHING = ("Exchange", "Subquery")
# A longer text of a plan may have been cut off (`spark.sql.maxPlanStringLength`).
_WHOLE_TEXT = 90_000


class PlanInput:
    """A frame that gives the rows of the last `put` whenever it is evaluated.

    single: in one partition, and Spark knows it, so that grouping and joining need no exchange.
    """

    def __init__(self, spark: SparkSession, schema: StructType, rows: pa.Table) -> None:
        jvm: Any = spark._jvm
        # Each name that is looked up in Java is a call of its own, so they are looked up once.
        self._new_list, self._to_seq = jvm.java.util.ArrayList, jvm.PythonUtils.toSeq
        before = str(spark.conf.get(_AS_RDD))
        spark.conf.set(_AS_RDD, "0")  # the number of bytes from which a table becomes an RDD
        try:
            frame = spark.createDataFrame(rows.combine_chunks(), schema)  # of one Arrow batch
        finally:
            spark.conf.set(_AS_RDD, before)
        self.single = frame.coalesce(1)
        (content,) = frame._jdf.queryExecution().logical().rdd().setName(INPUT_NAME).partitions()
        self._set = getattr(content, "values_$eq")

    def holds(self, table: pa.Table) -> bool:
        """Whether there is a place for the rows: always."""
        return True

    def put(self, table: pa.Table) -> None:
        """Replace the rows; columns and types stay the same."""
        batches = self._new_list()
        for batch in table.to_batches():
            batches.add(batch.serialize().to_pybytes())
        self._set(self._to_seq(batches))


def is_reusable(frame: DataFrame) -> bool:
    """Whether each evaluation of the frame sees the current rows of its input."""
    return not _caches_input(frame._jdf.queryExecution().executedPlan())


def _caches_input(plan: Any) -> bool:
    """Each question is a call of Java, so the text of a plan answers what it can: most parts of plans need no walk."""
    text = str(plan.toString())
    whole = len(text) < _WHOLE_TEXT
    if whole and (INPUT_NAME not in text or not any(kind in text for kind in _CACHING)):
        return False
    if any(kind in plan.nodeName() for kind in _CACHING) and (INPUT_NAME in text or not whole):
        return True
    below = [plan.children(), plan.subqueries()]
    return any(_caches_input(some.apply(n)) for some in below for n in range(some.size()))
