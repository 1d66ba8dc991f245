"""The data cluster's speed: `python -m benchmarks.cluster [source|matching|latency|sharing|memory …]`.

Each figure stands beside a baseline measured in the same run. Real servers and a local Spark are started for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
from benchmarks.measure import Figure, median_seconds, print_table, timed
from nats.js.api import AckPolicy, ConsumerConfig

import nearcast
from nearcast.cluster.admin import Admin
from nearcast.cluster.background import running_engine
from nearcast.cluster.check import check_query
from nearcast.cluster.fetch import link_to
from nearcast.cluster.matching import Matcher, RunningChannel
from nearcast.cluster.session import spark_session
from nearcast.cluster.source import NatsSource
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.cluster import ClusterSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites
from nearcast.wire.connection import open_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 500_000
REPORTS = DatasetSpec(
    "reports", "id STRING NOT NULL, kind STRING, area STRING, sent DOUBLE, lat DOUBLE, lon DOUBLE", "fed.reports"
)
SHELTERS = DatasetSpec("shelters", "area STRING NOT NULL, shelter STRING")
KIND_AND_AREA = ChannelSpec(
    "of_kind_in_area",
    "SELECT r.id, r.sent, s.shelter FROM reports r JOIN shelters s ON s.area = r.area "
    "WHERE r.kind = :kind AND r.area = :area",
    (Parameter("kind", "string"), Parameter("area", "string")),
    new="reports",
)
NEAR = ChannelSpec(
    "near",
    "SELECT r.id FROM reports r WHERE distance(r.lat, r.lon, :lat, :lon) <= :radius",
    (Parameter("lat", "double"), Parameter("lon", "double"), Parameter("radius", "double")),
    new="reports",
)


async def until(holds: Callable[[], bool], limit: float = 300.0) -> None:
    """Wait for something that no event tells of."""
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def two_sites() -> AsyncIterator[tuple[Deployment, Path]]:
    """An edge and the cloud, with stores and a warehouse in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as text:
        folder = Path(text)
        first = free_ports(20, 16_200, 16_900)
        sites = []
        for n, name in enumerate(("edge", "cloud")):
            (folder / name).mkdir()
            kind: Any = "cloud" if name == "cloud" else "edge"
            sites.append(SiteSpec(name, kind, port=first + 10 * n, store=StoreSpec(folder / name)))
        deployment = Deployment(tuple(sites), cluster=ClusterSpec(str(folder / "warehouse")))
        async with run_sites(deployment, folder / "run"):
            yield deployment, folder


@contextlib.contextmanager
def cluster_process(deployment: Deployment, folder: Path) -> Iterator[None]:
    """`nearcast cluster run` as a process of its own, as it is in earnest."""
    lines = ["[cluster]", f'warehouse = "{folder / "warehouse"}"', 'master = "local[2]"', "analyse_every = 0"]
    for site in deployment.sites:
        assert site.store is not None
        lines += ["[[site]]", f'name = "{site.name}"', f'kind = "{site.kind}"', f"port = {site.port}"]
        lines += [f'store = {{ directory = "{site.store.directory}" }}']
    (folder / "nearcast.toml").write_text("\n".join(lines))
    command = [sys.executable, "-c", "from nearcast.cli import main; main()", "cluster", "run"]
    command += ["--config", str(folder / "nearcast.toml")]
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


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
        # With acknowledgements: a store drops what it is sent faster than it can write.
        await asyncio.to_thread(link_to([url]).publish, [("bench", "", body)] * MESSAGES)
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


def reports(count: int, rng: random.Random, areas: int = 100) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{n}", "kind": f"k{rng.randrange(100)}", "area": f"a{rng.randrange(areas)}", "sent": 0.0,
            "lat": 33.6 + rng.uniform(-0.5, 0.5), "lon": -117.8 + rng.uniform(-0.5, 0.5),
        }
        for n in range(count)
    ]  # fmt: skip


