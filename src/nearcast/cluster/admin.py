"""What the command line does to the registry and to static datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from nearcast.cluster.check import check_query, dataset_ddl
from nearcast.cluster.fetch import link_to
from nearcast.cluster.records import arrow_schema, parse_ddl
from nearcast.cluster.session import spark_session
from nearcast.cluster.tables import static_path
from nearcast.cluster.tokens import tables, tokenize
from nearcast.cluster.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec, check_channel
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError
from nearcast.nats.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.domain.cluster import ClusterSpec
    from nearcast.domain.deployment import Deployment

__all__ = ["Admin", "read_records"]


class Admin:
    """The registry of a deployment, from outside. Spark is started only where a query or a schema is to be checked."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        cloud = deployment.cloud()
        self._link = link_to([cloud.url])
        self._registry = Catalog(self._link.connection, cloud.name)
        self._link.call(self._registry.prepare())

    def datasets(self) -> dict[str, DatasetSpec]:
        return self._link.call(self._registry.datasets())

    def channels(self) -> dict[str, ChannelSpec]:
        return self._link.call(self._registry.channels())

    def add_dataset(self, spec: DatasetSpec, spark: SparkSession | None = None) -> None:
        """Check and add a dataset."""
        check_dataset(spec)
        if spec.source.startswith("pub."):
            topic = self._deployment.topic(spec.source.removeprefix("pub."))
            if not topic.replicas:
                raise InputError(f"dataset {spec.name}: topic {topic.name} is kept nowhere; give it `replicas` first")
        spark = spark or _checker()
        schema = parse_ddl(spec.schema, f"dataset {spec.name}")
        names = schema.fieldNames()
        for name in names:
            if name.startswith("_"):
                raise InputError(f"dataset {spec.name}: column {name!r}: names that start with _ are ours")
        for what in ("key", "time"):
            column = getattr(spec, what)
            if column and column not in names:
                raise InputError(f"dataset {spec.name}: {what} is {column!r}; its columns are: {', '.join(names)}")
        if spec.time and schema[spec.time].dataType.simpleString() != "timestamp":
            raise InputError(f"dataset {spec.name}: time column {spec.time} is no TIMESTAMP")
        self._link.call(self._registry.add_dataset(spec))

    def drop_dataset(self, name: str) -> None:
        self._link.call(self._registry.drop_dataset(name))

    def load_dataset(self, name: str, path: Path, spark: SparkSession | None = None) -> int:
        """Replace a static dataset by a file, all at once; returns its rows."""
        spec = self.datasets().get(name)
        if spec is None:
            raise InputError(f"there is no dataset {name!r}; there are: {', '.join(self.datasets()) or 'none'}")
        if not spec.static:
            raise InputError(f"dataset {name!r} is a stream from {spec.source}; feed it instead")
        spark = spark or _checker()
        table = _read_static(path, arrow_schema(parse_ddl(dataset_ddl(spec), name)), _required(spec))
        following = replace(spec, version=spec.version + 1)
        warehouse = Warehouse(self._cluster().warehouse)
        warehouse.write_file(static_path(warehouse, name, following.version), table)
        self._link.call(self._registry.replace_dataset(following))
        return int(table.num_rows)

    def add_channel(self, spec: ChannelSpec, spark: SparkSession | None = None) -> ChannelSpec:
        """Check a channel's query and add it; returns it with the dataset whose records are new to it."""
        check_channel(spec)
        datasets = self.datasets()
        if spec.continuous and not spec.new:
            named = [table.name for table in tables(tokenize(spec.query))]
            spec = replace(spec, new=next((n for n in named if n in datasets and not datasets[n].static), ""))
        check_query(spark or _checker(), spec, datasets)
        self._link.call(self._registry.add_channel(spec))
        return spec

    def drop_channel(self, name: str) -> None:
        self._link.call(self._registry.drop_channel(name))

    def _cluster(self) -> ClusterSpec:
        if self._deployment.cluster is None:
            raise InputError("the configuration has no [cluster]; add one with a `warehouse`")
        return self._deployment.cluster


def read_records(path: Path) -> Iterator[bytes | dict[str, Any]]:
    """The records of a file: a line each (.json, .jsonl, .ndjson) or a row each (.csv, .parquet)."""
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        try:
            with path.open("rb") as stream:
                yield from (line.strip() for line in stream if line.strip())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        return
    for batch in _load(path, None).to_batches(max_chunksize=1000):
        yield from batch.to_pylist()


def _checker() -> SparkSession:
    return spark_session("nearcast check", master="local[1]")


def _required(spec: DatasetSpec) -> set[str]:
    from nearcast.cluster.records import required_fields

    return required_fields(spec.schema)


def _read_static(path: Path, schema: pa.Schema, required: set[str]) -> pa.Table:
    table = _load(path, schema)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} is missing; the file has: {', '.join(table.column_names)}")
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    for name in schema.names:
        if name in required and table[name].null_count:
            raise InputError(f"{path}: column {name!r} has {table[name].null_count} empty values; it is NOT NULL")
    return table


def _load(path: Path, schema: pa.Schema | None) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        if path.suffix in (".json", ".jsonl", ".ndjson"):
            return pajson.read_json(path)
        if path.suffix == ".csv":
            types = {field.name: field.type for field in schema} if schema is not None else None
            return pacsv.read_csv(path, convert_options=pacsv.ConvertOptions(column_types=types))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    raise InputError(f"{path}: .csv, .parquet, .json, .jsonl and .ndjson are understood")
