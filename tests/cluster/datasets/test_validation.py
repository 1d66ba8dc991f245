"""Which records are refused for their time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nearcast.cluster.datasets.validation import RecordValidator, ValidatedBatch
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.domain.dataset import DatasetSpec

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
YEAR = 365 * 86_400 * SECOND
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.string()), ("at", UTC), ("_sequence", pa.int64()), ("_arrived", UTC)])


def batch(*records: tuple[str, int]) -> pa.Table:
    """(publisher, seconds after NOW): one message for each, arrived at NOW."""
    count = len(records)
    values = [{"id": name, "at": NOW + seconds * SECOND} for name, seconds in records]
    return pa.table(
        {
            "sequence": pa.array(range(1, count + 1), pa.int64()),
            "time": pa.array([NOW] * count, UTC),
            "id": pa.array([f"{name}~ab1:edge:{n}:{n}" for n, (name, _) in enumerate(records)]),
            "payload": pa.nulls(count, pa.binary()),
            "removed": pa.array([0] * count, pa.int64()),
            "value": pa.array(values, pa.struct([("id", pa.string()), ("at", UTC)])),
            "error": pa.nulls(count, pa.string()),
        }
    )


def split(rows: pa.Table, watermarks: Watermarks, **settings: Any) -> ValidatedBatch:
    spec = DatasetSpec("d", "id STRING, at TIMESTAMP", "fed.d", time="at", **settings)
    return RecordValidator(spec, SCHEMA).split(rows, watermarks)


def test_one_record_of_2099_does_not_make_later_ones_late() -> None:
    first = split(batch(("a", 73 * 365 * 86_400), ("a", 0)), Watermarks(), late_after=60.0)
    assert first.valid.num_rows == 2, "without a limit the future is accepted"
    second = split(batch(("a", 0), ("a", -50), ("a", -61), ("b", -5000)), first.watermarks, late_after=60.0)
    assert second.valid["at"].cast(pa.int64()).to_pylist() == [NOW, NOW - 50 * SECOND, NOW - 5000 * SECOND]
    assert second.refused["reason"].to_pylist() == ["late by more than 60 s"]


def test_a_source_is_late_behind_itself_only() -> None:
    first = split(batch(("fast", 0), ("slow", -3600)), Watermarks(), late_after=60.0)
    second = split(batch(("slow", -3630), ("slow", -3700), ("fast", -61)), first.watermarks, late_after=60.0)
    assert second.valid["id"].to_pylist() == ["slow"]
    assert second.refused.num_rows == 2


def test_records_beyond_the_future_limit_are_refused() -> None:
    rows = batch(("a", 30), ("a", 301), ("a", -100))
    found = split(rows, Watermarks({"a": NOW}), late_after=60.0, future_limit=300.0)
    assert found.valid["at"].cast(pa.int64()).to_pylist() == [NOW + 30 * SECOND]
    assert found.refused["reason"].to_pylist() == [
        "at is more than 300 s after the record arrived",
        "late by more than 60 s",
    ]
    assert found.watermarks.latest == {"a": NOW}, "the future counts as the time of arrival"


def test_sources_are_bounded() -> None:
    known = Watermarks().joined({f"s{n}": n for n in range(5000)})
    assert len(known.latest) == 4096
    assert min(known.latest.values()) == 5000 - 4096
