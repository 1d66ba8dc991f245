"""The data cluster on a Spark cluster: a standalone master and worker on one machine."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.cluster.harness import (
    KINDS,
    DriverProcess,
    add_report_channels,
    feed_all,
    subscribe_all,
    two_sites,
    until,
    write_configuration,
)

import nearcast
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int = 1, cores: int = 2) -> Iterator[str]:
    """A master and workers with some cores each; yields the master's address."""
    home = Path(pyspark.__file__).parent
    port = free_ports(workers + 2)
    settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "work")}
    environment = {**os.environ, **settings, "PYSPARK_PYTHON": sys.executable}
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:

        def start(name: str, kind: str, ready: str, *options: str) -> None:
            command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *options]
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            wait_for(folder / f"{name}.log", ready)

        web = "--webui-port", str(port + 1)
        start("master", "master.Master", "I have been elected leader", "--port", str(port), *web)
        for n in range(workers):
            options = ["--webui-port", str(port + 2 + n), "--cores", str(cores), "--memory", "1g", url]
            start(f"worker{n}", "worker.Worker", "Successfully registered", *options)
        yield url


def wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + 200
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)


async def test_executors_of_a_spark_cluster_read_match_and_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    deployment, rng = two_sites(tmp_path), random.Random(5)
    with spark_cluster(tmp_path) as master:
        async with run_sites(deployment, tmp_path / "run"):
            await add_report_channels(deployment)
            driver = DriverProcess(write_configuration(deployment, tmp_path, master, 4000))
            async with nearcast.connect(deployment.sites[0].url) as client:
                driver.start()
                try:
                    await driver.ready()
                    inboxes = await subscribe_all(
                        client, [(name, {"kind": k}) for name in ("of_kind", "by_period") for k in KINDS]
                    )
                    # A large batch, read by tasks, then small ones.
                    records = [{"id": f"r{n}", "kind": rng.choice(KINDS)} for n in range(6000)]
                    for start in (0, *range(5000, 6000, 100)):
                        await feed_all(client, "reports", list(records[start : start + (5000 if start == 0 else 100)]))
                    await until(lambda: sum(len(i.rows) for i in inboxes) >= 12_000, "results", 200)
                finally:
                    driver.kill()
    for name in ("of_kind", "by_period"):
        rows = Counter(row["id"] for inbox in inboxes if inbox.name == name for row in inbox.rows)
        assert rows == Counter(record["id"] for record in records)
