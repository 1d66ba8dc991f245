"""Static datasets: a Delta table that each load replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from nearcast.cluster.datasets.delta_table import replace_table
from nearcast.cluster.datasets.record_files import read_table
from nearcast.cluster.datasets.schema import arrow_schema, conform, dataset_ddl, parse_ddl, required_fields
from nearcast.cluster.datasets.warehouse import disk_reason
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec
    from nearcast.protocol.data_cluster import RecordFile

__all__ = ["StaticTable", "load_static"]

# A table up to this size is sent with the plan: joining it takes no job of its own. Spark reads a larger one.
_SENT_WITH_PLAN = 4 << 20


class StaticTable:
    """A static dataset: one version at a time. problem: why it cannot be read, if so; then only its readers fail."""

    def __init__(self, spark: SparkSession, spec: DatasetSpec, warehouse: Warehouse) -> None:
        self.spec, self.problem, self.version = spec, "", spec.version
        schema = parse_ddl(dataset_ddl(spec), f"dataset {spec.name}")
        if spec.version == 0:
            self._frame = spark.createDataFrame(arrow_schema(schema).empty_table(), schema)
            return
        folder = _folder(warehouse, spec.name)
        try:
            self._frame = _frame(spark, schema, warehouse, folder)
        except TableNotFoundError:
            self._fail(spark, schema, f"its table {folder} is missing")
        except (DeltaError, OSError, pa.ArrowInvalid) as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({disk_reason(error)})"
            self._fail(spark, schema, f"a file of its table {folder} {reason}")

    def frame(self) -> DataFrame:
        return self._frame

    def close(self) -> None:
        """Drop it from Spark's cache."""
        self._frame.unpersist()

    def _fail(self, spark: SparkSession, schema: StructType, reason: str) -> None:
        """A frame that fails with a sentence when it is evaluated: each channel that reads it fails by itself."""
        from pyspark.sql import functions as f

        self.problem = f"{reason}; load it again: nearcast dataset load {self.spec.name} FILE"
        columns = [f.lit(None).cast(field.dataType).alias(field.name) for field in schema]
        sentence = f.lit(f"dataset {self.spec.name}: {self.problem}")
        self._frame = spark.range(1).where(f.raise_error(sentence).isNull()).select(*columns)


def load_static(warehouse: Warehouse, spec: DatasetSpec, source: Path | RecordFile) -> int:
    """Replace the content of a static dataset by that of a file, here or in a request; returns its rows."""
    if not spec.static:
        raise InputError(f"dataset {spec.name!r} is a stream from {spec.source}; feed it instead")
    schema = arrow_schema(parse_ddl(dataset_ddl(spec), f"dataset {spec.name}"))
    table = read_table(source, schema, required_fields(spec.schema))
    replace_table(warehouse, _folder(warehouse, spec.name), table, version=spec.version)
    return int(table.num_rows)


def _frame(spark: SparkSession, schema: StructType, warehouse: Warehouse, folder: str) -> DataFrame:
    actions = pa.table(DeltaTable(warehouse.table_uri(folder)).get_add_actions(flatten=True))
    paths = [f"{folder}/{path}" for path in actions["path"].to_pylist()]
    for info in warehouse.fs.get_file_info(paths):
        if not info.is_file:
            raise FileNotFoundError(info.path)
    if not paths or sum(actions["size_bytes"].to_pylist()) <= _SENT_WITH_PLAN:
        arrow = arrow_schema(schema)
        tables = [conform(warehouse.read(path), arrow) for path in paths]
        return spark.createDataFrame(pa.concat_tables([arrow.empty_table(), *tables]), schema)
    return spark.read.schema(schema).parquet(*map(warehouse.uri, paths)).cache()


def _folder(warehouse: Warehouse, name: str) -> str:
    return warehouse.folder("datasets", name, "static")
