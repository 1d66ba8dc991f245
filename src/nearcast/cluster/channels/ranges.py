"""Conditions on a range, such as `r.severity > :least`, written as an equality of buckets beside the exact one.

The values that subscriptions have for the parameter are cut into buckets of equal size by sorted *bounds*; the bucket
of a value is the number of bounds up to it. What is below a record's value is in its bucket or in one before it: the
record is copied into those, each subscription is in one. So a record is compared with the subscriptions that it
satisfies and with those of one more bucket, not with all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlglot import exp

from nearcast.cluster.channels.query_tree import conjuncts, joins_subscriptions, sources, to_sql
from nearcast.cluster.channels.source_copies import SourceCopies

__all__ = ["RangeConditions", "RangeCopies", "bounds_of", "bounds_view", "bucket_of"]

_TYPES = ("int", "bigint", "double", "date", "timestamp")
# Fewer subscriptions are one bucket.
_FEWEST = 256
_MOST_BUCKETS = 512


@dataclass(frozen=True)
class RangeCopies:
    """The buckets into which rows are copied for a range condition. value: of the row. below: whether the parameter is
    below the value in what satisfies the condition, or above it."""

    marker: str
    value: str
    parameter: str
    below: bool

    def sql(self, prefix: str, bounds: str) -> str:
        """The rest of a FROM. bounds: how the names of the views of buckets begin; without it there is one bucket."""
        if not bounds:
            return f"LATERAL VIEW explode(array(0)) {prefix}range AS {prefix}bucket"
        # Not strict, either way: a cast to the common type may make two different values equal.
        low, high = f"{prefix}low", f"{prefix}high"
        reached = f"{low} <= {self.value}" if self.below else f"{high} >= {self.value}"
        end = f"{low if self.below else high} IS NULL"
        return f"JOIN {bounds_view(bounds, self.parameter)} AS {prefix}range ON {end} OR {reached}"


class RangeConditions:
    """Of one query. found: the places that `rewrite` has marked."""

    def __init__(self, prefix: str, types: Mapping[str, str], copies: SourceCopies) -> None:
        self._prefix, self._types, self._copies = prefix, types, copies
        self.found: list[RangeCopies] = []

    def rewrite(self, select: exp.Select) -> None:
        """Add an equality of buckets to a range condition, where nothing else joins the subscriptions of a SELECT."""
        where = select.args.get("where")
        if where is None or any(node.is_star for node in select.expressions):
            return
        joins = [join for _, join in sources(select) if join is not None]
        if any(join.side in ("RIGHT", "FULL") for join in joins):
            return
        if any(source.find(exp.Placeholder) for source, _ in sources(select)):
            return
        conditions = conjuncts(where.this)
        joined = [*conditions, *(c for join in joins if join.args.get("on") for c in conjuncts(join.args["on"]))]
        if any(map(joins_subscriptions, joined)):
            return
        for condition in conditions:
            found = self._parts(condition)
            owner = None if found is None else self._copies.owner(select, [found[0]])
            if found is not None and owner is not None:
                self._copy(owner, condition, *found)
                return

    def _copy(self, owner: exp.Expr, condition: exp.Expr, value: exp.Expr, parameter: str, below: bool) -> None:
        marker = f"{self._prefix}copies{len(self.found)}"
        self.found.append(RangeCopies(marker, to_sql(value), parameter, below))
        _, bucket = self._copies.join(owner, exp.to_table(marker), f"{self._prefix}bucket")
        equal = exp.EQ(this=bucket, expression=exp.Placeholder(this=f"#bucket_{parameter}"))
        condition.replace(exp.Paren(this=exp.and_(equal, condition.copy())))

    def _parts(self, condition: exp.Expr) -> tuple[exp.Expr, str, bool] | None:
        """The column, the parameter, and whether the parameter is below the column."""
        if isinstance(condition, exp.Between):
            sides = [(condition.this, condition.args["low"], True), (condition.this, condition.args["high"], False)]
        elif isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE):
            below = isinstance(condition, exp.GT | exp.GTE)
            left, right = condition.this, condition.expression
            sides = [(left, right, below), (right, left, not below)]
        else:
            return None
        for value, bound, below in sides:
            value, bound = value.unnest(), bound.unnest()
            if isinstance(value, exp.Column) and isinstance(bound, exp.Placeholder):
                return (value, bound.name, below) if self._types.get(bound.name) in _TYPES else None
        return None


def bounds_view(bounds: str, name: str) -> str:
    """The view of a parameter's buckets."""
    return f"{bounds}_{name}"


def bounds_of(values: pa.ChunkedArray) -> pa.Array:
    """Sorted values that cut all of them into about as many buckets as a bucket has values."""
    count = len(values)
    buckets = min(math.isqrt(count), _MOST_BUCKETS)
    if count < _FEWEST:
        return pa.array([], values.type)
    places = pa.array(np.arange(1, buckets) * count // buckets)
    return pc.unique(values.take(pc.sort_indices(values).take(places)))


def bucket_of(values: pa.ChunkedArray, bounds: pa.Array) -> pa.Array:
    """The number of bounds up to each value."""
    numbers = (_ordered(bounds), _ordered(values))
    return pa.array(np.searchsorted(*numbers, side="right").astype(np.int32), pa.int32())


def _ordered(values: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Dates and times as whole numbers."""
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return np.asarray(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy())
