"""Plans that are kept for long micro-batches read the files of each batch, and never those of another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from nearcast.cluster.channels.file_input import FileInput, columns_read
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.reusable_plan import is_reusable
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.channels.statement import Statement
from nearcast.cluster.datasets.dataset_tables import StreamTable, WrittenRecords
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = StructType().add("n", "long").add("Größe `1`", "string").add("unread", "string")
REPORTS = DatasetSpec("reports", "id STRING, kind STRING, severity INT, note STRING", "fed.reports")


def written(folder: Path, *tables: pa.Table) -> WrittenRecords:
    paths = []
    for table in tables:
        paths.append(folder / f"{len(list(folder.iterdir()))}.parquet")
        pq.write_table(table, paths[-1])
    sizes = tuple(path.stat().st_size for path in paths)
    return WrittenRecords(tuple(map(str, paths)), sizes, sum(table.num_rows for table in tables))


def test_each_evaluation_of_a_frame_gives_the_records_of_the_current_files(spark: SparkSession, tmp_path: Path) -> None:
    def files(*counts: int) -> WrittenRecords:
        tables = ({"n": range(n), "Größe `1`": ["x"] * n, "unread": ["y"] * n} for n in counts)
        return written(tmp_path, *(pa.table(table, pa.schema([("n", pa.int64()), *texts])) for table in tables))

    texts = [("Größe `1`", pa.string()), ("unread", pa.string())]
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    records = FileInput(spark, SCHEMA, files(2, 3, 1), columns_read([Statement("SELECT n", "", "", "")], SCHEMA))
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == before
    assert not records.holds(files(1, 1, 1, 1))
    for source, partitions in ((records.spread, 3), (records.single, 1)):
        frame = source.selectExpr("n", "`Größe ``1```", "unread")
        assert is_reusable(frame)
        assert frame.rdd.getNumPartitions() == partitions
        for counts in ((2, 3, 1), (7,), (200_000, 1), (1, 0, 4), (5, 5, 5)):
            batch = files(*counts)
            assert records.holds(batch)
            records.put(batch)
            found = frame.toArrow()
            assert sorted(found["n"].to_pylist()) == sorted(n for count in counts for n in range(count))
            assert set(found["Größe `1`"].to_pylist()) == {"x"}
            assert set(found["unread"].to_pylist()) == {None}, "no statement reads it"
    assert not is_reusable(records.spread.groupBy("n").count())
    assert is_reusable(records.spread.join(spark.range(9).withColumnRenamed("id", "n").hint("broadcast"), "n"))


def test_columns_that_a_statement_may_read() -> None:
    def read(template: str, **more: object) -> list[str]:
        return columns_read([Statement(template, "nc__", "k", "", **more)], schema)  # type: ignore[arg-type]

    schema = StructType().add("id", "string").add("Lat", "double").add("größe", "long").add("a`b", "long")
    always = ["größe", "a`b"]
    assert read("SELECT r.ID FROM r") == ["id", *always]
    assert read("SELECT 1 FROM r", cells=(("nc__cells0", "r.lat", "r.lon", "x"),)) == ["Lat", *always]
    for everything in ("SELECT * FROM r", "SELECT r.id FROM r NATURAL JOIN s", "SELECT count(*) FROM r"):
        assert read(everything) == schema.names


def test_long_batches_have_the_same_results_by_a_kept_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Batch after batch of any number of files, with subscriptions that come and go, a fold, and records that fail."""
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind AND 10 / r.severity > :least"
    spec = ChannelSpec("c", query, (Parameter("kind", "string"), Parameter("least", "int")), None, "reports")
    table, views, matcher = StreamTable(spark, REPORTS, Warehouse(str(tmp_path))), DatasetViews(spark), Matcher(spark)
    channel = RunningChannel(validate_query(spark, spec, {"reports": REPORTS}))
    folder = tmp_path / "files"
    folder.mkdir()

    def matched(*files: list[tuple[str, str, int]]) -> list[tuple[str, str]]:
        rows = [[{"id": i, "kind": k, "severity": s, "_sequence": n} for n, (i, k, s) in enumerate(f)] for f in files]
        batch = written(folder, *(pa.Table.from_pylist(some, table.arrow) for some in rows))
        found = matcher.match_new([channel], table, batch, views).to_pylist()
        return sorted((row["key"], row["row"]) for row in found)

    def rows(key: str, *names: str) -> list[tuple[str, str]]:
        return [(key, f'{{"id":"{name}"}}') for name in names]

    matcher.load(channel, {"1": {"kind": "fire", "least": 0}, "2": {"kind": "fire", "least": 4}})
    assert channel.shape is not None
    for n in range(3):
        assert matched([(f"a{n}", "fire", 5)], [(f"b{n}", "flood", 1)]) == rows("1", f"a{n}")
        matcher._fold(channel.shape)
    plan = matcher.kept.plans["reports", True]
    assert list(plan.bases) == [channel.shape]
    assert matched([("d", "fire", 1)]) == [*rows("1", "d"), *rows("2", "d")]
    assert matched([("e", "flood", 1)], [("f", "fire", 5)]) == rows("1", "f")
    matcher.change(channel, {"3": {"kind": "flood", "least": 0}}, ["2"])
    assert matched([("g", "fire", 1)], [("h", "flood", 5)]) == [*rows("1", "g"), *rows("3", "h")]
    assert matcher.kept.plans["reports", True] is plan, "neither other files nor a new subscription need a new plan"
    assert matched(*([(f"i{n}", "flood", 1)] for n in range(5))) == rows("3", *(f"i{n}" for n in range(5)))
    assert matcher.kept.plans["reports", True] is not plan, "more files do"
    matcher.change(channel, {"4": {"kind": "fire", "least": 1}}, ["3"])
    matcher._fold(channel.shape)
    assert matched([("j", "fire", 9)]) == [*rows("1", "j"), *rows("4", "j")]
    failing = [("v", "fire", 5)], [("y", "fire", 5), ("z", "fire", 0)]
    assert matched(*failing) == [*rows("1", "v", "y"), *rows("4", "v", "y")]
    assert [(fault.channel, fault.record) for fault in matcher.faults.take()] == [("c", 1)], "only z fails"
    assert matched([("w", "fire", 9)]) == [*rows("1", "w"), *rows("4", "w")]
