"""Health is by answer: a process that hangs is replaced, one that dies at a site's first start is started again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.suspend import suspend

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.site.agent.worker_processes import WorkerProcesses
from nearcast.testing import until

if TYPE_CHECKING:
    from nearcast.site.supervisor import SupervisedProcess


def stop(process: SupervisedProcess) -> int:
    assert process.pid is not None
    suspend(process.pid)
    return process.pid


async def test_a_hung_worker_is_replaced(city):
    """Nobody noticed before: it had not ended, and its topics stood still until somebody continued it."""
    async with city(TopicSpec("gps", ("tokyo",))) as c:
        worker = c.sites["tokyo"].workers["worker-0"]
        hung = stop(worker)
        await until(lambda: worker.restarts == 1, limit=60)
        assert not psutil.pid_exists(hung)
        got: list[int] = []
        async with nearcast.connect(c.url("tokyo"), name="both") as client:
            await client.subscribe("gps", callback=lambda message: got.append(message.data["n"]))
            await client.publish("gps", {"n": 1})
            await until(lambda: got == [1])


async def test_a_hung_broker_and_a_hung_store_are_replaced(city):
    """The workers of a site whose broker hangs are not to blame: they stay."""
    async with city(TopicSpec("gps", ("tokyo",), replicas=("tokyo",), quorum=1)) as c:
        site = c.sites["tokyo"]
        worker = site.workers["worker-0"].pid
        hung = {stop(site.broker), stop(site.store)}
        await until(lambda: site.broker.restarts == site.store.restarts == 1, limit=90)
        assert not [pid for pid in hung if psutil.pid_exists(pid)]
        got: list[int] = []
        async with nearcast.connect(c.url("tokyo"), name="both") as client:
            await client.subscribe("gps", callback=lambda message: got.append(message.data["n"]))

            async def published() -> bool:
                try:
                    await client.publish("gps", {"n": 1})
                except nearcast.NearcastError:  # the store is joining its broker
                    return False
                return True

            await until(published, limit=60)
            await until(lambda: 1 in got)
        assert site.workers["worker-0"].pid == worker


@pytest.mark.parametrize("victim", ["worker", "processor"])
async def test_a_worker_that_dies_at_the_first_start_does_not_end_its_site(city, monkeypatch, victim):
    killed: list[int] = []
    wait_ready = WorkerProcesses._wait_ready

    async def kill_once(self: WorkerProcesses, worker: str) -> None:
        while not killed:
            process = psutil.Process(self.processes[worker].pid)
            found = [process] if victim == "worker" else process.children()
            for one in found:
                killed.append(one.pid)
                one.kill()
            await asyncio.sleep(0.01)
        await wait_ready(self, worker)

    monkeypatch.setattr(WorkerProcesses, "_wait_ready", kill_once)
    async with city(TopicSpec("gps", ("tokyo",))) as c:
        got: list[int] = []
        async with nearcast.connect(c.url("tokyo"), name="both") as client:
            await client.subscribe("gps", callback=lambda message: got.append(message.data["n"]))
            await client.publish("gps", {"n": 1})
            await until(lambda: got == [1])
    assert killed
