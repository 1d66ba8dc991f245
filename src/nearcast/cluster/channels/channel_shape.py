"""Channels of one query shape: their statements are the same, so one plan answers the subscriptions of all of them.

Their subscriptions are a base and a delta: the base is large, cached in Spark and part of a kept plan; what was added
since is appended to the small delta; what was removed since is only noted, and its results are dropped. So a change
costs what changed. When it has grown, the delta is folded: both become one new base.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nearcast.cluster.channels.statement import in_buckets, number_column, subscription_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nearcast.cluster.channels.statement import ValidatedChannel

__all__ = ["MATCHES", "ChannelShape", "ShapeState", "SubscriptionBase", "SubscriptionNames", "shape_of"]

MATCHES = pa.schema([("channel", pa.string()), ("key", pa.string()), ("row", pa.string()), ("position", pa.int32())])
# Columns of a row that do not go to Spark: whose subscription it is.
_NAMES = ["channel", "key"]
# The delta becomes part of the base when it has more rows than this, or than 2 % of a larger base, up to a limit.
_LARGEST_DELTA, _LARGEST_SHARE, _DELTA_LIMIT = 1_000, 0.02, 5_000
# A smaller one when nothing changed for this long, and a second longer for each so many rows: a large base costs more.
_UNCHANGED_SECONDS, _ROWS_FOR_A_SECOND = 5.0, 10_000
# Places are kept by number where at least one number in this many is in use.
_SPARSEST = 8

_numbers = itertools.count()
_subscription_numbers = itertools.count()


def shape_of(channel: ValidatedChannel) -> object:
    """Channels with equal shapes have one statement. A scheduled channel runs by its own clock: it shares with none."""
    spec = channel.spec
    own = None if spec.continuous else (spec.name, spec.created)
    return own, spec.new, spec.parameters, channel.statement, channel.columns, channel.datasets


@dataclass(frozen=True, eq=False)
class SubscriptionBase:
    """Subscriptions in Spark. rows: with the names of their channels and their keys. frame: None without rows.
    buckets: of the parameters that are ranges."""

    rows: pa.Table
    frame: DataFrame | None
    buckets: Mapping[str, pa.Table] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def view(self) -> str:
        return f"_subscriptions_{self.number}"

    @property
    def bounds(self) -> str:
        """How the names of the views of its buckets begin; empty when it has none."""
        return f"{self.view}_bounds" if self.buckets else ""


@dataclass(frozen=True, eq=False)
class ShapeState:
    """What an execution sees. delta: rows since the base was made. removed: numbers of rows of either that are gone."""

    base: SubscriptionBase
    delta: pa.Table
    removed: frozenset[int] = frozenset()

    @property
    def bulky(self) -> bool:
        """Whether the delta is too large to be sent with every batch."""
        return bool(self.delta.num_rows > _DELTA_LIMIT)

    def should_fold(self, unchanged_seconds: float) -> bool:
        """Whether a new base is worth its cost: every batch evaluates a delta beside its base."""
        rows = self.base.rows.num_rows
        largest = max(_LARGEST_DELTA, min(int(rows * _LARGEST_SHARE), _DELTA_LIMIT))
        if self.delta.num_rows > largest or len(self.removed) > max(largest, rows // 10):
            return True
        return bool(rows and self.delta.num_rows and unchanged_seconds > _UNCHANGED_SECONDS + rows / _ROWS_FOR_A_SECOND)


class ChannelShape:
    """Any thread may read `state`; changes are made by one thread at a time. channels: their names. unchanged_batches:
    since inputs_version changed, which is that of all that the statement reads. looked_up: a large dataset is read by
    the keys of a batch when no plan is kept."""

    def __init__(self, validated: ValidatedChannel) -> None:
        self.validated, self.channels = validated, set[str]()
        self._number_column = number_column(validated)
        self._index: dict[str, dict[str, int]] = {}  # the number of each subscription, by channel and key
        self._lock = threading.Lock()
        self.folding = threading.Lock()
        empty = self._rows("", {})
        self.state = ShapeState(SubscriptionBase(empty, None), empty)
        self._seen = self.state, 0.0
        self.unfoldable: ShapeState | None = None  # the state whose folding failed
        self.inputs_version: object = None
        self.unchanged_batches, self.looked_up = 0, False

    @property
    def name(self) -> str:
        """For the log."""
        return ", ".join(sorted(self.channels))

    def unchanged_seconds(self, now: float) -> float:
        """Since the first call that found the present subscriptions."""
        if self._seen[0] is not self.state:
            self._seen = self.state, now
        return now - self._seen[1]

    def count(self, channel: str) -> int:
        """How many subscriptions of a channel are evaluated."""
        return len(self._index.get(channel, ()))

    def change(self, channel: str, added: Mapping[str, Mapping[str, Any]], removed: Iterable[str]) -> None:
        """Take changes of a channel's subscriptions; a key that is known gets its new values."""
        with self._lock:
            index = self._index.setdefault(channel, {})
            gone = [index.pop(key) for key in (*removed, *added) if key in index]
            rows = self._rows(channel, added)
            index.update(zip(added, self._numbers_of(rows).tolist(), strict=True))
            delta = pa.concat_tables([self.state.delta, rows]) if added else self.state.delta
            self.state = replace(self.state, delta=delta, removed=self.state.removed.union(gone))

    def clear(self, channel: str) -> None:
        """Remove all subscriptions of a channel."""
        self.change(channel, {}, list(self._index.get(channel, ())))
        self._index.pop(channel, None)

    def live_rows(self, state: ShapeState) -> pa.Table:
        """The rows of base and delta that are not removed, in the order of their numbers."""
        return self.without(pa.concat_tables([state.base.rows, state.delta]), state.removed).combine_chunks()

    def without(self, rows: pa.Table, removed: frozenset[int]) -> pa.Table:
        """Rows whose subscriptions are not removed."""
        return rows.filter(pa.array(~_among(self._numbers_of(rows), removed))) if removed else rows

    def replace_base(self, before: ShapeState, base: SubscriptionBase) -> None:
        """Use a base with all rows of a state. What changed since stays the delta."""
        with self._lock:
            now = self.state
            gone = now.removed - before.removed
            self.state = ShapeState(base, now.delta.slice(before.delta.num_rows).combine_chunks(), gone)

    def names(self, state: ShapeState) -> list[pa.Table]:
        """Tables for `SubscriptionNames`."""
        return [self.named(state.base.rows), self.named(state.delta)]

    def spark_rows(self, rows: pa.Table, buckets: Mapping[str, pa.Table] = MappingProxyType({})) -> pa.Table:
        """Rows as the statement reads them; in one bucket, if no others are given."""
        return in_buckets(self.validated, rows.drop_columns(_NAMES), buckets)

    def _rows(self, channel: str, rows: Mapping[str, Mapping[str, Any]]) -> pa.Table:
        numbers = [next(_subscription_numbers) for _ in rows]
        table = subscription_table(self.validated, rows.values(), numbers)
        table = table.append_column("channel", pa.array([channel] * len(rows), pa.string()))
        return table.append_column("key", pa.array(list(rows), pa.string()))

    def _numbers_of(self, rows: pa.Table) -> NDArray[np.int64]:
        return np.asarray(rows[self._number_column].to_numpy())

    def named(self, rows: pa.Table) -> pa.Table:
        """The number, channel and key of rows."""
        return rows.select([self._number_column, *_NAMES]).rename_columns(["number", *_NAMES])


