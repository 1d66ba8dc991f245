"""Acknowledged means processed: what a killed worker or site left behind is processed when an owner is back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.suspend import suspend

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.ports import free_ports
from nearcast.testing import until

NEARCAST = [sys.executable, "-c", "from nearcast.cli import main; main()"]
ALERTS = TopicSpec("alerts", ("tokyo",), ("tokyo", "osaka", "cloud"), quorum=2)
PROCESSOR = """
from nearcast import processor

@processor("alerts", spool=20)
def echo(message, spool):
    return {"n": message.data["n"], "late": message.late}
"""


class Ledger:
    """Publishes at a rate; acknowledged ids, and how often a notification of each came."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.acknowledged: list[str] = []
        self.delivered: Counter[str] = Counter()
        self.late = 0
        self._waiting: set[asyncio.Task[None]] = set()

    def take(self, message: nearcast.Message) -> None:
        self.delivered[message.id.partition(";")[0]] += 1
        self.late += message.late

    async def publish(self, client: nearcast.Client, number: int, rate: float) -> None:
        start = asyncio.get_running_loop().time()
        for n in range(number):
            await asyncio.sleep(max(0.0, start + n / rate - asyncio.get_running_loop().time()))
            receipt = await client.publish_nowait(self._topic, {"n": n}, timeout=20)
            task = asyncio.create_task(self._note(receipt))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _note(self, receipt: asyncio.Future[nearcast.Receipt]) -> None:
        with contextlib.suppress(nearcast.NearcastError):
            self.acknowledged.append((await receipt).id)

    async def settled(self) -> None:
        """All publications were acknowledged, or not."""
        while self._waiting:
            await asyncio.gather(*self._waiting)

    def missing(self) -> list[str]:
        return [one for one in self.acknowledged if one not in self.delivered]

    async def complete(self, limit: float = 60) -> None:
        """All that was acknowledged was delivered; else it fails and says what is missing."""
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.missing(), limit)
        assert not self.missing(), f"{len(self.missing())} of {len(self.acknowledged)} are missing"


@pytest.mark.parametrize("victim", ["worker", "broker"])
async def test_what_a_killed_process_left_behind_is_processed(city, victim: str) -> None:
    """The only managing worker, or its broker, is killed under load, twice; every acknowledged one is processed."""
    ledger = Ledger("alerts")
    async with city(ALERTS) as c:
        tokyo = c.sites["tokyo"]
        killed = tokyo.broker if victim == "broker" else tokyo.workers["worker-0"]
        async with (
            nearcast.connect(c.url("osaka"), name="sensor", timeout=20) as sensor,
            nearcast.connect(c.url("cloud"), name="reader", timeout=20) as reader,
        ):
            await reader.subscribe("alerts", callback=ledger.take)
            publishing = asyncio.create_task(ledger.publish(sensor, 3000, 500))
            for restarts in (1, 2):
                await asyncio.sleep(1)
                os.kill(killed.pid, signal.SIGKILL)
                await until(lambda restarts=restarts: killed.restarts == restarts)
            await publishing
            await ledger.settled()
            assert len(ledger.acknowledged) == 3000
            await ledger.complete()
            assert ledger.late > 0  # some were redelivered; else this test shows nothing


