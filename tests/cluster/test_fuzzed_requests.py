"""Anything on every subject that a data cluster listens on: the driver neither ends nor stops, and results go on.

The subjects are those that brokers say are subscribed to while a driver runs, so that a new one is fuzzed by itself.
NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per subject, and waits for more answers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tests.cluster.harness import add_report_channels, feed_all, subscribe_all, two_sites, until
from tests.system.fuzzing import MemoryGrowth, connections, headers, odd_concrete, payload, structs, subscribed_subjects

import nearcast
from nearcast.cluster.driver import running_driver
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.rpc import call
from nearcast.protocol.data_cluster import (
    AdHocQuery,
    ChannelCheck,
    ChannelReplay,
    ChannelTrial,
    ColumnsCheck,
    DataClusterState,
    DatasetLoad,
    QuarantineRequest,
    RecordFile,
)
from nearcast.site.site import Site, run_sites

psutil = pytest.importorskip("psutil")
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
ANSWERED, PER_SUBJECT = 5, 15
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))
QUERIES = [
    "SELECT id FROM reports WHERE kind = :kind",
    "SELECT id, count(*) AS n FROM reports GROUP BY id",
    "SELECT " + "int(" * 40 + "1" + ")" * 40 + " AS a FROM reports",
    "SELECT a FROM reports" + " LATERAL VIEW explode(array_repeat(1, 9000)) t AS a" * 3,
    "SELECT count(*) AS n FROM reports r" + "".join(f" JOIN reports r{n} ON r{n}.kind = r.kind" for n in range(11)),
    "SELECT id FROM reports WHERE id RLIKE '(a+)+$'",
    "SELECT id FROM reports ORDER BY 9999999999999999999",
    "SELECT '\x00' AS a, `\x00` FROM reports",
    "SELEC " + "(" * 9000,
    "x" * 100_000,
    "",
]
SCHEMAS = [
    "id STRING NOT NULL, kind STRING",
    "id STRING",
    "id STRING" + " " * 500_000,
    "id DECIMAL(99, 99)",
    "a " + "ARRAY<" * 2500 + "INT" + ">" * 2500,
    "`" + ">" * 2000 + "` INT, a " + "ARRAY<" * 2500,
    ", ".join(f"a{n} INT" for n in range(1500)),
    "",
]
FILES = {
    "x.csv": b"id,kind\na,fire\n",
    "x.jsonl": b'{"id":"a","kind":"fire"}\n',
    "../x": b"",
    "x.csv.gz": b"\x1f\x8b",
}


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["a"] * 50, "kind": ["fire"] * 50}), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def request(subject: str, rng: random.Random) -> bytes:
    """What a data cluster is asked on a subject, with texts that were made to hurt, perhaps with changed bytes."""
    rarely = rng.random() < 0.3
    schema = rng.choice(SCHEMAS) if rarely else SCHEMAS[0]
    dataset = DatasetSpec(rng.choice(["reports", "reports", "../x"]), schema, rng.choice(["fed.reports", ""]))
    kind = (Parameter("kind", rng.choice(["string", "int"])),)
    channel = ChannelSpec("c", rng.choice(QUERIES), rng.choice([(), kind]), rng.choice([None, 60.0]))
    values: dict[str, Any] = rng.choice([{}, {"kind": "fire"}, {"kind": 7}, {"kind": [[[]]]}])
    name, content = rng.choice([*FILES.items(), ("x.parquet", changed(parquet(), rng))])
    file = RecordFile(rng.choice(["reports", "x"]), name, content)
    made: Any = {
        "query": AdHocQuery(channel.query[:20_000], rng.choice([1, 1000, 1001])),
        "quarantine": QuarantineRequest(rng.choice(["reports", "../x"]), 5),
        "check-dataset": dataset,
        "check-columns": ColumnsCheck(dataset, rng.choice(SCHEMAS)[:20_000]),
        "load-dataset": DatasetLoad(dataset, file),
        "test-channel": ChannelTrial(channel, [dataset], [file], values),
        "replay-channel": ChannelReplay(channel, [dataset], rng.choice([0.0, 2e11]), rng.choice([None, values])),
    }.get(subject.rpartition(".")[2], ChannelCheck(channel, [dataset]))
    encoded: bytes = msgspec.json.encode(made)
    return changed(encoded, rng) if rarely else encoded


def changed(content: bytes, rng: random.Random) -> bytes:
    """With one byte that is another."""
    made = bytearray(content)
    made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


async def cluster_subjects(sites: Mapping[str, Site], without: set[str]) -> list[str]:
    """What a driver that has just started listens on, when it has begun to answer. Clients hear results (`chn.`)."""
    found: set[str] = set()
    while subjects.data_cluster("state") not in found:
        found = await subscribed_subjects(sites) - without
        await asyncio.sleep(0.1)
    return sorted(one for one in found if not one.startswith(("_", "$", "chn.")))


async def answered_codes(connection: Connection, fuzzed: list[str], rng: random.Random) -> Counter[str]:
    """Of requests one after the other; of many at once most are told that others wait. All that fails is a mistake of
    who asked (400), unless a slow machine needs longer than a request may take."""
    codes: Counter[str] = Counter()
    for subject in fuzzed * (ANSWERED + IN_ALL // 500):
        body = request(subject, rng)
        answer = await connection.request(subject, body, timeout=130)
        found = answer.headers or {}
        codes[found.get(ERROR_CODE_HEADER, "done")] += 1
        slow = found.get(ERROR_HEADER, "").startswith(("stopped after", "the query was stopped after", "no answer"))
        assert slow or found.get(ERROR_CODE_HEADER) != "500", (subject, body[:500], found)
    return codes


async def test_no_request_ends_or_stops_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    rng, kinds, deployment = random.Random(14), structs(), two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run") as sites:
        without = await subscribed_subjects(sites)
        await add_report_channels(deployment)
        async with running_driver(spark, deployment) as driver, nearcast.connect(deployment.cloud().url) as client:
            (results,) = await subscribe_all(client, [("of_kind", {"kind": "fire"})])
            fuzzed = await cluster_subjects(sites, without)
            assert len(fuzzed) >= 10
            before, memory = await connections(sites), MemoryGrowth([psutil.Process()])
            evil = await open_connection([deployment.cloud().url], name="fuzzer")
            codes = await answered_codes(evil, fuzzed, rng)
            assert min(codes["done"], codes["400"]) > 0, codes
            inbox, count = evil.new_inbox(), IN_ALL or PER_SUBJECT * len(fuzzed)
            for n in range(count):
                subject = fuzzed[n % len(fuzzed)]
                body = request(subject, rng) if rng.random() < 0.5 else payload(kinds, rng)
                evil.send(odd_concrete(subject, rng), headers(rng), body, rng.choice([inbox, ""]))
                if n in (0, count // 2, count - 1):
                    await evil.flush(timeout=60)
                    memory.note()
                    fed = len(results.rows)
                    await feed_all(client, "reports", [{"id": f"{n}-{m}", "kind": "fire"} for m in range(5)])
                    await until(lambda fed=fed: len(results.rows) == fed + 5, "results")  # type: ignore[misc]
            state = await call(evil, subjects.data_cluster("state"), None, DataClusterState, timeout=60)
            assert [producer.problem for producer in state.producers] == [""] * len(state.producers)
            assert before - await connections(sites) == set()
            await evil.close()
            grown = memory.of_last_part()
            assert max(grown.values()) < 256, grown
            await until(lambda: driver.position("reports") == len(results.rows), "the records in the table")


async def test_a_trial_of_few_records_that_make_gigabytes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The data cluster's JVM ended: its memory was gone before the size of the answer was looked at."""
    deployment = two_sites(tmp_path)
    large = ChannelSpec("c", "SELECT repeat(repeat('x', 1000), 1000) AS a FROM reports", (), 60.0)
    records = RecordFile("reports", "x.jsonl", b'{"id":"a","kind":"fire"}\n' * 900)
    trial = ChannelTrial(large, [DatasetSpec("reports", SCHEMAS[0], "fed.reports")], [records], {})
    async with run_sites(deployment, tmp_path / "run") as sites:
        without = await subscribed_subjects(sites)
        async with running_driver(spark, deployment):
            await cluster_subjects(sites, without)
            connection = await open_connection([deployment.cloud().url], name="test")
            with pytest.raises(InputError, match="the trial has 900 rows of 900007200 bytes; 500000 are allowed"):
                await call(connection, subjects.data_cluster("test-channel"), trial, object, timeout=130)
            await connection.close()


def test_a_task_that_runs_out_of_memory_does_not_end_spark(spark: SparkSession) -> None:
    """Of a local master: it would end the JVM, and the driver with it."""
    with pytest.raises(Py4JJavaError, match="OutOfMemoryException"):
        spark.sql("SELECT id, repeat('x', 1000000) AS x FROM range(0, 3000, 1, 2)").toArrow()
    assert spark.sql("SELECT 7 AS n").collect()[0]["n"] == 7
