"""Administration of datasets and channels: what the command line does to the catalog and to static datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.cluster.catalog_validation import validate_channel, validate_columns, validate_dataset, with_new_dataset
from nearcast.cluster.channel_trials import (
    explain_channel,
    present_subscriptions,
    replay_messages,
    replayed_results,
    tried_rows,
)
from nearcast.cluster.channels.query_errors import check_syntax
from nearcast.cluster.datasets.backfill import backfill
from nearcast.cluster.datasets.record_files import record_file
from nearcast.cluster.datasets.static_table import load_static
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.spark_session import spark_session
from nearcast.domain.channel import ChannelSpec, check_channel, check_values
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.audit import AuditLog
from nearcast.nats.catalog import Catalog
from nearcast.nats.refusals import RefusedError
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.protocol.data_cluster import ChannelCheck, ChannelReplay, ChannelTrial, ColumnsCheck

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from nearcast.domain.deployment import Deployment

__all__ = ["Admin"]

T = TypeVar("T")
A = TypeVar("A")
_DRIVER_LIMIT = 60.0
_SHARE_OF_A_REQUEST = 0.5


class Admin:
    """The catalog of a deployment. A running data cluster validates; without one, Spark is started for it."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        cloud = deployment.cloud()
        self._connection = connection_to([cloud.url])
        self._catalog = Catalog(self._connection.connection, cloud.name)
        self._audit = AuditLog(self._connection.connection, cloud.name)
        self._connection.call(self._catalog.prepare())

    def datasets(self) -> dict[str, DatasetSpec]:
        """All datasets by name."""
        return self._connection.call(self._catalog.datasets())

    def channels(self) -> dict[str, ChannelSpec]:
        """All channels by name."""
        return self._connection.call(self._catalog.channels())

    def dataset(self, name: str) -> DatasetSpec:
        """A dataset; InputError when there is none of this name."""
        return _named("dataset", self.datasets(), name)

    def channel(self, name: str) -> ChannelSpec:
        """A channel; InputError when there is none of this name."""
        return _named("channel", self.channels(), name)

    def add_dataset(self, spec: DatasetSpec, spark: SparkSession | None = None) -> None:
        """Validate and add a dataset."""
        check_dataset(spec)
        if spec.source.startswith("pub."):
            topic = self._deployment.topic(spec.source.removeprefix("pub."))
            if not topic.replicas:
                raise InputError(f"dataset {spec.name}: topic {topic.name} is not stored; give it `replicas` first")
        if spark is not None or self._ask("check-dataset", spec) is None:
            validate_dataset(spark or _validation_session(), spec)
        self._connection.call(self._catalog.add_dataset(spec))
        self._note("dataset add", spec.name)

    def remove_dataset(self, name: str) -> None:
        """Remove a dataset that no channel reads."""
        self._connection.call(self._catalog.remove_dataset(name))
        self._note("dataset rm", name)

    def load_dataset(self, name: str, path: Path, spark: SparkSession | None = None) -> int:
        """Replace the content of a static dataset by a file; returns its rows."""
        spec = self.dataset(name)
        following = replace(spec, version=spec.version + 1)
        if spark is None and spec.static:  # a stream is refused at once
            _validation_session()  # without one, no schema can be parsed
        rows = load_static(Warehouse(self._deployment.data_cluster().warehouse), following, path)
        self._connection.call(self._catalog.replace_dataset(following))
        self._note("dataset load", name)
        return rows

    def alter_dataset(self, name: str, columns: str) -> DatasetSpec:
        """Add columns (DDL) to a dataset; in records that came before, they are null."""
        spec = self.dataset(name)
        schema = self._ask("check-columns", ColumnsCheck(spec, columns))
        if schema is None:
            _validation_session()  # without one, no schema can be parsed
            schema = validate_columns(spec, columns).schema
        altered = replace(spec, schema=schema)
        self._connection.call(self._catalog.replace_dataset(altered))
        self._note("dataset alter", name)
        return altered

    def backfill_dataset(self, name: str, path: Path) -> int:
        """Put past records into a dataset, of which no channel is notified; returns how many."""
        spec = self.dataset(name)
        _validation_session()  # without one, no schema can be parsed
        rows = backfill(Warehouse(self._deployment.data_cluster().warehouse), spec, path)
        # The data cluster opens the table again: the state of a keyed dataset may have changed.
        self._connection.call(self._catalog.replace_dataset(replace(spec, version=spec.version + 1)))
        self._note("dataset backfill", name)
        return rows

    def add_channel(self, spec: ChannelSpec, spark: SparkSession | None = None) -> ChannelSpec:
        """Validate a channel's query and add it; returns it with the dataset whose records are new to it."""
        check_channel(spec)
        datasets = self.datasets()
        spec = with_new_dataset(spec, datasets)
        if spark is not None or self._ask_of_channel("check-channel", spec, datasets) is None:
            check_syntax(spec)  # at once: Spark takes some ten seconds to start
            validate_channel(spark or _validation_session(), spec, datasets)
        self._connection.call(self._catalog.add_channel(spec))
        self._note("channel add", spec.name)
        return spec

    def faults(self, channel: str = "") -> dict[str, str]:
        """Why channels and subscriptions (`<channel>.<key>`) are switched off or failed; of one channel, or of all."""
        if channel:
            self.channel(channel)
        found = self._connection.call(self._catalog.faults())
        return {name: reason for name, reason in found.items() if not channel or name.split(".")[0] == channel}

    def explain_channel(self, name: str, spark: SparkSession | None = None) -> str:
        """What Spark runs for all subscriptions of a channel."""
        channel, datasets = self.channel(name), self.datasets()
        told = self._ask_of_channel("explain-channel", channel, datasets) if spark is None else None
        return told if told is not None else explain_channel(spark or _validation_session(), channel, datasets)

    def try_channel(
        self, name: str, files: Mapping[str, Path], values: Mapping[str, Any], spark: SparkSession | None = None
    ) -> list[dict[str, Any]]:
        """The rows that a subscription with these values would get from the records of some files, by dataset."""
        for dataset in files:
            self.dataset(dataset)
        channel = self.channel(name)
        check_values(channel, values)
        records = [record_file(dataset, path) for dataset, path in files.items()]
        trial = ChannelTrial(channel, list(self.datasets().values()), records, dict(values))
        size = sum(len(file.content) for file in records)
        # A request has them in base64, beside the catalog.
        if spark is None and size < _SHARE_OF_A_REQUEST * self._connection.connection.max_payload:
            told = self._ask("test-channel", trial, list[dict[str, Any]])
            if told is not None:
                return told
        return tried_rows(spark or _validation_session(), trial)

    def replay_channel(
        self,
        name: str,
        since: datetime,
        values: Mapping[str, Any] | None = None,
        publish: bool = False,
        spark: SparkSession | None = None,
    ) -> pa.Table:
        """The results of a channel over the records since a time, of all its subscriptions, or of the one with these
        values. publish: send them to the subscribers, too."""
        channel = self.channel(name)
        known = self._connection.call(present_subscriptions(self._catalog, name)) if values is None else {}
        replay = ChannelReplay(
            channel, list(self.datasets().values()), since.timestamp(), None if values is None else dict(values)
        )
        warehouse = Warehouse(self._deployment.data_cluster().warehouse)
        results = replayed_results(spark or _validation_session(), warehouse, replay, known)
        if publish:
            self._connection.publish(replay_messages(results))
            self._note("channel replay", name)
        return results

    def remove_channel(self, name: str) -> None:
        """Remove a channel with its results."""
        self._connection.call(self._catalog.remove_channel(name))
        self._note("channel rm", name)

    def _ask_of_channel(self, verb: str, channel: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> str | None:
        return self._ask(verb, ChannelCheck(channel, list(datasets.values())))

    def _ask(self, verb: str, body: object, answer: type[A] = str) -> A | None:  # type: ignore[assignment]
        """What the running data cluster says, whose Spark is up already; None when none runs."""
        connection = self._connection.connection
        try:
            return self._connection.call(
                call(connection, subjects.data_cluster(verb), body, answer, timeout=_DRIVER_LIMIT)
            )
        except (NoAnswerError, RefusedError):
            return None

    def _note(self, action: str, what: str) -> None:
        credentials = self._connection.connection.credentials
        who = credentials.user if credentials is not None else "anonymous"
        self._connection.call(self._audit.note(who, action, what))


def _named(kind: str, known: dict[str, T], name: str) -> T:
    if name not in known:
        raise InputError(f"there is no {kind} {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]


def _validation_session() -> SparkSession:
    return spark_session("nearcast check", master="local[1]")
