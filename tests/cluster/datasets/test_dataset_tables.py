"""Tables of datasets on disk: restarts, retention, readers beside merging, damage."""

from __future__ import annotations

import runpy
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.datasets import dataset_tables, keyed_table
from nearcast.cluster.datasets.backfill import backfill
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.delta_table import FencedError
from nearcast.cluster.datasets.static_table import StaticTable, load_static
from nearcast.cluster.datasets.validation import QUARANTINE, ValidatedBatch, record_times
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.protocol.data_cluster import RecordFile

pytestmark = pytest.mark.xdist_group("spark")
DAY = 86_400_000_000
NOW = 20_000 * DAY
PLACES = DatasetSpec("places", "user STRING, n INT, at TIMESTAMP", "fed.places", "user", "at", keep_seconds=5 * 86_400)


def put(table: StreamTable, first: int, rows: list[tuple[str, int, int]]) -> None:
    """(user, n, time) with sequences from `first` on."""
    users, numbers, times = zip(*rows, strict=True)
    sequences = range(first, first + len(rows))
    columns: list[Any] = [users, numbers, times, sequences, [NOW] * len(rows)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, table.arrow, strict=True)]
    valid = pa.table(arrays, schema=table.arrow)
    times, last = record_times(valid, table.spec), sequences[-1]
    table.keep(ValidatedBatch(valid, QUARANTINE.empty_table(), times, last, 0, Watermarks()))
    table.flush()


def latest(table: StreamTable) -> dict[str, int]:
    return {row.user: row.n for row in table.frame().collect()}


def test_keyed_state_is_the_same_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    table = StreamTable(spark, PLACES, warehouse)
    # Records of several days in each batch, and some that come late.
    put(table, 1, [("a", 1, NOW), ("b", 2, NOW - DAY), ("c", 3, NOW - 9 * DAY), ("d", 4, NOW - DAY)])
    put(table, 5, [("a", 5, NOW - 2 * DAY), ("b", 6, NOW), ("d", 7, NOW - DAY)])
    assert latest(table) == {"a": 1, "b": 6, "c": 3, "d": 7}
    assert latest(StreamTable(spark, PLACES, warehouse)) == latest(table)
    table.tidy(datetime.fromtimestamp(NOW / 1e6, UTC))
    assert latest(table) == {"a": 1, "b": 6, "d": 7}, "whole days beyond `keep` are gone"
    assert latest(StreamTable(spark, PLACES, warehouse)) == latest(table)


def test_a_query_that_began_before_merging_finds_its_files(spark: SparkSession, tmp_path: Path) -> None:
    spec = DatasetSpec("reports", "user STRING, n INT, at TIMESTAMP", "fed.reports", time="at")
    table = StreamTable(spark, spec, Warehouse(str(tmp_path)))
    for n in range(1, 41):
        put(table, n, [("a", n, NOW)])
    before, version = table.frame(), table.version
    table.tidy(datetime.fromtimestamp(NOW / 1e6, UTC))
    table.records.vacuum()
    assert before.count() == 40
    assert table.frame().count() == 40
    assert table.version != version, "views are made again before the old files are deleted"
    assert len(table.records.paths()) == 1
    assert pl.read_delta(str(tmp_path / "datasets/reports/data")).height == 40


def test_a_static_dataset_without_its_file_fails_its_readers_only(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    spec = DatasetSpec("shelters", "name STRING", version=1)
    load_static(warehouse, spec, RecordFile("shelters", "shelters.csv", b"name\ns1\n"))
    assert [row.name for row in StaticTable(spark, spec, warehouse).frame().collect()] == ["s1"]
    (file,) = (tmp_path / "datasets/shelters/static").glob("*.parquet")
    file.unlink()
    table = StaticTable(spark, spec, warehouse)
    assert table.problem.endswith("is missing; load it again: nearcast dataset load shelters FILE")
    with pytest.raises(Exception, match=r"dataset shelters: a file of its table .* is missing"):
        table.frame().collect()
    shutil.rmtree(tmp_path / "datasets/shelters")
    assert "is missing; load it again" in StaticTable(spark, spec, warehouse).problem


def test_a_map_column_is_refused_when_the_table_is_opened(spark: SparkSession, tmp_path: Path) -> None:
    spec = DatasetSpec("tagged", "id STRING, tags MAP<STRING, INT>", "fed.tagged")
    with pytest.raises(InputError, match=r"dataset tagged: column tags is map<.*>, which is not read from JSON"):
        StreamTable(spark, spec, Warehouse(str(tmp_path)))


def test_what_was_answered_but_not_written_is_told_after_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    table = StreamTable(spark, PLACES, warehouse, term=1)
    put(table, 1, [("a", 1, NOW)])
    rows = pa.table([["b"], [2], [NOW], [2], [NOW]], names=table.arrow.names).cast(table.arrow)
    lost = ValidatedBatch(rows, QUARANTINE.empty_table(), record_times(rows, PLACES), 2, 0, Watermarks())
    table.keep(lost)  # and the process dies before the table is written
    table._writer._pending.clear()
    following = StreamTable(spark, PLACES, warehouse, term=2)
    assert (following.position, following.notified, following.gap()) == (1, 2, (1, Watermarks()))
    following.fill(lost)
    assert following.gap() is None
    assert latest(following) == {"a": 1, "b": 2}
    # The lost driver comes back: it can do no harm.
    with pytest.raises(FencedError, match="is written by a driver of term 2; this one has 1"):
        put(table, 3, [("a", 3, NOW)])
    table._writer._pending.clear()
    assert StreamTable(spark, PLACES, warehouse, term=3).position == 2
    # A lost note of the position: what Spark has noted counts.
    (tmp_path / "datasets/places/state.json").unlink()
    again = StreamTable(spark, PLACES, warehouse, term=4)
    again.answered(9)
    assert again.gap() == (2, Watermarks())


def test_a_batch_that_is_in_the_table_is_not_added_again(spark: SparkSession, tmp_path: Path) -> None:
    table = StreamTable(spark, PLACES, Warehouse(str(tmp_path)))
    for _ in range(2):
        put(table, 1, [("a", 1, NOW), ("b", 2, NOW)])
    assert table.read(table.records.paths()).count() == 2


def test_a_large_keyed_dataset_is_a_cached_base_and_a_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_table, "_SENT_WITH_PLAN", 3)
    monkeypatch.setattr(keyed_table, "_LARGEST_DELTA", 4)
    warehouse = Warehouse(str(tmp_path))
    table = StreamTable(spark, PLACES, warehouse)
    put(table, 1, [(f"u{n}", n, NOW) for n in range(10)])
    put(table, 11, [("u1", 100, NOW + 1), ("u2", 200, NOW - 1), ("new", 300, NOW)])
    expected = {f"u{n}": n for n in range(10)} | {"u1": 100, "new": 300}
    assert latest(table) == expected
    assert pl.read_delta(str(tmp_path / "datasets/places/latest")).height == 10, "a snapshot"
    monkeypatch.setattr(dataset_tables, "_VACUUM_SECONDS", 0.0)
    table.tidy(datetime.fromtimestamp(NOW / 1e6, UTC))
    assert latest(StreamTable(spark, PLACES, warehouse)) == expected


