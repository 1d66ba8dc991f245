"""A channel tried out on given records, without a data cluster; and what Spark would run for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.statement import ValidatedChannel, empty_view, result_frame, result_sql, subscription_ddl
from nearcast.cluster.channels.text_patterns import check_like_values
from nearcast.cluster.datasets.schema import arrow_schema, dataset_ddl
from nearcast.domain.channel import check_values
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.domain.dataset import DatasetSpec

__all__ = ["explain_channel", "try_channel"]


def try_channel(
    spark: SparkSession,
    channel: ValidatedChannel,
    datasets: Mapping[str, DatasetSpec],
    records: Mapping[str, pa.Table],
    values: Mapping[str, Any],
    most_bytes: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of one subscription, when the datasets have these records and no others.

    most_bytes: InputError for more. A few records may make millions of rows, so they are counted where they are made.
    """
    checked = check_values(channel.spec, values)
    check_like_values(channel.like_parameters, checked)
    frame = result_frame(_session(spark, channel, datasets, records), channel, [checked])
    if most_bytes is not None:
        count, size = frame.selectExpr("count(*)", "coalesce(sum(octet_length(row)), 0)").collect()[0]
        if size > most_bytes:
            raise InputError(f"the trial has {count} rows of {size} bytes; {most_bytes} are allowed: try fewer")
    rows = frame.toArrow().to_pylist()
    return [json.loads(row["row"]) for row in sorted(rows, key=lambda row: row["position"] or 0)]


def explain_channel(spark: SparkSession, channel: ValidatedChannel, datasets: Mapping[str, DatasetSpec]) -> str:
    """The statement for all subscriptions, and Spark's plan of it over empty tables."""
    session, view = _session(spark, channel, datasets, {}), f"{channel.statement.prefix}subscriptions"
    empty_view(session, view, subscription_ddl(channel))
    plan = session.sql(result_sql(channel, {}, view, {}))._jdf.queryExecution().executedPlan().toString()
    return f"{channel.statement.template}\n\n{plan}"


def _session(
    spark: SparkSession,
    channel: ValidatedChannel,
    datasets: Mapping[str, DatasetSpec],
    records: Mapping[str, pa.Table],
) -> SparkSession:
    """A session with views of these records; other datasets are empty."""
    session = spark.newSession()
    session.sql(grid.DISTANCE)
    for name in channel.datasets:
        empty_view(session, name, dataset_ddl(datasets[name]))
        if name in records:
            schema = session.table(name).schema
            frame = session.createDataFrame(_numbered(records[name], arrow_schema(schema)), schema)
            frame.createOrReplaceTempView(name)
    return session


def _numbered(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """The records with what the data cluster adds to those of a stream."""
    if "_sequence" in columns.names:
        count = table.num_rows
        table = table.append_column("_sequence", pa.array(range(1, count + 1), pa.int64()))
        table = table.append_column("_arrived", pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")))
    return table.select(columns.names).cast(columns)
