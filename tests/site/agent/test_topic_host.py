"""What a site does when commands, records and idle workers come in an awkward order. No server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats.rpc import StaleTermError
from nearcast.protocol.control import Assignments, StartTopic, StopTopic, TopicRecord
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged
from nearcast.site.agent.assignments import RunningTopic
from nearcast.site.agent.term_check import TermCheck
from nearcast.site.agent.topic_host import TopicHost

GPS = TopicSpec("gps", ("west",))


class FakeWorkers:
    """Worker processes that only record commands; `silent` ones do not answer."""

    def __init__(self) -> None:
        self.processes: dict[str, None] = {"worker-0": None}
        self.commands: list[tuple[str, object]] = []
        self.silent: set[str] = set()
        self.answering = asyncio.Event()
        self.answering.set()

    async def ensure(self, worker: str, topics: list[RunningTopic]) -> None:
        self.processes.setdefault(worker)

    def set_topics(self, worker: str, topics: list[RunningTopic]) -> None:
        pass

    async def command(self, worker: str, command: object) -> None:
        await self.answering.wait()
        if worker in self.silent:
            raise NearcastError("no answer")
        self.commands.append((worker, command))

    async def stop_if(self, worker: str, idle: Callable[[], bool]) -> None:
        if idle():
            del self.processes[worker]


def record(epoch: int, worker: str) -> TopicRecord:
    return TopicRecord(GPS, epoch, (WorkerId("west", worker),))


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


@pytest.fixture
def host(tmp_path: Path, workers: FakeWorkers) -> TopicHost:
    made = TopicHost("west", None, workers, [], tmp_path, lambda: 1.0, lambda records: None, TermCheck(None, []))  # type: ignore[arg-type]
    made.running["gps"] = RunningTopic(GPS, "worker-0", 1)
    return made


class WorkersWithoutSpools(FakeWorkers):
    """Workers whose peers have nothing of a topic to copy."""

    async def command(self, worker: str, command: object) -> None:
        if isinstance(command, HostTopic) and command.source is not None:
            raise NearcastError(f"{command.source} sends no spool of topic gps: it does not have the topic")
        await super().command(worker, command)


@pytest.mark.parametrize(("site", "starts"), [("west", True), ("east", False)])
async def test_of_members_that_start_together_the_first_waits_for_nobody(
    tmp_path: Path, site: str, starts: bool
) -> None:
    workers = WorkersWithoutSpools()
    host = TopicHost(site, None, workers, [], tmp_path, lambda: 1.0, lambda records: None, TermCheck(None, []))  # type: ignore[arg-type]
    spec = TopicSpec("gps", ("west", "east"))
    added = TopicRecord(spec, 1, (WorkerId("west", "worker-0"), WorkerId("east", "worker-0")))
    await host.apply(Assignments(1, 1, [added]))
    assert ("gps" in host.running) is starts


async def test_a_worker_that_did_not_answer_leaves_later(host: TopicHost, workers: FakeWorkers) -> None:
    await host._host(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    workers.silent = {"worker-0"}
    with pytest.raises(NearcastError):  # the coordinator's command to leave is lost
        await host._release("gps", "worker-0", 2, WorkerId("west", "worker-1"))
    workers.silent = set()
    workers.commands.clear()
    await host.apply(Assignments(1, 1, [record(1, "worker-0")]))
    assert workers.commands == []  # the move is not committed as far as this site knows: both stay
    await host.apply(Assignments(1, 2, [record(2, "worker-1")]))
    assert workers.commands == [("worker-0", LeaveTopic("gps", 2, WorkerId("west", "worker-1"), 1.0))]
    workers.commands.clear()
    await host.reconcile()
    assert workers.commands == []


async def test_a_rolled_back_move_inside_the_site_leaves_the_old_worker_alone(
    host: TopicHost, workers: FakeWorkers
) -> None:
    await host._host(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    workers.commands.clear()
    await host.apply(Assignments(1, 3, [record(3, "worker-0")]))
    assert [(worker, type(command)) for worker, command in workers.commands] == [
        ("worker-1", LeaveTopic),
        ("worker-0", HostTopic),
    ]
    assert host.running["gps"] == RunningTopic(GPS, "worker-0", 3)


async def test_members_of_a_topic_that_was_released_meanwhile_are_not_updated(
    host: TopicHost, workers: FakeWorkers
) -> None:
    host._records = {"gps": record(2, "worker-0")}
    workers.answering.clear()
    releasing = asyncio.create_task(host._release("gps", "worker-0", 3, WorkerId("east", "worker-0")))
    await asyncio.sleep(0)
    reconciling = asyncio.create_task(host.reconcile())  # it wants to tell the worker of epoch 2
    await asyncio.sleep(0)
    workers.answering.set()
    await asyncio.gather(releasing, reconciling)
    assert not any(isinstance(command, MembersChanged) for _, command in workers.commands)
    assert host.running == {}
    with pytest.raises(NearcastError, match="epoch 2 is over; epoch 3 was seen here"):
        await host._host(record(2, "worker-0"), "worker-0", None)


async def test_a_worker_is_stopped_only_when_it_was_idle_twice(host: TopicHost, workers: FakeWorkers) -> None:
    await host._host(record(2, "worker-1"), "worker-1", WorkerId("west", "worker-0"))
    for _ in range(3):
        await host.stop_idle_workers()
    assert "worker-0" in workers.processes  # it has not left yet
    await host._release("gps", "worker-0", 2, WorkerId("west", "worker-1"))
    await host.stop_idle_workers()
    assert "worker-0" in workers.processes  # it may have something to finish
    await host.stop_idle_workers()
    assert list(workers.processes) == ["worker-1"]


async def test_a_lower_term_than_any_seen_is_refused(host: TopicHost) -> None:
    await host._handle_stop(StopTopic(5, 1, "gps", "worker-0"))
    with pytest.raises(StaleTermError, match="term 4 is over; term 5 leads"):
        await host._handle_start(StartTopic(4, 2, GPS, "worker-0"))
    assert host.running == {}
