"""What a site does when commands, records and idle workers come in an awkward order. No server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.protocol.control import Assignments, TopicRecord
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged
from nearcast.site.assignments import Running
from nearcast.site.hosting import Hosting

GPS = TopicSpec("gps", ("west",))


class Stopped:
    stdin = b""
    stopped = False

    async def stop(self) -> None:
        self.stopped = True


class Desk(Hosting):
    """A hosting whose workers only note what they are told; `deaf` ones do not answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Deployment((SiteSpec("west"),)), SiteSpec("west"), None, folder, [])  # type: ignore[arg-type]
        self.told: list[tuple[str, object]] = []
        self.deaf: set[str] = set()
        self.pause = asyncio.Event()
        self.pause.set()

    async def _worker(self, name: str) -> None:
        self.workers.setdefault(name, Stopped())  # type: ignore[arg-type]

    async def _tell(self, worker: str, command: object) -> None:
        await self.pause.wait()
        if worker in self.deaf:
            raise NearcastError("no answer")
        self.told.append((worker, command))


def record(epoch: int, worker: str) -> TopicRecord:
    return TopicRecord(GPS, epoch, (WorkerId("west", worker),))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.running["gps"] = Running(GPS, "worker-0", 1)
    made.workers["worker-0"] = Stopped()  # type: ignore[assignment]
    return made


async def test_a_worker_that_was_not_reached_leaves_later(desk: Desk) -> None:
    await desk._take(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    desk.deaf = {"worker-0"}
    with pytest.raises(NearcastError):  # the coordinator's command to leave is lost
        await desk._drop("gps", "worker-0", 2, WorkerId("west", "worker-1"))
    desk.deaf = set()
    desk.told.clear()
    await desk.follow(Assignments(1, 1, [record(1, "worker-0")]))
    assert desk.told == []  # the move is not committed as far as this site knows: both stay
    await desk.follow(Assignments(1, 2, [record(2, "worker-1")]))
    assert desk.told == [("worker-0", LeaveTopic("gps", 2, WorkerId("west", "worker-1"), 1.0))]
    desk.told.clear()
    await desk.reconcile()
    assert desk.told == []


async def test_a_move_inside_the_site_that_is_rolled_back_leaves_the_old_worker_alone(desk: Desk) -> None:
    await desk._take(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    desk.told.clear()
    await desk.follow(Assignments(1, 3, [record(3, "worker-0")]))
    assert [(worker, type(command)) for worker, command in desk.told] == [
        ("worker-1", LeaveTopic),
        ("worker-0", HostTopic),
    ]
    assert desk.running["gps"] == Running(GPS, "worker-0", 3)


async def test_news_about_a_topic_that_was_dropped_meanwhile_is_no_news(desk: Desk) -> None:
    desk._known = {"gps": record(2, "worker-0")}
    desk.pause.clear()
    dropping = asyncio.create_task(desk._drop("gps", "worker-0", 3, WorkerId("east", "worker-0")))
    await asyncio.sleep(0)
    reconciling = asyncio.create_task(desk.reconcile())  # it wants to tell the worker of epoch 2
    await asyncio.sleep(0)
    desk.pause.set()
    await asyncio.gather(dropping, reconciling)
    assert not any(isinstance(command, MembersChanged) for _, command in desk.told)
    assert desk.running == {}
    with pytest.raises(NearcastError, match="epoch 2 is over; epoch 3 was seen here"):
        await desk._take(record(2, "worker-0"), "worker-0", "")


async def test_a_worker_is_ended_only_when_it_was_idle_twice(desk: Desk) -> None:
    await desk._take(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    worker = desk.workers["worker-0"]
    for _ in range(3):
        await desk.retire_idle_workers()
    assert "worker-0" in desk.workers  # it has not left yet
    await desk._drop("gps", "worker-0", 2, WorkerId("west", "worker-1"))
    await desk.retire_idle_workers()
    assert "worker-0" in desk.workers  # it may have something to finish
    await desk.retire_idle_workers()
    assert list(desk.workers) == ["worker-1"]
    assert worker.stopped  # type: ignore[attr-defined]
