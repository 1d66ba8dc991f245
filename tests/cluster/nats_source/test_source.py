"""The `nats` data source against a bare JetStream server."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.cluster.conftest import Store

from nearcast.cluster.datasets.schema import parse_ddl
from nearcast.cluster.nats_source import source
from nearcast.cluster.nats_source.source import NatsSource, NatsStreamReader

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def nats(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(NatsSource)
    return spark


def fresh(store: Store, payloads: list[bytes], **settings: Any) -> str:
    name = f"s{uuid.uuid4().hex[:8]}"
    store.make_stream(name, f"{name}.>", **settings)
    store.put(f"{name}.a", payloads, prefix=name)
    return name


def read(nats: SparkSession, store: Store, stream: str, **options: Any) -> list[Any]:
    reader = nats.read.format("nats").option("servers", store.url).option("stream", stream)
    return reader.options(**options).load().orderBy("sequence").collect()


def test_a_batch_read_gives_every_message_with_its_id_in_order(nats: SparkSession, store: Store) -> None:
    payloads = [b"p%d" % n for n in range(7001)]
    stream = fresh(store, payloads)
    rows = read(nats, store, stream, partitions=3)
    assert [bytes(row.payload) for row in rows] == payloads
    assert [row.sequence for row in rows] == list(range(1, 7002))
    assert [row.id for row in rows] == [f"{stream}-{n}" for n in range(7001)]
    assert {row.subject for row in rows} == {f"{stream}.a"}
    assert all(row.removed == 0 and row.time.year >= 2025 for row in rows)


def test_records_are_parsed_and_invalid_ones_have_an_error(nats: SparkSession, store: Store) -> None:
    good = [json.dumps({"id": f"r{n}", "n": n, "at": "2026-11-15T20:00:00Z"}).encode() for n in range(20)]
    bad = {
        3: (b"not json", "a JSON object is needed"),
        8: (b'{"id": "x", "n": "three"}', "field n is string, not number"),
        9: (b'{"n": 1}', "field id is missing"),
        15: (b"", "the payload is empty"),
        16: (b'{"id":"a"}{"id":"b"}', "one JSON object is needed"),
        17: (b'{"id":"a","at":"yesterday"}', "yesterday"),
    }
    for n, (payload, _) in bad.items():
        good[n] = payload
    stream = fresh(store, good)
    rows = read(nats, store, stream, valueSchema="id STRING NOT NULL, n INT, at TIMESTAMP")
    for n, row in enumerate(rows):
        if n in bad:
            assert row.value is None
            assert bad[n][1] in row.error
            assert bytes(row.payload) == bad[n][0]
        else:
            assert row.error is None
            assert (row.value.id, row.value.n) == (f"r{n}", n)
            assert row.payload is None


def test_removed_ranges_are_counted(nats: SparkSession, store: Store) -> None:
    stream = fresh(store, [b"x%d" % n for n in range(50)], max_msgs=30)

    async def delete_two(connection: Any) -> None:
        for sequence in (31, 32, 40):
            await connection.jsm().delete_msg(stream, sequence)

    store.run(delete_two)
    rows = read(nats, store, stream, startingSequence=1)
    assert sum(row.removed for row in rows) == 23
    assert {(row.sequence, row.removed) for row in rows if row.removed} == {(20, 20), (32, 2), (40, 1)}
    assert len([row for row in rows if not row.removed]) == 27
    with pytest.raises(Exception, match="20 messages from sequence 1 on were removed"):
        read(nats, store, stream, startingSequence=1, failOnRemoved="true")


def test_a_subject_is_filtered_at_the_store(nats: SparkSession, store: Store) -> None:
    stream = fresh(store, [b"a1", b"a2"])
    store.put(f"{stream}.b", [b"b1", b"b2"], prefix=f"{stream}b")
    rows = read(nats, store, stream, subject=f"{stream}.b")
    assert [bytes(row.payload) for row in rows] == [b"b1", b"b2"]


def test_conditions_are_pushed_down_to_the_stream(nats: SparkSession, store: Store) -> None:
    stream, other = fresh(store, [b"a%d" % n for n in range(10)]), fresh(store, [b"z"])
    store.put(f"{stream}.b", [b"b%d" % n for n in range(10)], prefix=f"{stream}b")
    options = {"servers": store.url, "stream": f"{stream},{other}", "pushFilters": "true"}

    def pushed(*conditions: Filter) -> list[tuple[str, int]]:
        """What a reader with these conditions reads, before Spark applies them."""
        source = NatsSource(options)
        reader = source.reader(parse_ddl(source.schema(), "nats"))
        assert list(reader.pushFilters(list(conditions))) == list(conditions)
        found = [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]  # type: ignore[attr-defined]
        return [(row["subject"], row["sequence"]) for row in found]

    mine = EqualTo(("stream",), stream)
    assert len(pushed()) == 21
    assert pushed(mine, GreaterThan(("sequence",), 8), LessThanOrEqual(("sequence",), 10)) == [
        (f"{stream}.a", 9),
        (f"{stream}.a", 10),
    ]
    assert pushed(In(("stream",), (stream, "unknown")), EqualTo(("sequence",), 11)) == [(f"{stream}.b", 11)]
    below = LessThan(("sequence",), 13)
    assert pushed(mine, EqualTo(("subject",), f"{stream}.b"), below) == [(f"{stream}.b", 11), (f"{stream}.b", 12)]
    assert len(pushed(mine, EqualTo(("subject",), f"{stream}.*"))) == 20  # a wildcard is no subject; Spark drops all
    assert pushed(EqualTo(("stream",), "unknown")) == []
    assert len(pushed(Not(below), GreaterThanOrEqual(("value", "sequence"), 100))) == 21  # for Spark alone

    nats.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = nats.read.format("nats").options(**options).load()
        chosen = frame.where(f"subject = '{stream}.b' AND sequence BETWEEN 12 AND 14 AND payload <> X'6232'")
        assert sorted(bytes(row.payload) for row in chosen.collect()) == [b"b1", b"b3"]
        assert frame.where(f"subject = '{stream}.*'").count() == 0
    finally:
        nats.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_source_needs_no_more_than_its_extra_installs() -> None:
    others = "('deltalake', 'sqlglot', 'scipy', 'sklearn', 'fastapi', 'nicegui')"
    script = f"import sys; sys.modules.update(dict.fromkeys({others})); import nearcast.cluster.nats_source.source"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_micro_batches_honour_the_limit_and_go_on_from_the_checkpoint(
    nats: SparkSession, store: Store, tmp_path: Path
) -> None:
    stream = fresh(store, [b"%d" % n for n in range(25)])
    sizes: list[int] = []
    seen: list[int] = []

    def keep(batch: Any, batch_id: int) -> None:
        rows = batch.collect()
        sizes.append(len(rows))
        seen.extend(int(row.payload) for row in rows)

    def run() -> None:
        reader = nats.readStream.format("nats").option("servers", store.url).option("stream", stream)
        frame = reader.option("maxRowsPerBatch", 10).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    assert sizes == [10, 10, 5]
    store.put(f"{stream}.a", [b"%d" % n for n in range(25, 31)], prefix=f"{stream}more")
    run()
    assert sizes == [10, 10, 5, 6]
    assert sorted(seen) == list(range(31))


def test_a_micro_batch_of_large_messages_has_fewer_of_them(
    nats: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks hold their parts in memory: 250,000 messages of 100 kB would be 25 GB."""
    monkeypatch.setattr(source, "_MOST_BYTES", 1_000_000)
    stream = fresh(store, [bytes(100_000)] * 30)
    reader = NatsSource({"servers": store.url, "stream": stream}).streamReader(StructType())
    assert isinstance(reader, NatsStreamReader)
    (end,) = reader.latestOffset({}, ReadMaxRows(25)).values()
    assert 8 <= end <= 10
    assert reader.latestOffset({stream: end}, ReadMaxRows(3)) == {stream: end + 3}