def matching(spark: SparkSession) -> Iterator[Figure]:
    """One micro-batch against very many subscriptions, in Spark, in DuckDB, and one query for each subscription."""
    import duckdb

    rng = random.Random(1)
    matcher = Matcher(spark)
    batch = pa.Table.from_pylist(reports(10_000, rng))
    batch = batch.append_column("_sequence", pa.array(range(10_000), pa.int64()))
    batch = batch.append_column("_arrived", pa.array([0] * 10_000, pa.timestamp("us", "UTC")))
    shelters = pa.table({"area": [f"a{n}" for n in range(100)], "shelter": [f"s{n}" for n in range(100)]})
    spark.createDataFrame(batch).hint("broadcast").createOrReplaceTempView("_bench_reports")
    spark.createDataFrame(shelters).createOrReplaceTempView("_bench_shelters")
    views = {"reports": "_bench_reports", "shelters": "_bench_shelters"}
    datasets = {"reports": REPORTS, "shelters": SHELTERS}
    equal = [{"kind": f"k{n % 100}", "area": f"a{n // 100 % 100}"} for n in range(10_000)]
    # 100,000 different rows need a third value; a key is made of all of them, the query uses two.
    many: dict[str, dict[str, Any]] = {f"{n:06d}": equal[n % 10_000] for n in range(100_000)}
    places = [
        {"lat": 33.6 + rng.uniform(-0.5, 0.5), "lon": -117.8 + rng.uniform(-0.5, 0.5), "radius": 500.0}
        for _ in range(100_000)
    ]
    near: dict[str, dict[str, Any]] = {f"{n:06d}": place for n, place in enumerate(places)}
    duck = duckdb.connect()
    duck.execute("SET threads = 2")
    duck.register("reports", batch)
    duck.register("shelters", shelters)
    cases = (
        (KIND_AND_AREA, many, "SELECT p.key, r.id, r.sent, s.shelter FROM subs p JOIN reports r ON r.kind = p.kind "
         "AND r.area = p.area JOIN shelters s ON s.area = r.area"),
        (NEAR, near, "SELECT p.key, r.id FROM subs p JOIN reports r ON r.cy BETWEEN p.cy - 1 AND p.cy + 1 "
         "AND r.cx BETWEEN p.cx - 1 AND p.cx + 1 WHERE 2 * 6371008.8 * asin(sqrt(pow(sin(radians(r.lat - p.lat) / 2), "
         "2) + cos(radians(p.lat)) * cos(radians(r.lat)) * pow(sin(radians(r.lon - p.lon) / 2), 2))) <= p.radius"),
    )  # fmt: skip
    for spec, rows, text in cases:
        channel = RunningChannel(check_query(spark, spec, datasets))
        matcher.load(channel, rows)
        found = matcher.match([channel], views)
        seconds = median_seconds(partial(matcher.match, [channel], views))
        subs = pa.Table.from_pylist([{"key": key, **row} for key, row in rows.items()])
        duck.register("plain_subs", subs)
        if spec is NEAR:
            cell = "*, floor(lat / 0.005)::INT AS cy, floor(lon / 0.0061)::INT AS cx"
            spread = "UNNEST([-1, 0, 1])"
            duck.execute("CREATE OR REPLACE TABLE near_subs AS SELECT *, floor(lat / 0.005)::INT AS cy, "
                         "floor(lon / 0.0061)::INT AS cx FROM plain_subs")  # fmt: skip
            text = (
                f"WITH a AS (SELECT *, cy + {spread} AS ey FROM (SELECT {cell} FROM reports)), "
                f"b AS (SELECT *, cx + {spread} AS ex FROM a) "
                "SELECT p.key, r.id FROM near_subs p JOIN b r ON r.ey = p.cy AND r.ex = p.cx "
                + text[text.index("WHERE") :]
            )
        else:
            duck.execute("CREATE OR REPLACE TABLE subs AS SELECT * FROM plain_subs")
        other = _ask(duck, text)
        assert other.num_rows == found.num_rows, (other.num_rows, found.num_rows)
        baseline = median_seconds(partial(_ask, duck, text))
        what = "a radius" if spec is NEAR else "two equalities"
        yield Figure(
            f"100,000 subscriptions × 10,000 reports, {what}: {found.num_rows:,} matches, rows as JSON",
            f"{seconds * 1000:,.0f} ms", f"{baseline * 1000:,.0f} ms, DuckDB", baseline / seconds, "≥ 0.5",
        )  # fmt: skip
        small = dict(list(rows.items())[:20])
        start = time.perf_counter()
        for key, row in small.items():
            matcher.load(channel, {key: row})
            matcher.match([channel], views)
        each = (time.perf_counter() - start) / len(small)
        yield Figure(
            f"the same, one query for each subscription (from {len(small)})",
            f"{seconds * 1000:,.0f} ms", f"{each * 100_000:,.0f} s", each * 100_000 / seconds, "≥ 1,000",
        )  # fmt: skip


def _ask(duck: Any, text: str) -> Any:
    return duck.execute(text).to_arrow_table()


async def latency_at(
    client: nearcast.Client, rate: int, seconds: float, inbox: list[float], rng: random.Random
) -> list[float]:
    """Milliseconds from publication to notification at a rate."""
    inbox.clear()
    start, sent = time.perf_counter(), 0
    pending: set[asyncio.Task[Any]] = set()
    while (now := time.perf_counter() - start) < seconds:
        for record in reports(min(int(now * rate) - sent, 500), rng):
            task = asyncio.create_task(client.feed("reports", {**record, "sent": time.time()}, timeout=60))
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*pending)
    await until(lambda: len(inbox) >= sent)
    assert len(inbox) == sent, f"{sent} reports, {len(inbox)} notifications"
    return sorted(inbox)


