"""Very many results of a long micro-batch are published by executors: each task reads a part of their file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nearcast.cluster.channels.results import ACKNOWLEDGED_WITHIN, messages_by_channel
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.streams import StreamError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["TaskPublisher"]


class TaskPublisher:
    """location: of the warehouse. servers: where executors publish."""

    def __init__(self, spark: SparkSession, location: str, servers: tuple[str, ...]) -> None:
        self._spark, self._location, self._servers = spark, location, servers

    def __call__(self, path: str, results: pa.Table) -> None:
        """Publish the results that are stored in a file. A stream may drop some, or be away: the caller compares."""
        context = self._spark.sparkContext
        starts = np.flatnonzero(results["part"].to_numpy() == 0)  # the parts of one result are one task's
        pieces = min(context.defaultParallelism, len(starts))
        edges = [*(int(starts[len(starts) * n // pieces]) for n in range(pieces)), results.num_rows]
        publish = _PartPublisher(self._location, path, self._servers)
        context.parallelize(list(pairwise(edges)), pieces).map(publish).collect()


@dataclass(frozen=True)
class _PartPublisher:
    """Publishes the rows first ≤ row < end of a file. Travels to Spark's workers."""

    location: str
    path: str
    servers: tuple[str, ...]

    def __call__(self, rows: tuple[int, int]) -> None:
        first, end = rows
        table = Warehouse(self.location).read(self.path).slice(first, end - first)
        for messages in messages_by_channel(table).values():
            with contextlib.suppress(StreamError, ConnectionLostError):
                connection_to(self.servers).publish_in_order(messages, ACKNOWLEDGED_WITHIN)
