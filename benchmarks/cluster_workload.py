"""What the data cluster's benchmarks share: the datasets and channels, two sites, and `nearcast cluster run`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.cluster.admin import Admin
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import ClusterSpec, Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def reports(count: int, rng: random.Random, areas: int = 100) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{n}", "kind": f"k{rng.randrange(100)}", "area": f"a{rng.randrange(areas)}", "sent": 0.0,
            "lat": 33.6 + rng.uniform(-0.5, 0.5), "lon": -117.8 + rng.uniform(-0.5, 0.5),
        }
        for n in range(count)
    ]  # fmt: skip


async def add_channel(deployment: Deployment, folder: Path, spark: SparkSession) -> None:
    """The datasets, a shelter for each area, and the channel with two equalities."""

    def add() -> None:
        admin = Admin(deployment)
        for dataset in (REPORTS, SHELTERS):
            admin.add_dataset(dataset, spark)
        (folder / "s.csv").write_text("area,shelter\n" + "".join(f"a{n},s{n}\n" for n in range(100)))
        admin.load_dataset("shelters", folder / "s.csv", spark)
        admin.add_channel(KIND_AND_AREA, spark)

    await asyncio.to_thread(add)


async def until(holds: Callable[[], bool], limit: float = 300.0) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def two_sites() -> AsyncIterator[tuple[Deployment, Path]]:
    """An edge and the cloud, with stores and a warehouse in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as text:
        folder = Path(text)
        first = free_ports(20)
        sites = []
        for n, name in enumerate(("edge", "cloud")):
            (folder / name).mkdir()
            kind: Any = "cloud" if name == "cloud" else "edge"
            sites.append(SiteSpec(name, kind, port=first + 10 * n, store=StoreSpec(folder / name)))
        deployment = Deployment(tuple(sites), cluster=ClusterSpec(str(folder / "warehouse")))
        async with run_sites(deployment, folder / "run"):
            yield deployment, folder


@contextlib.contextmanager
def cluster_process(deployment: Deployment, folder: Path) -> Iterator[tuple[int, int]]:
    """`nearcast cluster run` as a process; yields its pid and the port of its metrics."""
    port = free_ports(1)
    lines = ["[cluster]", f'warehouse = "{folder / "warehouse"}"', 'master = "local[2]"', "analyse_every = 0"]
    for site in deployment.sites:
        assert site.store is not None
        lines += ["[[site]]", f'name = "{site.name}"', f'kind = "{site.kind}"', f"port = {site.port}"]
        lines += [f'store = {{ directory = "{site.store.directory}" }}']
    (folder / "nearcast.toml").write_text("\n".join(lines))
    command = [sys.executable, "-c", "from nearcast.cli import main; main()", "cluster", "run"]
    command += ["--config", str(folder / "nearcast.toml"), "--metrics", f"127.0.0.1:{port}"]
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(60)


def cluster_is_ready(folder: Path) -> bool:
    """Whether the process says that it is up. Raises an error when it says anything else."""
    said = (folder / "cluster.log").read_text(errors="replace")
    if "Error" in said:
        raise RuntimeError(f"the data cluster did not start:\n{said}")
    return "Ready" in said


def metrics(port: int) -> dict[str, float]:
    """The metrics of the data cluster, without the label of the producer: there is one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0].replace('producer="reports"', ""): float(line.rpartition(" ")[2]) for line in lines}


def where_time_goes(before: dict[str, float], after: dict[str, float]) -> str:
    """Milliseconds of a mean batch, by stage."""
    batches = after["nearcast_cluster_batches_total{}"] - before.get("nearcast_cluster_batches_total{}", 0.0)
    found = []
    for name, seconds in after.items():
        if stage := name.partition('stage="')[2].rstrip('"}'):
            found.append(f"{stage} {(seconds - before.get(name, 0.0)) / batches * 1000:.0f}")
    return f"{batches:.0f} batches; ms of each: {', '.join(found)}"
