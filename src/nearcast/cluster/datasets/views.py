"""Datasets as temporary views for queries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.datasets.static_table import StaticTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable

__all__ = ["DatasetViews"]


class DatasetViews:
    """Creates a view again when its dataset has changed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.tables: dict[str, StreamTable | StaticTable] = {}
        self._versions: dict[str, tuple[object, int]] = {}
        self._lock = threading.Lock()

    def whole(self, dataset: str) -> str:
        """The view of all that a dataset keeps."""
        table, view = self.tables[dataset], f"_all_{dataset}"
        version = self.version(dataset)
        with self._lock:
            if self._versions.get(dataset) != version:
                table.frame().createOrReplaceTempView(view)
                self._versions[dataset] = version
        return view

    def of_keys(self, dataset: str, keys: Sequence[pa.ChunkedArray]) -> DataFrame | None:
        """The latest record of each of these keys of a dataset; None where to read all of it costs no more."""
        table = self.tables[dataset]
        chunks = [chunk for column in keys for chunk in column.chunks]
        return None if isinstance(table, StaticTable) else table.frame_of_keys(pa.chunked_array(chunks, keys[0].type))

    def position(self, dataset: str) -> int:
        """The last sequence that a stream dataset keeps; 0 for a static or unknown one."""
        return int(getattr(self.tables.get(dataset), "position", 0))

    def version(self, dataset: str) -> tuple[object, int]:
        """Equal versions have equal content, in the same files."""
        table = self.tables[dataset]
        return table, table.version

    def part(self, dataset: str, reader: str, frame: DataFrame) -> str:
        """A view of some records of a dataset, for one reader."""
        view = f"_new_{dataset}_{reader}"
        frame.createOrReplaceTempView(view)
        return view
