"""A channel asked for once: tried on given records, or replayed over kept ones; in the driver or in one's own Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.replay import replay_results
from nearcast.cluster.channels.subscribers import Subscribers
from nearcast.cluster.channels.trial import try_channel
from nearcast.cluster.datasets.record_files import read_table
from nearcast.cluster.datasets.schema import arrow_schema, parse_ddl, required_fields, without_not_null
from nearcast.domain.channel import check_values, subscription_key
from nearcast.domain.dataset import check_dataset
from nearcast.errors import InputError
from nearcast.nats.catalog import SUBSCRIPTIONS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.channel import ChannelSpec
    from nearcast.domain.dataset import DatasetSpec
    from nearcast.nats.catalog import Catalog
    from nearcast.protocol.data_cluster import ChannelReplay, ChannelTrial

__all__ = ["checked_datasets", "present_subscriptions", "replayed_results", "tried_rows"]


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


def replayed_results(
    spark: SparkSession, warehouse: Warehouse, replay: ChannelReplay, subscribed: Mapping[str, Mapping[str, Any]]
) -> pa.Table:
    """The results over kept records. subscribed: the channel's subscriptions by key, for a replay of all of them."""
    channel, datasets = replay.channel, checked_datasets(replay.datasets)
    if replay.values is None:
        rows = {key: row for key, row in subscribed.items() if _fits(channel, row)}
    else:
        checked = check_values(channel, replay.values)
        rows = {subscription_key(checked): checked}
    if not rows:
        raise InputError(f"channel {channel.name} has no subscription; give a value for each parameter")
    validated = validate_query(spark, channel, datasets)
    return replay_results(spark, validated, datasets, warehouse, datetime.fromtimestamp(replay.since, UTC), rows)


def _fits(channel: ChannelSpec, row: Mapping[str, Any]) -> bool:
    try:
        check_values(channel, row)
    except InputError:
        return False
    return True