def test_a_replayed_batch_is_stored_once(nats: SparkSession, store: Store) -> None:
    stream = fresh(store, [])
    rows = [(f"{stream}.out", f"{stream}:{n}", f"row {n}") for n in range(500)]
    frame = nats.createDataFrame(rows, "subject STRING, id STRING, payload STRING")
    for _ in range(2):
        frame.write.format("nats").mode("append").option("servers", store.url).save()
    found = read(nats, store, stream)
    assert sorted(bytes(row.payload).decode() for row in found) == sorted(row[2] for row in rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": ""}, "option stream of the nats source is missing"),
        ({"stream": "nowhere"}, "stream nowhere does not exist"),
        ({"stream": "x", "maxRowsPerBatch": "0"}, "maxrowsperbatch of the nats source is '0'"),
        ({"stream": "x", "colour": "red"}, "option 'colour' of the nats source is unknown"),
    ],
)
def test_wrong_options_are_named(nats: SparkSession, store: Store, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        nats.read.format("nats").option("servers", store.url).options(**options).load().collect()


def test_an_empty_stream_is_an_empty_table(nats: SparkSession, store: Store) -> None:
    stream = fresh(store, [])
    assert read(nats, store, stream) == []
    assert read(nats, store, stream, valueSchema="id STRING") == []
