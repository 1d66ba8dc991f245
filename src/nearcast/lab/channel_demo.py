"""The data cluster in the demo: emergencies are reported, subscribers near are notified with the nearest shelter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import nearcast
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import running_driver
from nearcast.cluster.spark_session import spark_session
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.cluster import ClusterSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.errors import NearcastError
from nearcast.site.site import run_sites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ChannelDemoResult", "run_channel_demo"]

_KINDS = ("fire", "flood", "quake", "storm")
_AREAS = 20
_DATASETS = (
    DatasetSpec("reports", "id STRING NOT NULL, kind STRING, area INT, sent DOUBLE", "fed.reports"),
    DatasetSpec("shelters", "area INT NOT NULL, shelter STRING"),
)
_CHANNEL = ChannelSpec(
    "emergencies",
    "SELECT r.id, r.kind, r.sent, s.shelter FROM reports r JOIN shelters s ON s.area = r.area "
    "WHERE r.kind = :kind AND r.area = :area",
    (Parameter("kind", "string"), Parameter("area", "int")),
    new="reports",
)


@dataclass
class ChannelDemoResult:
    """Counts of one run. `distinct` subscriptions are rows of the data cluster's table."""

    subscribers: int
    distinct: int = 0
    reports: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    latencies_ms: list[float] = field(default_factory=list)


async def run_channel_demo(
    folder: Path,
    first_port: int,
    subscribers: int,
    seconds: float,
    seed: int,
    tick: Callable[[float], None],
    session: SparkSession | None = None,
) -> ChannelDemoResult:
    """Two sites and a data cluster in this process; every notification is counted. session: a running one to use."""
    spark = session if session is not None else await asyncio.to_thread(spark_session, "nearcast demo")
    deployment, rng = _deployment(folder, first_port), random.Random(seed)
    wanted = [(rng.choice(_KINDS), rng.randrange(_AREAS)) for _ in range(subscribers)]
    result, seen = ChannelDemoResult(subscribers, len(set(wanted))), Counter[tuple[int, str]]()
    try:
        async with run_sites(deployment, folder / "run"):
            await asyncio.to_thread(_prepare, deployment, folder, spark)
            async with running_driver(spark, deployment) as driver, contextlib.AsyncExitStack() as stack:
                homes = [await stack.enter_async_context(nearcast.connect(site.url)) for site in deployment.sites]
                for n, (kind, area) in enumerate(wanted):
                    await homes[n % 2].subscribe(
                        channel="emergencies", params={"kind": kind, "area": area}, callback=_taker(n, seen, result)
                    )
                await _until(lambda: driver.subscribed().get("emergencies") == result.distinct, "subscriptions")
                # Spark compiles during its first batches: warm it up with reports that nobody subscribes to.
                for n in range(1, 4):
                    await homes[0].feed("reports", {"id": f"warm{n}", "kind": "none", "area": 0, "sent": 0.0})
                    await _until(lambda n=n: driver.position("reports") >= n, "first reports")  # type: ignore[misc]
                start = time.monotonic()
                while (elapsed := time.monotonic() - start) < seconds:
                    kind, area = rng.choice(_KINDS), rng.randrange(_AREAS)
                    record = {"id": f"r{result.reports}", "kind": kind, "area": area, "sent": time.time()}
                    await homes[0].feed("reports", record)
                    result.reports += 1
                    result.expected += wanted.count((kind, area))
                    tick(elapsed / seconds)
                    await asyncio.sleep(0.02)
                await _until(lambda: len(seen) >= result.expected, "notifications")
    finally:
        if session is None:
            spark.stop()
    result.received, result.duplicated = len(seen), sum(seen.values()) - len(seen)
    return result


def _taker(
    number: int, seen: Counter[tuple[int, str]], result: ChannelDemoResult
) -> Callable[[nearcast.Message], None]:
    def take(message: nearcast.Message) -> None:
        for row in message.data["rows"]:
            seen[number, row["id"]] += 1
            result.latencies_ms.append((time.time() - row["sent"]) * 1000)

    return take


def _deployment(folder: Path, first_port: int) -> Deployment:
    sites = []
    for n, name in enumerate(("harbour", "cloud")):
        (folder / "stores" / name).mkdir(parents=True)
        store = StoreSpec(folder / "stores" / name)
        sites.append(SiteSpec(name, "cloud" if name == "cloud" else "edge", port=first_port + 10 * n, store=store))
    return Deployment(tuple(sites), cluster=ClusterSpec(str(folder / "warehouse"), analyse_every=0))


def _prepare(deployment: Deployment, folder: Path, spark: SparkSession) -> None:
    admin = Admin(deployment)
    for dataset in _DATASETS:
        admin.add_dataset(dataset, spark)
    rows = [json.dumps({"area": area, "shelter": f"shelter {area}"}) for area in range(_AREAS)]
    (folder / "shelters.jsonl").write_text("\n".join(rows))
    admin.load_dataset("shelters", folder / "shelters.jsonl", spark)
    admin.add_channel(_CHANNEL, spark)


async def _until(holds: Callable[[], bool], what: str, limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise NearcastError(f"the {what} did not all come within {limit:g} s")
        await asyncio.sleep(0.05)
