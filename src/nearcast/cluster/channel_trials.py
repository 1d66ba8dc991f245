"""A channel asked for once: tried on given records, explained, or replayed over kept ones.

In the driver, or in one's own Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.channel_shape import SubscriptionNames
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.results import group_results, messages_by_channel
from nearcast.cluster.channels.statement import (
    NUMBERED,
    ValidatedChannel,
    empty_view,
    result_frame,
    result_sql,
    subscription_ddl,
)
from nearcast.cluster.channels.subscribers import Subscribers
from nearcast.cluster.channels.text_patterns import check_like_values
from nearcast.cluster.datasets.delta_table import RecordTable
from nearcast.cluster.datasets.keyed_table import KeyedTable
from nearcast.cluster.datasets.record_files import read_table
from nearcast.cluster.datasets.schema import arrow_schema, dataset_ddl, parse_ddl, required_fields, without_not_null
from nearcast.cluster.datasets.static_table import StaticTable
from nearcast.domain.channel import check_values, subscription_key
from nearcast.domain.dataset import check_dataset
from nearcast.errors import InputError
from nearcast.nats.catalog import SUBSCRIPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.channel import ChannelSpec
    from nearcast.domain.dataset import DatasetSpec
    from nearcast.nats.catalog import Catalog
    from nearcast.nats.stream_publisher import OutgoingMessage
    from nearcast.protocol.data_cluster import ChannelReplay, ChannelTrial

__all__ = [
    "checked_datasets", "explain_channel", "present_subscriptions", "replay_messages", "replayed_results", "tried_rows",
    "try_channel",
]  # fmt: skip


def checked_datasets(datasets: list[DatasetSpec]) -> dict[str, DatasetSpec]:
    """Datasets of a request by name. Their names are those of folders, so they are checked."""
    return {check_dataset(one).name: one for one in datasets}


async def present_subscriptions(catalog: Catalog, channel: str) -> dict[str, dict[str, Any]]:
    """The values of a channel's subscriptions by key, as the catalog has them."""
    known = Subscribers()
    known.apply(await catalog.follow(SUBSCRIPTIONS).changes(), time.monotonic())
    return known.rows(channel)


def tried_rows(spark: SparkSession, trial: ChannelTrial, most_bytes: int | None = None) -> list[dict[str, Any]]:
    """The rows that a subscription with these values would get from these records. most_bytes: of JSON, no more."""
    datasets = checked_datasets(trial.datasets)
    validated = validate_query(spark, trial.channel, datasets)
    records = {}
    for file in trial.records:
        if (spec := datasets.get(file.dataset)) is None:
            raise InputError(
                f"there is no dataset {file.dataset!r}; there are: {', '.join(sorted(datasets)) or 'none'}"
            )
        schema = arrow_schema(parse_ddl(without_not_null(spec.schema), spec.name))
        records[spec.name] = read_table(file, schema, required_fields(spec.schema))
    return try_channel(spark, validated, datasets, records, trial.values, most_bytes)


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


def explain_channel(spark: SparkSession, spec: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> str:
    """The statement for all subscriptions of a channel, and Spark's plan of it over empty tables."""
    channel = validate_query(spark, spec, datasets)
    session, view = _session(spark, channel, datasets, {}), f"{channel.statement.prefix}subscriptions"
    empty_view(session, view, subscription_ddl(channel))
    plan = session.sql(result_sql(channel, {}, view, {}))._jdf.queryExecution().executedPlan().toString()
    return f"{channel.statement.template}\n\n{plan}"


def replayed_results(
    spark: SparkSession, warehouse: Warehouse, replay: ChannelReplay, subscribed: Mapping[str, Mapping[str, Any]]
) -> pa.Table:
    """One result for each subscription, from all kept records of the new dataset with a time since then. Other
    datasets are as they are now. Reads the tables only: it needs no running data cluster and disturbs none.

    subscribed: the channel's subscriptions by key, for a replay of all of them.
    """
    spec, datasets = replay.channel, checked_datasets(replay.datasets)
    if replay.values is None:
        rows = {key: row for key, row in subscribed.items() if _fits(spec, row)}
    else:
        checked = check_values(spec, replay.values)
        rows = {subscription_key(checked): checked}
    if not rows:
        raise InputError(f"channel {spec.name} has no subscription; give a value for each parameter")
    channel = validate_query(spark, spec, datasets)
    if not spec.new:
        raise InputError(
            f"channel {spec.name} queries all records, each time; only a channel with new records can be replayed"
        )
    session = spark.newSession()
    session.sql(grid.DISTANCE)
    for name in channel.datasets:
        if name != spec.new:
            _whole(session, datasets[name], warehouse).createOrReplaceTempView(name)
    since = datetime.fromtimestamp(replay.since, UTC)
    new = _since(session, datasets[spec.new], warehouse, since).cache()
    try:
        new.createOrReplaceTempView(spec.new)
        last, arrived_us = new.selectExpr("max(_sequence)", "unix_micros(max(_arrived))").collect()[0]
        found = result_frame(session, channel, rows.values()).toArrow().cast(NUMBERED)
    finally:
        new.unpersist()
    matches = SubscriptionNames.of_channel(spec.name, rows).matches(found)
    return group_results(matches, int(last or 0), int(arrived_us or 0))


def replay_messages(results: pa.Table) -> list[OutgoingMessage]:
    """Results as messages for their subscribers. Their ids are not those of the results that came at the time, and the
    same when the same is replayed again."""
    by_channel = messages_by_channel(results).values()
    return [(subject, f"{number};replay", payload) for some in by_channel for subject, number, payload in some]


def _fits(channel: ChannelSpec, row: Mapping[str, Any]) -> bool:
    try:
        check_values(channel, row)
    except InputError:
        return False
    return True


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


def _records(spec: DatasetSpec, warehouse: Warehouse) -> RecordTable:
    schema = arrow_schema(parse_ddl(dataset_ddl(spec), spec.name))
    return RecordTable(warehouse, warehouse.folder("datasets", spec.name, "data"), schema)


def _since(session: SparkSession, spec: DatasetSpec, warehouse: Warehouse, since: datetime) -> DataFrame:
    from pyspark.sql import functions as f

    frame = _read(session, spec, warehouse)
    time = f.coalesce(f.col(f"`{spec.time}`"), f.col("_arrived")) if spec.time else f.col("_arrived")
    return frame.where(time >= f.lit(since))


def _whole(session: SparkSession, spec: DatasetSpec, warehouse: Warehouse) -> DataFrame:
    if spec.static:
        return StaticTable(session, spec, warehouse).frame()
    if not spec.key:
        return _read(session, spec, warehouse)
    schema = parse_ddl(dataset_ddl(spec), spec.name)
    return KeyedTable(session, warehouse, spec, schema, _records(spec, warehouse)).frame()


def _read(session: SparkSession, spec: DatasetSpec, warehouse: Warehouse) -> DataFrame:
    schema = parse_ddl(dataset_ddl(spec), spec.name)
    records = _records(spec, warehouse)
    if not (paths := records.paths()):
        return session.createDataFrame(arrow_schema(schema).empty_table(), schema)
    return session.read.schema(schema).parquet(*map(warehouse.uri, paths))