def test_a_snapshot_of_the_keys_has_all_that_is_in_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = Warehouse(str(tmp_path))
    table = StreamTable(spark, PLACES, warehouse)
    put(table, 1, [("a", 1, NOW)])
    monkeypatch.setattr(keyed_table, "_LARGEST_DELTA", 0)
    write = table._writer.put

    def written_at_once(batch: ValidatedBatch) -> None:
        write(batch)
        table.flush()

    monkeypatch.setattr(table._writer, "put", written_at_once)
    put(table, 2, [("b", 2, NOW)])
    assert latest(StreamTable(spark, PLACES, warehouse)) == {"a": 1, "b": 2}


def test_other_programs_read_a_table_while_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    example = runpy.run_path("examples/read_dataset.py")
    spec = DatasetSpec("reports", "user STRING, n INT, at TIMESTAMP", "fed.reports", time="at")
    table, folder = StreamTable(spark, spec, Warehouse(str(tmp_path))), str(tmp_path / "datasets/reports/data")
    failed: list[Exception] = []
    seen: dict[str, list[int]] = {"polars": [], "duckdb": [], "spark": []}
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                seen["polars"].append(int(example["with_polars"](folder)["records"].sum()))
                seen["duckdb"].append(sum(row[1] for row in example["with_duckdb"](folder)))
                seen["spark"].append(example["with_spark"](spark, folder).count())
        except Exception as error:
            failed.append(error)

    put(table, 1, [("a", 1, NOW), ("b", 2, NOW - DAY)])
    reader = threading.Thread(target=read)
    reader.start()
    for n in range(3, 83, 2):
        put(table, n, [("a", n, NOW), ("b", n, NOW - DAY)])
        if n % 40 == 1:
            table.tidy(datetime.fromtimestamp(NOW / 1e6, UTC))
            table.records.vacuum()
    done.set()
    reader.join()
    assert not failed
    for program, counts in seen.items():
        assert counts == sorted(counts), program
        assert all(count % 2 == 0 and 2 <= count <= 82 for count in counts), f"{program} saw a part of a batch"
    assert int(example["with_polars"](folder)["records"].sum()) == 82


def test_columns_are_added_and_past_records_backfilled(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "w"))
    table = StreamTable(spark, PLACES, warehouse)
    put(table, 1, [("a", 1, NOW)])
    altered = replace(PLACES, schema=f"{PLACES.schema}, note STRING")
    (tmp_path / "past.jsonl").write_text(
        '{"user": "a", "n": 7, "at": "2024-01-01T00:00:00Z", "note": "old"}\n'
        '{"user": "b", "n": 8, "at": "2024-01-01T00:00:00Z", "note": "old"}\n'
    )
    assert backfill(warehouse, altered, tmp_path / "past.jsonl") == 2
    with pytest.raises(InputError, match="was put into dataset places before"):
        backfill(warehouse, altered, tmp_path / "past.jsonl")
    table = StreamTable(spark, replace(altered, version=1), warehouse)
    assert table.position == 1
    assert {(row.user, row.n, row.note) for row in table.frame().collect()} == {("a", 1, None), ("b", 8, "old")}
    assert table.between(0, 9).count() == 1, "backfilled records are new to no channel"
    with pytest.raises(InputError, match="has a key and no time column"):
        backfill(warehouse, replace(altered, time=""), tmp_path / "past.jsonl")
