"""The keyed state of a dataset in Spark and on disk: its base is cached, its delta sent with each plan.

`latest/` beside the records is a Delta table with the base: a snapshot, from which the next driver starts.
"""

from __future__ import annotations

import copy
import threading
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from nearcast.cluster.datasets.delta_table import replace_table, vacuum
from nearcast.cluster.datasets.keyed_state import KeyedState
from nearcast.cluster.datasets.schema import conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nearcast.cluster.datasets.delta_table import RecordTable
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["KeyedTable"]

# More changed keys become part of the base.
_LARGEST_DELTA = 20_000
# A base up to this size is sent with the plan instead: joining it takes no job of its own.
_SENT_WITH_PLAN = 20_000


class KeyedTable:
    """version: it differs when the content does."""

    def __init__(
        self, spark: SparkSession, warehouse: Warehouse, spec: DatasetSpec, schema: StructType, records: RecordTable
    ) -> None:
        self._spark, self._warehouse, self._spec, self._schema, self._records = spark, warehouse, spec, schema, records
        self._folder, self._key = warehouse.folder("datasets", spec.name, "latest"), spec.key
        self._lock = threading.Lock()
        self._since_fold: list[pa.Table] | None = None
        self.version = 0
        self._state = self._load()
        self._base_frame: DataFrame | None = None

    def update(self, records: pa.Table) -> None:
        """Take new records; costs what they change."""
        with self._lock:
            self._state.update(records)
            if self._since_fold is not None:
                self._since_fold.append(records)
            self.version += 1

    def fold_if_large(self) -> None:
        """Make a large delta part of the base and write a snapshot, while batches continue."""
        with self._lock:
            state = self._state
            if state.delta.num_rows <= max(_LARGEST_DELTA, state.base.num_rows // 4):
                return
            state = copy.copy(state)
            self._since_fold, last = [], self._records.position
        state.fold()
        replace_table(self._warehouse, self._folder, state.base, records=last, version=self._spec.version)
        self._replace(state)

    def expire(self, before_us: int) -> None:
        """Forget the keys whose latest record is older."""
        with self._lock:
            folded = copy.copy(self._state)
            self._since_fold = []
        if folded.expire(before_us):
            self._replace(folded)
        else:
            self._since_fold = None

    def vacuum(self) -> None:
        """Delete the files of earlier snapshots."""
        uri = self._warehouse.table_uri(self._folder)
        if DeltaTable.is_deltatable(uri):
            vacuum(uri)

    def frame(self) -> DataFrame:
        """The latest record of each key."""
        with self._lock:
            state = self._state
            if state.base.num_rows <= _SENT_WITH_PLAN:
                return self._spark.createDataFrame(state.rows(), self._schema)
            made = self._base_frame is None
            if self._base_frame is None:
                self._base_frame = self._spark.createDataFrame(state.base, self._schema).cache()
            base, delta = self._base_frame, self._spark.createDataFrame(state.delta, self._schema)
        if made:
            base.count()  # a kept plan is made for the size that Spark knows; of what is not cached yet it knows none
        if not state.delta.num_rows:
            return base
        changed = delta.select(delta[self._key].alias("_changed")).hint("broadcast")
        kept = base.join(changed, base[self._key].eqNullSafe(changed["_changed"]), "left_anti")
        return kept.union(delta)

    def frame_of_keys(self, keys: pa.ChunkedArray) -> DataFrame | None:
        """The latest record of each of these keys; None where to read all costs no more."""
        with self._lock:
            state = self._state
            if state.base.num_rows <= _SENT_WITH_PLAN or len(keys) > _SENT_WITH_PLAN:
                return None
            rows = state.of_keys(keys)
        return self._spark.createDataFrame(rows, self._schema)

    def _replace(self, folded: KeyedState) -> None:
        with self._lock:
            for records in self._since_fold or []:
                folded.update(records)
            self._since_fold, before = None, self._base_frame
            self._state, self._base_frame = folded, None
            self.version += 1
        if before is not None:
            before.unpersist()

    def _load(self) -> KeyedState:
        spec, arrow = self._spec, self._records.schema
        state = KeyedState(spec, arrow)
        after = None
        try:
            snapshot = DeltaTable(self._warehouse.table_uri(self._folder))
            if snapshot.transaction_version("version") == spec.version:
                after = snapshot.transaction_version("records")
                for file in snapshot.file_uris():
                    state.update(self._read(file.removeprefix(f"{self._warehouse.uri('')}")))
        except TableNotFoundError:
            pass
        except (DeltaError, OSError, pa.ArrowInvalid):  # it can be made again from the records
            state, after = KeyedState(spec, arrow), None
        for path in self._records.paths(after):
            state.update(self._read(path))
        state.fold()
        if after is not None and (oldest := self._records.oldest_day()) is not None:
            state.expire(int(datetime.fromisoformat(f"{oldest}+00:00").timestamp() * 1e6))  # `keep` deleted those days
        return state

    def _read(self, path: str) -> pa.Table:
        return conform(self._warehouse.read(path), self._records.schema)