def latency(spark: SparkSession) -> Iterator[Figure]:
    """Publish → enriched notification with 10,000 subscriptions: validation, enrichment and keeping included."""
    rng = random.Random(2)
    inbox: list[float] = []

    def took(message: nearcast.Message) -> None:
        now = time.time()
        inbox.extend((now - row["sent"]) * 1000 for row in message.data["rows"])

    async def run() -> list[Figure]:
        found = []
        async with two_sites() as (deployment, folder):
            office = await asyncio.to_thread(Admin, deployment)
            await asyncio.to_thread(office.add_dataset, REPORTS, spark)
            await asyncio.to_thread(office.add_dataset, SHELTERS, spark)
            (folder / "s.csv").write_text("area,shelter\n" + "".join(f"a{n},s{n}\n" for n in range(100)))
            await asyncio.to_thread(office.load_dataset, "shelters", folder / "s.csv", spark)
            await asyncio.to_thread(office.add_channel, KIND_AND_AREA, spark)
            spark.stop()  # the data cluster has its own; two would only be in each other's way
            async with nearcast.connect(deployment.sites[0].url) as client:
                values = [{"kind": f"k{n % 100}", "area": f"a{n // 100}"} for n in range(10_000)]
                for start in range(0, 10_000, 500):
                    some = values[start : start + 500]
                    waiting = [client.subscribe(channel="of_kind_in_area", params=v, callback=took) for v in some]
                    await asyncio.gather(*(subscription._start() for subscription in waiting))
                with cluster_process(deployment, folder):
                    await latency_at(client, 200, 30, inbox, rng)  # warm the compilers
                    by_rate = {rate: await latency_at(client, rate, 20, inbox, rng) for rate in (100, 1000, 5000)}
                for rate, ms in by_rate.items():
                    p50, p90, p99 = (ms[int(len(ms) * q)] for q in (0.5, 0.9, 0.99))
                    before = {100: 193, 1000: 196, 5000: 306}[rate]
                    found.append(
                        Figure(
                            f"publish → notification at {rate:,} reports/s, p50 / p90 / p99",
                            f"{p50:.0f} / {p90:.0f} / {p99:.0f} ms",
                            f"p90 {before} ms, a prototype on idle cores",
                            before / p90,
                            "≥ 1.0",
                        )
                    )
        return found

    yield from asyncio.run(run())


def sharing(spark: SparkSession) -> Iterator[Figure]:
    """Bytes from the cloud to a site while more and more of its clients ask for the same."""

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
                        connection = client._live()
                        for _ in range(subscribers):
                            await connection.attach("chn.shared.key", lambda *_: None)
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


def memory(spark: SparkSession, minutes: float = 3.0) -> Iterator[Figure]:
    """The driver's memory (this process, Java included) while records stream in as fast as they are taken."""

    def megabytes() -> float:
        me = psutil.Process()
        total: int = me.memory_info().rss
        for child in me.children(recursive=True):
            if "java" in child.name():
                total += child.memory_info().rss
        return total / 2**20

    async def run() -> tuple[list[float], int]:
        rng, seen = random.Random(3), []
        async with two_sites() as (deployment, _):
            office = await asyncio.to_thread(Admin, deployment)
            await asyncio.to_thread(office.add_dataset, REPORTS, spark)
            async with running_engine(spark, deployment) as engine, nearcast.connect(deployment.sites[0].url) as client:
                end, fed = time.monotonic() + 60 * minutes, 0
                next_look = time.monotonic() + 20
                while time.monotonic() < end:
                    await asyncio.gather(*(client.feed("reports", r, timeout=60) for r in reports(1000, rng)))
                    fed += 1000
                    await until(lambda fed=fed: fed - engine.position("reports") < 20_000)  # type: ignore[misc]
                    if time.monotonic() > next_look:
                        seen.append(megabytes())
                        next_look += 10
                return seen, fed

    seen, fed = asyncio.run(run())
    third = max(len(seen) // 3, 1)
    first, last = statistics.median(seen[:third]), statistics.median(seen[-third:])
    yield Figure(
        f"driver's memory, last third of {minutes:g} minutes over the first ({fed:,} records)",
        f"{last:,.0f} MB", f"{first:,.0f} MB", last / first, "about 1",
    )  # fmt: skip


# `latency` ends the session that the others share, so it is the last.
PARTS = {"source": source, "matching": matching, "sharing": sharing, "memory": memory, "latency": latency}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    spark = spark_session("nearcast benchmark", master="local[2]")
    for name in wanted:
        print_table(name, PARTS[name](spark))
    spark.stop()


if __name__ == "__main__":
    main()
