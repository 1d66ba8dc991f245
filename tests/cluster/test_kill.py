"""The driver is killed without warning, under load, and every result still comes exactly once.

One kill by default, to keep the suite short; NEARCAST_KILLS=5 does what the name says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.cluster.running import feed_all, subscribe_all, two_sites, until

import nearcast
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import Deployment
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
KILLS = int(os.environ.get("NEARCAST_KILLS", "1"))
KINDS = ("fire", "flood", "quake")


def write_configuration(deployment: Deployment, folder: Path, master: str = "local[2]", batch_rows: int = 1000) -> Path:
    lines = ["[cluster]", f'warehouse = "{folder / "warehouse"}"', f'master = "{master}"', f"batch_rows = {batch_rows}"]
    for site in deployment.sites:
        assert site.store is not None
        lines += ["[[site]]", f'name = "{site.name}"', f'kind = "{site.kind}"', f"port = {site.port}"]
        lines += [f'store = {{ directory = "{site.store.directory}" }}']
    path = folder / "nearcast.toml"
    path.write_text("\n".join(lines))
    return path


class Driver:
    """`nearcast cluster run` as a process of its own, with all that it starts."""

    def __init__(self, configuration: Path) -> None:
        self._command = [sys.executable, "-c", "from nearcast.cli import main; main()"]
        self._command += ["cluster", "run", "--config", str(configuration)]
        self._log = configuration.parent / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Ctrl-C, and how it ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)


async def registry(deployment: Deployment) -> None:
    connection = await open_connection([deployment.cloud().url], name="registry")
    book = Catalog(connection, "cloud")
    await book.prepare()
    await book.add_dataset(DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports"))
    query, kind = "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),)
    await book.add_channel(ChannelSpec("of_kind", query, kind, None, "reports"))
    await book.add_channel(ChannelSpec("by_period", query, kind, 0.5, "reports"))
    await connection.close()


@pytest.mark.timeout(300 + 200 * KILLS)  # each kill costs a start of Spark
async def test_every_result_comes_exactly_once(tmp_path: Path) -> None:
    deployment, rng = two_sites(tmp_path), random.Random(11)
    fed: list[dict[str, str]] = []
    async with run_sites(deployment, tmp_path / "run"):
        await registry(deployment)
        driver = Driver(write_configuration(deployment, tmp_path))
        async with nearcast.connect(deployment.sites[0].url) as client:
            wanted = [(name, {"kind": kind}) for name in ("of_kind", "by_period") for kind in KINDS]
            inboxes = await subscribe_all(client, wanted)

            async def load() -> None:
                while True:
                    # No further ahead than a slow machine can make good while the test waits.
                    await until(lambda: len(fed) < told() / 2 + 1000, "results", 400)
                    some = [{"id": f"r{len(fed) + n}", "kind": rng.choice(KINDS)} for n in range(20)]
                    await feed_all(client, "reports", list(some))
                    fed.extend(some)
                    await asyncio.sleep(0.1)

            def told() -> int:
                return sum(len(inbox.rows) for inbox in inboxes)

            driver.start()
            try:
                feeding = asyncio.create_task(load())
                for _ in range(KILLS):
                    before = told()
                    await until(lambda before=before: told() > before, "results", 400)  # type: ignore[misc]
                    await asyncio.sleep(rng.uniform(0.0, 3.0))
                    driver.kill()
                    driver.start()
                await cancel_and_wait(feeding)
                # What was under way when feeding was cancelled is fed as well; a last record tells where the end is.
                await client.feed("reports", {"id": "end", "kind": "none"}, timeout=30)
                await until(lambda: told() >= 2 * len(fed), "the end", 400)
                await asyncio.sleep(2)
                assert await asyncio.to_thread(driver.stop) == 0
            finally:
                driver.kill()
    for name in ("of_kind", "by_period"):
        ids = Counter(i for inbox in inboxes if inbox.name == name for i in inbox.ids)
        rows = Counter(row["id"] for inbox in inboxes if inbox.name == name for row in inbox.rows)
        assert max(ids.values()) == 1, "a result came twice"
        assert max(rows.values()) == 1, "a record was reported twice"
        assert {record["id"] for record in fed} <= rows.keys(), "a record was not reported"
