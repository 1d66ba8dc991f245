"""Very many results of a long micro-batch are published by executors: each task reads a part of their file."""

from __future__ import annotations

import contextlib
from functools import partial
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

__all__ = ["publish_by_tasks"]


def publish_by_tasks(
    spark: SparkSession, location: str, servers: tuple[str, ...], path: str, results: pa.Table
) -> None:
    """Publish the results that are stored in a file. A stream may drop some, or be away: the caller compares.

    location: of the warehouse. servers: where executors publish.
    """
    starts = np.flatnonzero(results["part"].to_numpy() == 0)  # the parts of one result are one task's
    pieces = min(spark.sparkContext.defaultParallelism, len(starts))
    edges = [*(int(starts[len(starts) * n // pieces]) for n in range(pieces)), results.num_rows]
    task = partial(_publish_rows, location, servers, path)
    spark.sparkContext.parallelize(list(pairwise(edges)), pieces).map(task).collect()


def _publish_rows(location: str, servers: tuple[str, ...], path: str, rows: tuple[int, int]) -> None:
    """Publish the rows first ≤ row < end of a file: the work of a task."""
    first, end = rows
    table = Warehouse(location).read(path).slice(first, end - first)
    for messages in messages_by_channel(table).values():
        with contextlib.suppress(StreamError, ConnectionLostError):
            connection_to(servers).publish_in_order(messages, ACKNOWLEDGED_WITHIN)
