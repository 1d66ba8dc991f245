"""Processors that take what is not theirs, in the worker of a real site: they fail, and nobody else notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from tests.site.worker.test_cage import needs_cgroups
from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.deployment import Deployment
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites
from nearcast.testing import until

GREEDY = """
import os, time
from nearcast import processor

@processor("greedy", timeout=60)
def take(message, spool):
    killed = 0
    match message.data["take"]:
        case "memory":
            kept = b"x" * (1 << 30)
        case "files":
            files = [open("/dev/null") for _ in range(100)]
        case "memory of children":
            for _ in range(5):
                if os.fork() == 0:
                    kept = b"x" * (100 << 20)
                    time.sleep(2)
                    os._exit(0)
            killed = sum(os.WIFSIGNALED(os.wait()[1]) for _ in range(5))
        case "processes":
            while True:
                try:
                    if os.fork() == 0:
                        time.sleep(600)
                except OSError:
                    time.sleep(0.1)
    yield {"killed": killed, "variables": sorted(os.environ)}

@processor("modest", timeout=60)
def echo(message, spool):
    yield {"n": message.data["n"]}
"""
LIMITS = ProcessorLimits(memory_mb=256, processes=20, open_files=64, environment=("NAMED",))


@needs_cgroups
async def test_what_a_processor_takes_is_limited_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("NAMED", "2")
    (tmp_path / "greedy_processors.py").write_text(GREEDY)
    site = SiteSpec("cloud", "cloud", port=free_ports())
    topics = (TopicSpec("greedy", ("cloud",)), TopicSpec("modest", ("cloud",)))
    deployment = Deployment((site,), topics, ("greedy_processors",), processor_limits=LIMITS)
    async with (
        run_sites(deployment, tmp_path / "run", [str(tmp_path)]) as sites,
        nearcast.connect(site.url) as client,
        client.subscribe("greedy") as results,
        client.subscribe("modest") as others,
        client.dead_letters("greedy") as letters,
        asyncio.timeout(240),
    ):
        workers = {name: process.pid for name, process in sites["cloud"].workers.items()}

        async def reason(what: str) -> str:
            await client.publish("greedy", {"take": what})
            return (await anext(letters)).reason

        assert (await reason("memory")).startswith("MemoryError")
        assert "Too many open files" in await reason("files")
        await client.publish("greedy", {"take": "memory of children"})
        found = (await anext(results)).data
        assert found["killed"] > 0, "500 MB of 256"
        assert "NAMED" in found["variables"]
        assert not {"SECRET", "HOME"} & set(found["variables"])
        assert await reason("processes") == "has more than 20 processes"
        for n in range(10):  # of the same worker
            await client.publish("modest", {"n": n})
            assert (await anext(others)).data == {"n": n}
        assert {name: process.pid for name, process in sites["cloud"].workers.items()} == workers
        (stats,) = await stats_of_workers(sites["cloud"])
        assert stats.dead_letters == 3
        (pid,) = workers.values()
        assert pid is not None
        worker = psutil.Process(pid)
        await until(lambda: len(worker.children(recursive=True)) == 1, 60)  # the process that has replaced the bomb
