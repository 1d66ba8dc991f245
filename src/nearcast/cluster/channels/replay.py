"""Results over the past: a channel's query over the records that a dataset has kept since a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.channel_shape import SubscriptionNames
from nearcast.cluster.channels.results import group_results, result_id
from nearcast.cluster.channels.statement import NUMBERED, result_frame
from nearcast.cluster.datasets.delta_table import RecordTable
from nearcast.cluster.datasets.keyed_table import KeyedTable
from nearcast.cluster.datasets.schema import arrow_schema, dataset_ddl, parse_ddl
from nearcast.cluster.datasets.static_table import StaticTable
from nearcast.errors import InputError
from nearcast.nats import subjects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.channels.statement import ValidatedChannel
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["replay_messages", "replay_results"]


def replay_results(
    spark: SparkSession,
    channel: ValidatedChannel,
    datasets: Mapping[str, DatasetSpec],
    warehouse: Warehouse,
    since: datetime,
    subscriptions: Mapping[str, Mapping[str, Any]],
) -> pa.Table:
    """One result for each subscription (by key), from all records of the new dataset with a time since then. Other
    datasets are as they are now. Reads the tables only: it needs no running data cluster and disturbs none."""
    spec = channel.spec
    if not spec.new:
        raise InputError(
            f"channel {spec.name} queries all records, each time; only a channel with new records can be replayed"
        )
    session = spark.newSession()
    session.sql(grid.DISTANCE)
    for name in channel.datasets:
        if name != spec.new:
            _whole(session, datasets[name], warehouse).createOrReplaceTempView(name)
    new = _since(session, datasets[spec.new], warehouse, since).cache()
    try:
        new.createOrReplaceTempView(spec.new)
        last, arrived_us = new.selectExpr("max(_sequence)", "unix_micros(max(_arrived))").collect()[0]
        found = result_frame(session, channel, subscriptions.values()).toArrow().cast(NUMBERED)
    finally:
        new.unpersist()
    matches = SubscriptionNames.of_channel(spec.name, subscriptions).matches(found)
    return group_results(matches, int(last or 0), int(arrived_us or 0))


def replay_messages(results: pa.Table) -> list[tuple[str, str, bytes]]:
    """Results as messages for their subscribers. Their ids are not those of the results that came at the time, and the
    same when the same is replayed again."""
    return [
        (
            subjects.channel_results(row["channel"], row["key"]),
            f"{result_id(row['channel'], row['key'], row['at'], row['execution'], row['part'])};replay",
            row["payload"].encode(),
        )
        for row in results.set_column(3, "at", results["at"].cast(pa.int64())).to_pylist()
    ]


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
