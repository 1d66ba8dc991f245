"""Anything on every subject that a data cluster listens on: the driver neither ends nor stops, and results go on.

The subjects are those that brokers say are subscribed to while a driver runs, so that a new one is fuzzed by itself.
NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per subject.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import add_report_channels, feed_all, subscribe_all, two_sites, until
from tests.system.fuzzing import MemoryGrowth, connections, headers, odd_concrete, payload, structs, subscribed_subjects

import nearcast
from nearcast.cluster.driver import running_driver
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import call
from nearcast.protocol.data_cluster import AdHocQuery, ChannelCheck, DataClusterState
from nearcast.site.site import run_sites

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.xdist_group("spark")
PER_SUBJECT = 60
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))
TEXTS = [
    "SELECT id FROM reports",
    "SELECT " + "int(" * 40 + "1" + ")" * 40 + " AS a FROM reports",
    "SELECT a FROM reports" + " LATERAL VIEW explode(array_repeat(1, 9000)) t AS a" * 3,
    "SELECT repeat(repeat('x', 1000), 1000) AS a FROM reports",
    "SELECT count(*) AS n FROM reports r" + "".join(f" JOIN reports r{n} ON r{n}.kind = r.kind" for n in range(11)),
    "SELEC " + "(" * 9000,
    "x" * 100_000,
    "id STRING NOT NULL",
    "id STRING" + " " * 500_000,
    "a " + "ARRAY<" * 3000 + "INT" + ">" * 3000,
    ", ".join(f"a{n} INT" for n in range(1500)),
]


def request(rng: random.Random) -> bytes:
    """What a data cluster is asked, with texts that were made to hurt, perhaps with changed bytes."""
    query, schema = rng.choice(TEXTS), rng.choice(TEXTS)
    dataset = DatasetSpec("reports", schema, rng.choice(["fed.reports", ""]))
    channel = ChannelSpec("c", query, (), rng.choice([None, 60.0]), rng.choice(["reports", ""]))
    made = bytearray(
        msgspec.json.encode(rng.choice([AdHocQuery(query[:20_000]), dataset, ChannelCheck(channel, [dataset])]))
    )
    for _ in range(rng.choice([0, 0, 1])):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


async def test_no_request_ends_or_stops_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    rng, kinds, deployment = random.Random(14), structs(), two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run") as sites:
        without = await subscribed_subjects(sites)
        await add_report_channels(deployment)
        async with running_driver(spark, deployment) as driver, nearcast.connect(deployment.cloud().url) as client:
            (results,) = await subscribe_all(client, [("of_kind", {"kind": "fire"})])
            patterns = {one for one in await subscribed_subjects(sites) - without if not one.startswith(("_", "$"))}
            fuzzed = sorted(one for one in patterns if one.startswith("api.cluster."))
            assert len(fuzzed) >= 6
            assert subjects.data_cluster("query") in fuzzed
            before, memory = await connections(sites), MemoryGrowth([psutil.Process()])
            evil = await open_connection([deployment.cloud().url], name="fuzzer")
            inbox, count = evil.new_inbox(), IN_ALL or PER_SUBJECT * len(fuzzed)
            for n in range(count):
                body = request(rng) if rng.random() < 0.5 else payload(kinds, rng)
                subject = odd_concrete(fuzzed[n % len(fuzzed)], rng)
                evil.send(subject, headers(rng), body, inbox if rng.random() < 0.5 else "")
                if n % 20 == 0:
                    await evil.flush(timeout=60)
                if n in (0, count // 2, count - 1):
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
            assert driver.position("reports") == len(results.rows)
