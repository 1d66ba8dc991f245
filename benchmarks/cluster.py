"""The data cluster's speed: `python -m benchmarks.cluster [PART …]`.

Parts: source, ingest, matching, subscriptions, keyed, workers, latency, sharing, memory, memory:MINUTES.

Each figure stands beside a baseline measured in the same run. Real servers and a local Spark are started for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.cluster_growth import keyed, workers
from benchmarks.cluster_ingest import ingest
from benchmarks.cluster_matching import matching
from benchmarks.cluster_running import latency, memory
from benchmarks.cluster_subscriptions import subscriptions
from benchmarks.cluster_workload import REPORTS, two_sites
from benchmarks.measure import Figure, print_table, timed
from nats.js.api import AckPolicy, ConsumerConfig

import nearcast
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.cluster.spark_session import spark_session
from nearcast.nats.connection import open_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 500_000


def source(spark: SparkSession) -> Iterator[Figure]:
    """Read JetStream into Spark, and with bare nats-py in one process."""
    payload = {"id": "r0000000", "kind": "fire", "area": "north", "sent": 1.5, "lat": 33.6, "lon": -117.8}
    filler = 256 - len(json.dumps({**payload, "note": ""}))
    body = json.dumps({**payload, "note": "x" * filler}).encode()

    async def bare(url: str) -> float:
        connection = await open_connection([url], name="bare")
        unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pull = await connection.jetstream().pull_subscribe("bench", stream="bench", config=unacknowledged)
        start, seen = time.perf_counter(), 0
        while seen < MESSAGES:
            for message in await pull.fetch(min(5000, MESSAGES - seen), timeout=30):
                json.loads(message.data)
                seen += 1
        seconds = time.perf_counter() - start
        await connection.close()
        return seconds

    async def fill(url: str) -> None:
        connection = await open_connection([url], name="fill")
        await connection.jetstream().add_stream(name="bench", subjects=["bench"], allow_direct=True)
        # With acknowledgements: a store drops messages that arrive faster than it writes.
        await asyncio.to_thread(connection_to([url]).publish, [("bench", "", body)] * MESSAGES)
        await connection.close()

    async def run() -> tuple[float, float]:
        async with two_sites() as (deployment, _):
            url = deployment.cloud().store_url
            await fill(url)
            spark.dataSource.register(NatsSource)
            reader = spark.read.format("nats").option("servers", url).option("stream", "bench").option("partitions", 2)
            frame = reader.option("valueSchema", REPORTS.schema).load().select("sequence", "value.*")
            best = []
            for _ in range(3):  # the first one starts the workers
                _, seconds = await asyncio.to_thread(timed, lambda: frame.write.format("noop").mode("overwrite").save())
                best.append(seconds)
            return min(best), await bare(url)

    spark_seconds, bare_seconds = asyncio.run(run())
    rate, bare_rate = MESSAGES / spark_seconds, MESSAGES / bare_seconds
    yield Figure(
        f"read {MESSAGES:,} messages of 256 bytes into Spark, parsed",
        f"{rate:,.0f} rows/s", f"{bare_rate:,.0f} rows/s, nats-py", rate / bare_rate, "≥ 1.0",
    )  # fmt: skip


def sharing(spark: SparkSession) -> Iterator[Figure]:
    """Bytes from the cloud to a site with more and more equal subscriptions."""

    def gateway_bytes(port: int) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/gatewayz") as answer:
            gateways = json.load(answer)["outbound_gateways"]
        return sum(int(gateway["connection"]["out_bytes"]) for gateway in gateways.values())

    async def run() -> list[Figure]:
        async with two_sites() as (deployment, _):
            cloud = deployment.cloud()
            found, first = [], 0
            publisher = await open_connection([cloud.url], name="results")
            try:
                for subscribers in (1, 10, 100, 1000):
                    async with nearcast.connect(deployment.sites[0].url) as client:
                        connection = client.connection
                        for _ in range(subscribers):
                            await connection.subscribe_raw("chn.shared.key", lambda *_: None)
                        await connection.flush()
                        await asyncio.sleep(0.5)
                        before = gateway_bytes(cloud.monitor_port)
                        for _ in range(200):
                            publisher.send("chn.shared.key", b"", b"x" * 1000)
                        await publisher.flush()
                        await asyncio.sleep(0.5)
                        sent = gateway_bytes(cloud.monitor_port) - before
                        first = first or sent
                        found.append(
                            Figure(
                                f"200 results of 1 kB to a site with {subscribers:,} equal subscriptions",
                                f"{sent:,} bytes",
                                f"{first:,} bytes with 1",
                                sent / first,
                                "1.0",
                            )
                        )
            finally:
                await publisher.close()
            return found

    yield from asyncio.run(run())


# `memory`, `latency` and `workers` end the session that the others share; the next part starts another.
PARTS = {
    "source": source,
    "ingest": ingest,
    "matching": matching,
    "subscriptions": subscriptions,
    "keyed": keyed,
    "sharing": sharing,
    "workers": workers,
    "memory": memory,
    "latency": latency,
}


def main() -> None:
    for part in sys.argv[1:] or list(PARTS):
        name, _, minutes = part.partition(":")
        spark = spark_session("nearcast benchmark", master="local[2]", memory="4g")
        print_table(part, memory(spark, float(minutes)) if minutes else PARTS[name](spark))
    spark.stop()


if __name__ == "__main__":
    main()
