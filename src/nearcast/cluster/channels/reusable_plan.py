"""Query plans that are made once and evaluated for each micro-batch.

Spark plans every query again and broadcasts a small table to its tasks: for a micro-batch of some hundred records that
takes longer than the join. A frame that is evaluated again is not planned again. So the plan of a channel is made once,
over a `PlanInput` whose rows are replaced for each batch: they are the content of the partitions of an RDD and travel
with the tasks.

An exchange keeps the rows of its first evaluation; `is_reusable` tells whether a plan has none above its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["PlanInput", "is_reusable"]

_AS_RDD = "spark.sql.execution.arrow.localRelationThreshold"
_NAME = "nearcast_plan_input"
# Fewer rows go into one partition: more partitions would only be more tasks.
_SPREAD = 2_000
# Parts of plans that keep the rows of their first evaluation.
_CACHING = ("Exchange", "Subquery")
# A longer text of a plan may have been cut off (`spark.sql.maxPlanStringLength`).
_WHOLE_TEXT = 90_000


class PlanInput:
    """Frames that give the rows of the last `put` whenever they are evaluated.

    spread: in a partition for each core. single: in one partition, and Spark knows it, so that grouping and joining
    need no exchange.
    """

    def __init__(self, spark: SparkSession, schema: StructType, rows: pa.Table) -> None:
        jvm: Any = spark._jvm
        # Each name that is looked up in Java is a call of its own, so they are looked up once.
        self._new_list, self._to_seq = jvm.java.util.ArrayList, jvm.PythonUtils.toSeq
        parts = spark.sparkContext.defaultParallelism
        before = str(spark.conf.get(_AS_RDD))
        spark.conf.set(_AS_RDD, "0")  # the number of bytes from which a table becomes an RDD
        try:
            self.spread = spark.createDataFrame(pa.concat_tables([rows, *[rows.slice(0, 1)] * (parts - 1)]), schema)
        finally:
            spark.conf.set(_AS_RDD, before)
        self.single = self.spread.coalesce(1)
        content = self.spread._jdf.queryExecution().logical().rdd().setName(_NAME)
        self._set = [getattr(part, "values_$eq") for part in content.partitions()]
        self._used = len(self._set)
        self.put(rows)

    def put(self, table: pa.Table) -> None:
        """Replace the rows; columns and types stay the same."""
        used = len(self._set) if table.num_rows >= _SPREAD else 1
        for number in range(max(used, self._used)):
            first, last = (table.num_rows * min(n, used) // used for n in (number, number + 1))
            batches = self._new_list()
            for batch in table.slice(first, last - first).to_batches():
                batches.add(batch.serialize().to_pybytes())
            self._set[number](self._to_seq(batches))
        self._used = used


def is_reusable(frame: DataFrame) -> bool:
    """Whether each evaluation of the frame sees the current rows of its input."""
    return not _caches_input(frame._jdf.queryExecution().executedPlan())


def _caches_input(plan: Any) -> bool:
    """Each question is a call of Java, so the text of a plan answers what it can: most parts of plans need no walk."""
    text = str(plan.toString())
    whole = len(text) < _WHOLE_TEXT
    if whole and (_NAME not in text or not any(kind in text for kind in _CACHING)):
        return False
    if any(kind in plan.nodeName() for kind in _CACHING) and (_NAME in text or not whole):
        return True
    below = [plan.children(), plan.subqueries()]
    return any(_caches_input(some.apply(n)) for some in below for n in range(some.size()))
