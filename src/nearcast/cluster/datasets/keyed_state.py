"""The latest record of each key: a large base and a small delta, so that a batch costs what it changes.

The latest is the one with the highest (time, sequence), however the records arrived or were read again, so the state is
the same after a restart. The base has an index of key hashes; the delta holds the keys that have changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nearcast.cluster.datasets.validation import record_times

if TYPE_CHECKING:
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["KeyedState"]


class KeyedState:
    """Not thread-safe. base and delta hold different keys or the delta's record is the later one; see `hidden`."""

    def __init__(self, spec: DatasetSpec, schema: pa.Schema) -> None:
        self._spec, self._schema = spec, schema
        self.base = self.delta = schema.empty_table()
        self._index = _KeyIndex(self.base[spec.key])
        self._replaced = np.zeros(0, dtype=np.int64)  # rows of the base that the delta replaces

    def __len__(self) -> int:
        return int(self.base.num_rows - len(self._replaced) + self.delta.num_rows)

    def update(self, records: pa.Table) -> None:
        """Take new records."""
        if not records.num_rows:
            return
        records = records.cast(self._schema)
        touched = pc.is_in(self.delta[self._spec.key], value_set=pc.unique(records[self._spec.key]))
        untouched = self.delta.filter(pc.invert(touched))
        latest = self._latest_of_each(pa.concat_tables([self.delta.filter(touched), records]))
        rows = self._index.find(latest[self._spec.key])
        found = rows >= 0
        if found.any():
            before = self._order(self.base.take(pa.array(rows[found])))
            after = self._order(latest.filter(pa.array(found)))
            older = np.zeros(len(rows), dtype=bool)
            older[found] = (after[0] < before[0]) | ((after[0] == before[0]) & (after[1] < before[1]))
            latest, rows = latest.filter(pa.array(~older)), rows[~older]
        self.delta = pa.concat_tables([untouched, latest]).combine_chunks()
        self._replaced = np.union1d(self._replaced, rows[rows >= 0])

    def fold(self) -> None:
        """Make the delta part of the base. Costs as much as the base is large."""
        if not self.delta.num_rows:
            return
        self.base = self.rows().combine_chunks()
        self._index = _KeyIndex(self.base[self._spec.key])
        self.delta, self._replaced = self._schema.empty_table(), np.zeros(0, dtype=np.int64)

    def expire(self, before_us: int) -> bool:
        """Forget the keys whose latest record is older; returns whether there were any."""
        self.fold()
        kept = pc.greater_equal(record_times(self.base, self._spec).cast(pa.int64()), before_us)
        if pc.all(kept).as_py() in (True, None):
            return False
        self.base = self.base.filter(kept).combine_chunks()
        self._index = _KeyIndex(self.base[self._spec.key])
        return True

    def rows(self) -> pa.Table:
        """The latest record of each key."""
        kept = np.ones(self.base.num_rows, dtype=bool)
        kept[self._replaced] = False
        base = self.base if kept.all() else self.base.filter(pa.array(kept))
        return pa.concat_tables([base, self.delta])

    def of_keys(self, keys: pa.ChunkedArray) -> pa.Table:
        """The latest record of each of these keys that has one; costs what they and the delta are."""
        wanted = pc.drop_null(pc.unique(keys))
        rows = self._index.find(pa.chunked_array([wanted]))
        rows = rows[rows >= 0]
        base = self.base.take(pa.array(rows[~np.isin(rows, self._replaced)]))
        return pa.concat_tables([base, self.delta.filter(pc.is_in(self.delta[self._spec.key], value_set=wanted))])

    def _latest_of_each(self, table: pa.Table) -> pa.Table:
        times, sequences = self._order(table)
        ordered = table.take(pa.array(np.lexsort((sequences, times))))
        rows = pa.table({"key": ordered[self._spec.key], "row": pa.array(np.arange(ordered.num_rows))})
        return ordered.take(rows.group_by("key").aggregate([("row", "max")])["row_max"])

    def _order(self, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        times = record_times(table, self._spec).cast(pa.int64())
        return times.to_numpy(zero_copy_only=False), table["_sequence"].to_numpy()


class _KeyIndex:
    """Finds the row of a key by its hash; keys are compared, so that equal hashes do no harm."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys
        hashes = _hashes(keys)
        self._rows = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._rows]

    def find(self, keys: pa.ChunkedArray) -> NDArray[np.int64]:
        """The row of each key; -1 where there is none."""
        found = np.full(len(keys), -1, dtype=np.int64)
        if not len(self._sorted) or not len(keys):
            return found
        hashes = _hashes(keys)
        low = np.searchsorted(self._sorted, hashes, "left")
        high = np.searchsorted(self._sorted, hashes, "right")
        for step in range(int((high - low).max())):  # more than one step only where hashes are equal
            open_ = np.flatnonzero((found < 0) & (low + step < high))
            rows = self._rows[low[open_] + step]
            same = _equal(keys.take(pa.array(open_)), self._keys.take(pa.array(rows)))
            found[open_[same]] = rows[same]
        return found


def _hashes(keys: pa.ChunkedArray) -> NDArray[np.uint64]:
    from pandas.util import hash_array

    if not (pa.types.is_string(keys.type) or pa.types.is_integer(keys.type)):
        keys = keys.cast(pa.string())
    if pa.types.is_integer(keys.type):
        keys = pc.fill_null(keys, 0)
    hashed: Any = hash_array(keys.to_numpy(), categorize=False)
    return np.asarray(hashed, dtype=np.uint64)


def _equal(some: pa.ChunkedArray, others: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Null equals null."""
    same = pc.fill_null(pc.equal(some, others), False)
    both = pc.and_(pc.is_null(some), pc.is_null(others))
    return np.asarray(pc.or_(same, both).to_numpy(), dtype=bool)