async def test_what_is_processed_before_the_store_is_back_at_a_new_broker_is_stored(city) -> None:
    """A broker that has just started takes notifications while its store is not connected to it yet."""
    async with city(TopicSpec("alerts", ("tokyo",), ("tokyo",), quorum=1)) as c:
        tokyo, seen = c.sites["tokyo"], []
        async with nearcast.connect(c.url("tokyo"), name="sensor", timeout=60) as client:
            await client.subscribe("alerts", callback=seen.append)
            await client.publish("alerts", {"n": 0})
            await until(lambda: len(seen) == 1)
            store = tokyo.store.pid
            suspend(store)  # it cannot connect to the new broker
            os.kill(tokyo.broker.pid, signal.SIGKILL)
            await until(lambda: tokyo.broker.restarts == 1)
            receipt = await client.publish_nowait("alerts", {"n": 1}, timeout=60)
            await until(lambda: len(seen) == 2)
            with contextlib.suppress(ProcessLookupError):  # if it was replaced, the next one connects
                os.kill(store, signal.SIGCONT)
            await receipt

            async def stored() -> list[int]:
                return [message.data["n"] async for message in client.history("alerts")]

            deadline = asyncio.get_running_loop().time() + 60
            while await stored() != [0, 1]:
                assert asyncio.get_running_loop().time() < deadline, await stored()
                await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def site_process(config: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`nearcast site run`; whatever it is at the end, it is killed. What it says is shown with a test that fails."""
    with (config.parent / f"{name}.log").open("a+b") as log:
        process = await asyncio.create_subprocess_exec(
            *NEARCAST, "site", "run", "--config", str(config), "--name", name,
            stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(120):
                while not (line := await process.stdout.readline()).startswith(b"Ready."):
                    assert line, f"site {name} ended before it was ready"
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]
            log.seek(0)
            print(f"log of {name}:", log.read().decode(errors="replace"), sep="\n")


def deployment(
    folder: Path, managed_by: str = "tokyo", replicas: Sequence[str] = ("tokyo", "osaka", "cloud"), mqtt: str = ""
) -> tuple[Path, dict[str, str]]:
    """Three sites that are processes of their own; one of them manages the alerts. mqtt: the one with MQTT."""
    (folder / "alert_processors.py").write_text(PROCESSOR)
    port, urls = free_ports(30), {}
    lines = ['processors = ["alert_processors"]', ""]
    for n, name in enumerate(("tokyo", "osaka", "cloud")):
        (folder / "stores" / name).mkdir(parents=True)
        urls[name] = f"nats://127.0.0.1:{port + 10 * n}"
        lines += ["[[site]]", f'name = "{name}"', f"port = {port + 10 * n}"]
        lines += ['kind = "cloud"'] if name == "cloud" else []
        lines += [f"mqtt_port = {port + 10 * n + 6}"] if name == mqtt else []
        lines += ["[site.store]", f'directory = "stores/{name}"', ""]
    lines += ["[[topic]]", 'name = "alerts"', f'managed_by = ["{managed_by}"]', f"replicas = {list(replicas)}"]
    lines += ["quorum = 2"]
    config = folder / "nearcast.toml"
    config.write_text("\n".join(lines))
    return config, urls


async def test_all_alerts_arrive_although_the_only_managing_site_was_killed_for_six_seconds(tmp_path: Path) -> None:
    config, urls = deployment(tmp_path)
    ledger = Ledger("alerts")
    async with contextlib.AsyncExitStack() as stack:
        tokyo, *_ = await asyncio.gather(
            *(stack.enter_async_context(site_process(config, name)) for name in ("tokyo", "osaka", "cloud"))
        )
        sensor = await stack.enter_async_context(nearcast.connect(urls["osaka"], name="sensor", timeout=20))
        reader = await stack.enter_async_context(nearcast.connect(urls["cloud"], name="reader", timeout=20))
        await reader.subscribe("alerts", callback=ledger.take)
        await sensor.publish("alerts", {"n": -1}, timeout=20)
        await until(lambda: bool(ledger.delivered))
        publishing = asyncio.create_task(ledger.publish(sensor, 933, 100))
        try:
            await asyncio.sleep(1.5)
            tokyo.kill()
            await tokyo.wait()
            await asyncio.sleep(6)
            await stack.enter_async_context(site_process(config, "tokyo"))
            await publishing
        finally:
            await cancel_and_wait(publishing)
        await ledger.settled()
        assert len(ledger.acknowledged) == 933
        await ledger.complete()


async def test_a_site_starts_again_though_the_servers_of_its_killed_predecessor_take_their_time(tmp_path: Path) -> None:
    """They end by themselves; until then they have the site's ports."""
    config, urls = deployment(tmp_path)
    async with site_process(config, "cloud") as killed:
        servers = [one for one in psutil.Process(killed.pid).children() if one.name() == "nats-server"]
        assert len(servers) == 2
        for server in servers:
            server.suspend()
        killed.kill()
        await killed.wait()
    try:
        async with contextlib.AsyncExitStack() as stack:
            starting = asyncio.create_task(stack.enter_async_context(site_process(config, "cloud")))
            await until(lambda: b"waiting 10 s" in (tmp_path / "cloud.log").read_bytes(), limit=60)
            for server in servers:
                server.resume()
            await starting
            async with nearcast.connect(urls["cloud"], name="sensor", timeout=20) as sensor:
                await sensor.publish("other", {})
    finally:
        for server in servers:
            with contextlib.suppress(psutil.NoSuchProcess):
                server.kill()
