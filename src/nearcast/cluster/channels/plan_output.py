"""The rows of kept plans as Arrow, computed again for each micro-batch.

The RDD of a plan is kept. A frame that is evaluated again would make its RDD again and describe its whole plan to
Spark's listeners, which takes longer than a short batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels.time_limit import TimeLimitError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlanOutput", "PlanRdd"]

# Rows in an Arrow batch, where few or many are expected. One batch is the answer of a call: Py4J reads 10 kB of it in
# a millisecond; more batches come through a socket, which needs a connection.
_FEW, _MANY = 400, 10_000


class PlanRdd:
    """The RDD of a frame's plan: its rows as Arrow batches. Made when first needed, with all that it broadcasts.

    few: whether few rows are expected."""

    def __init__(self, frame: DataFrame, *, few: bool) -> None:
        self.frame, self._rows = frame, _FEW if few else _MANY

    @cached_property
    def java(self) -> Any:
        return self.frame._jdf.toArrowBatchRdd(self._rows, "UTC", True, False).toJavaRDD()


class PlanOutput:
    """The rows of plans with equal columns, from one job. one_task: evaluate them one after the other: for few rows a
    task takes longer than its work."""

    def __init__(self, parts: Sequence[PlanRdd], schema: pa.Schema, *, one_task: bool) -> None:
        self.parts, self._schema, self._one_task = parts, schema, one_task
        jvm: Any = parts[0].frame.sparkSession._jvm
        # Each name that is looked up in Java is a call of its own, so they are looked up once.
        self._milliseconds = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        self._serve, self._to_seq = jvm.PythonRDD.serveIterator, jvm.PythonUtils.toSeq
        self._rdd: Any = None

    @property
    def prepared(self) -> bool:
        return self._rdd is not None

    def prepare(self) -> None:
        """Make the RDD, with all that is broadcast: it takes longer than an evaluation."""
        union = reduce(lambda some, more: some.union(more), (part.java for part in self.parts))
        self._rdd = union.coalesce(1) if self._one_task else union

    def rows(self, limit: float) -> pa.Table:
        """Compute them, when it is prepared. TimeLimitError after a limit of seconds."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        job = self._rdd.collectAsync()
        try:
            found = job.get(int(limit * 1000), self._milliseconds)
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getSimpleName()) != "TimeoutException":
                raise
            job.cancel(True)
            raise TimeLimitError(limit) from error
        batches = [pa.ipc.read_record_batch(pa.py_buffer(some), self._schema) for some in self._bytes(found)]
        return pa.Table.from_batches(batches, self._schema)

    def _bytes(self, found: Any) -> list[bytes]:
        count = found.size()
        if count <= 1:
            return [bytes(found.get(n)) for n in range(count)]
        from pyspark.serializers import FramedSerializer
        from pyspark.util import _load_from_socket

        class Unchanged(FramedSerializer):
            def loads(self, obj: bytes) -> bytes:
                return obj

        port, secret, _ = self._serve(self._to_seq(found).iterator(), "results of channels")
        with _load_from_socket((port, secret), Unchanged()) as batches:
            return list(batches)
