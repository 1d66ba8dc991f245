"""The records of a long micro-batch as the input of a plan that is kept: they are in the files that executors wrote.

To plan a query, and to broadcast what it joins, takes longer than a quarter of a million records take to be joined. The
files that a task reads are in the partition of an RDD, so they can be replaced as the rows of a `PlanInput` are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.reusable_plan import INPUT_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from nearcast.cluster.channels.statement import Statement
    from nearcast.cluster.datasets.dataset_tables import WrittenRecords

__all__ = ["FileInput", "columns_read"]

_SPLIT = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
_WHOLE_FILES = str(1 << 40)


class FileInput:
    """Frames that give the records of the files of the last `put` whenever they are evaluated.

    columns: that are read; the others are null. spread: a partition for each file. single: all in one, as of PlanInput.
    """

    def __init__(
        self, spark: SparkSession, schema: StructType, records: WrittenRecords, columns: Collection[str]
    ) -> None:
        from pyspark.sql import DataFrame
        from pyspark.sql.functions import col, lit

        fields = [
            col(_quoted(f.name)) if f.name in columns else lit(None).cast(f.dataType).alias(f.name)
            for f in schema.fields
        ]
        files = spark.read.schema(schema).parquet(*records.uris).select(*fields)
        before = {name: str(spark.conf.get(name)) for name in _SPLIT}
        for name in _SPLIT:
            spark.conf.set(name, _WHOLE_FILES)  # a file and a partition for each task
        try:
            execution = files._jdf.queryExecution()
            parts = execution.executedPlan().collectLeaves().head().inputRDD().filePartitions()
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)
        rows = execution.toRdd().setName(INPUT_NAME)
        java: Any = spark._jsparkSession
        self.spread = DataFrame(java.internalCreateDataFrame(rows, files._jdf.schema(), False), spark)
        self.single = self.spread.coalesce(1)
        self._places = [parts.apply(n).files() for n in range(parts.size())]
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.spark.paths.SparkPath.fromPathString
        self._file = jvm.org.apache.spark.sql.execution.datasources.PartitionedFile

    def holds(self, records: WrittenRecords) -> bool:
        """Whether there is a partition for each file."""
        return len(records.uris) <= len(self._places)

    def put(self, records: WrittenRecords) -> None:
        """Replace the files; columns and types stay the same. A place that is left over reads nothing of the first."""
        files = list(zip(records.uris, records.sizes, strict=True))
        for place, (uri, size) in zip(
            self._places, [*files, *[(files[0][0], 0)] * (len(self._places) - len(files))], strict=True
        ):
            old = place[0]
            place[0] = self._file(
                old.partitionValues(), self._path(uri), 0, size, old.locations(), 0, size,
                old.otherConstantMetadataColumnValues(),
            )  # fmt: skip


def columns_read(statements: Collection[Statement], schema: StructType) -> list[str]:
    """The columns that the statements may read, and perhaps some more: those whose names occur in their texts."""
    text = " ".join(f"{s.template} {s.cells} {s.copies}" for s in statements).lower()
    if "*" in text or "natural" in text:
        return list(schema.names)
    return [name for name in schema.names if name.lower() in text or not re.fullmatch(r"\w+", name, re.ASCII)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
