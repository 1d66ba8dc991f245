"""Records for a plan that was made before.

Spark plans every query anew and sends a small table to its tasks as a broadcast of its own: for a micro-batch of some
hundred records that takes longer than the join. A frame that is evaluated again is not planned again. So the plan of a
channel is made once, over `Carried` records that are replaced for each batch: they are the content of the partitions of
an RDD, which go with their tasks wherever those run.

An exchange keeps what it was given first. `stays_fresh` says whether a plan has none above the carried records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Carried", "stays_fresh"]

_AS_RDD = "spark.sql.execution.arrow.localRelationThreshold"
_NAME = "nearcast_carried"
# Fewer rows go into one partition: the others would only be tasks more.
_SPREAD = 2_000


class Carried:
    """Frames that, evaluated again, give the rows of the last `put`.

    spread: in a partition for each core. single: in one partition, and it says so; then grouping it and joining it need
    no exchange.
    """

    def __init__(self, spark: SparkSession, schema: StructType, some: pa.Table) -> None:
        jvm: Any = spark._jvm
        # Each name that is looked up in Java is a call of its own, so they are looked up once.
        self._new_list, self._to_seq = jvm.java.util.ArrayList, jvm.PythonUtils.toSeq
        parts = spark.sparkContext.defaultParallelism
        before = str(spark.conf.get(_AS_RDD))
        spark.conf.set(_AS_RDD, "0")  # from how many bytes on a table becomes an RDD
        try:
            self.spread = spark.createDataFrame(pa.concat_tables([some, *[some.slice(0, 1)] * (parts - 1)]), schema)
        finally:
            spark.conf.set(_AS_RDD, before)
        self.single = self.spread.coalesce(1)
        content = self.spread._jdf.queryExecution().logical().rdd().setName(_NAME)
        self._set = [getattr(part, "values_$eq") for part in content.partitions()]
        self._used = len(self._set)
        self.put(some)

    def put(self, table: pa.Table) -> None:
        """Replace the rows; the columns and their types stay."""
        used = len(self._set) if table.num_rows >= _SPREAD else 1
        for number in range(max(used, self._used)):
            first, last = (table.num_rows * min(n, used) // used for n in (number, number + 1))
            batches = self._new_list()
            for batch in table.slice(first, last - first).to_batches():
                batches.add(batch.serialize().to_pybytes())
            self._set[number](self._to_seq(batches))
        self._used = used


def stays_fresh(frame: DataFrame) -> bool:
    """Whether the frame, evaluated again, sees what is carried then: nothing above is kept from the first time."""
    return not _keeps(frame._jdf.queryExecution().executedPlan())


def _keeps(plan: Any) -> bool:
    if ("Exchange" in plan.nodeName() or "Subquery" in plan.nodeName()) and _NAME in plan.toString():
        return True
    below = [plan.children(), plan.subqueries()]
    return any(_keeps(some.apply(n)) for some in below for n in range(some.size()))
