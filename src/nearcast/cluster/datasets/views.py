"""Datasets as temporary views for queries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.datasets.dataset_tables import StreamTable
    from nearcast.cluster.datasets.static_table import StaticTable

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
