"""Buckets of range conditions: what satisfies a condition meets in exactly one bucket, and few others do."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.channels import ranges
from nearcast.cluster.channels.ranges import bounds_of, bucket_of

_NUMBERS = st.lists(st.integers(-50, 50), min_size=1, max_size=60)


@given(_NUMBERS, st.one_of(st.floats(-60, 60), st.just(math.nan)))
def test_a_record_is_copied_into_the_bucket_of_every_value_that_it_satisfies(values: list[int], record: float) -> None:
    with patch.object(ranges, "_FEWEST", 1):
        column = pa.chunked_array([pa.array(values, pa.int64())])
        bounds = bounds_of(column)
        lows = [None, *bounds.to_pylist()]
        highs = [*bounds.to_pylist(), None]
        buckets = bucket_of(column, bounds).to_pylist()
    # As Spark compares: what is no number is above all numbers.
    above = math.isnan(record)
    below_it = {n for n, low in enumerate(lows) if low is None or above or low <= record}
    above_it = {n for n, high in enumerate(highs) if high is None or (not above and high >= record)}
    for value, bucket in zip(values, buckets, strict=True):
        if above or value <= record:
            assert bucket in below_it
        if not above and value >= record:
            assert bucket in above_it


def test_buckets_are_about_as_many_as_their_values() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    times = [start + timedelta(microseconds=n) for n in range(10_000)]
    column = pa.chunked_array([pa.array(times, pa.timestamp("us", "UTC"))])
    buckets = bucket_of(column, bounds_of(column)).to_numpy()
    assert len(set(buckets.tolist())) == 100
    assert max(buckets.tolist().count(n) for n in range(100)) == 100
    few = column.slice(0, 10)
    assert bucket_of(few, bounds_of(few)).to_pylist() == [0] * 10, "few subscriptions are one bucket"