class SubscriptionNames:
    """Finds channel and key of subscriptions by their numbers. named: tables of them, each in the order of numbers."""

    def __init__(self, named: Iterable[pa.Table]) -> None:
        self._tables = [(_Places(table["number"].to_numpy()), table) for table in named if table.num_rows]

    def beside(self, named: Iterable[pa.Table]) -> SubscriptionNames:
        """These names and more."""
        more = SubscriptionNames(named)
        more._tables = [*self._tables, *more._tables]
        return more

    @classmethod
    def of_channel(cls, channel: str, keys: Collection[str]) -> SubscriptionNames:
        """The subscriptions of one channel, numbered by their places."""
        columns = [range(len(keys)), [channel] * len(keys), list(keys)]
        return cls([pa.table(columns, schema=pa.schema([("number", pa.int64()), *list(MATCHES)[:2]]))])

    def matches(self, found: pa.Table, removed: frozenset[int] = frozenset()) -> pa.Table:
        """Rows (channel, key, row as JSON, position) from rows with numbers, without those of removed subscriptions."""
        numbers = np.asarray(found["number"].to_numpy())
        if removed:
            kept = ~_among(numbers, removed)
            numbers, found = numbers[kept], found.filter(pa.array(kept))
        parts = [MATCHES.empty_table()]
        for known, table in self._tables:
            places = known.of(numbers)
            here = np.flatnonzero(places >= 0)
            if not len(here):
                continue
            names = table.take(pa.array(places[here]))
            rows = found if len(here) == len(numbers) else found.take(pa.array(here))
            parts.append(pa.table([names["channel"], names["key"], rows["row"], rows["position"]], schema=MATCHES))
        return pa.concat_tables(parts)


class _Places:
    """The places of numbers in an ascending array; -1 for a number that it has not.

    A search for a hundred thousand numbers takes longer than all else that is done with their names. So the places are
    kept by number, unless most numbers of the span are gone.
    """

    def __init__(self, known: NDArray[np.int64]) -> None:
        self._known, self._first = known, known[0]
        span = int(known[-1] - known[0]) + 1
        self._by_number: NDArray[np.int32] | None = None
        if span <= _SPARSEST * len(known):
            self._by_number = np.full(span, -1, np.int32)
            self._by_number[known - self._first] = np.arange(len(known))

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._by_number is None:
            places = np.minimum(np.searchsorted(self._known, numbers), len(self._known) - 1)
            return np.where(self._known[places] == numbers, places, -1)
        offsets = numbers - self._first
        within = (offsets >= 0) & (offsets < len(self._by_number))
        return np.where(within, self._by_number[np.where(within, offsets, 0)], -1)


def _among(numbers: NDArray[np.int64], some: frozenset[int]) -> NDArray[np.bool_]:
    return np.isin(numbers, np.fromiter(some, dtype=np.int64, count=len(some)))
