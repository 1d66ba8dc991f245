"""Queries of datasets start a few at a time, and one that fails pauses longer each time. No Spark, no clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from nearcast.cluster import dataset_queries
from nearcast.cluster.dataset_queries import DatasetQueries
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError, NearcastError

NAMES = [f"dataset{n}" for n in range(10)]
STEP = 0.2


@dataclass
class FakeQuery:
    """Spark's query, whose Python process fails to connect back when more than `most` start at the same time."""

    machine: Machine
    began: float
    failure: str = ""

    @property
    def starts(self) -> bool:
        return not self.failure and self.machine.now - self.began < 3.0

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self.failure

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "Initializing sources" if self.starts else "Waiting for data to arrive"}

    def exception(self) -> str:
        return self.failure

    def stop(self) -> None:
        self.failure = "stopped"


@dataclass
class Machine:
    """A machine of few cores, its clock, and its driver's datasets."""

    most: int = 3
    now: float = 1000.0
    queries: dict[str, FakeQuery] = field(default_factory=dict)
    began: dict[str, list[float]] = field(default_factory=dict)
    refusals: dict[str, list[Exception]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def start(self, datasets: DatasetQueries, spec: DatasetSpec) -> None:
        self.began.setdefault(spec.name, []).append(self.now)
        if refusals := self.refusals.get(spec.name):
            raise refusals.pop()
        self.queries[spec.name] = query = FakeQuery(self, self.now)
        datasets._queries[spec.name] = query

    def run(self, datasets: DatasetQueries, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            datasets.start()
            self.now += STEP
            starting = [query for query in self.queries.values() if query.starts]
            if len(starting) > self.most:
                for query in starting:
                    query.failure = "Python worker failed to connect back."

    def running(self) -> list[str]:
        return sorted(name for name, query in self.queries.items() if query.isActive and not query.starts)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def datasets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> DatasetQueries:
    monkeypatch.setattr(dataset_queries, "time", SimpleNamespace(monotonic=lambda: machine.now))
    monkeypatch.setattr(dataset_queries, "StreamTable", MagicMock())
    monkeypatch.setattr(dataset_queries, "query_session", MagicMock())
    monkeypatch.setattr(DatasetQueries, "_start_query", lambda self, spec: machine.start(self, spec))
    parts: list[Any] = [MagicMock() for _ in range(6)]
    return DatasetQueries(*parts, lambda name, reason: machine.failures.append((name, reason)), MagicMock())


def add(datasets: DatasetQueries, names: list[str]) -> None:
    specs = [DatasetSpec(name, "id STRING", f"fed.{name}") for name in names]
    datasets.apply((spec.name, msgspec.json.encode(spec)) for spec in specs)


def test_many_queries_that_start_together_do_not_starve_each_other(machine: Machine, datasets: DatasetQueries) -> None:
    add(datasets, NAMES)
    machine.run(datasets, 30)
    assert (machine.running(), machine.failures) == (NAMES, [])
    for query in machine.queries.values():  # all at once, such as when a server is lost
        query.failure = "the connection was lost"
    machine.run(datasets, 40)
    assert machine.running() == NAMES
    assert {len(began) for began in machine.began.values()} == {2}


def test_a_query_that_fails_again_and_again_pauses_longer_and_one_that_ran_is_back_soon(
    machine: Machine, datasets: DatasetQueries
) -> None:
    machine.most = 0  # no start succeeds
    add(datasets, ["reports"])
    machine.run(datasets, 400)
    began = machine.began["reports"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 60, 60, 60, 60, 60], abs=0.7)
    machine.most = 3
    machine.run(datasets, 80)
    assert machine.running() == ["reports"]
    machine.queries["reports"].failure, lost = "the connection was lost", machine.now
    machine.run(datasets, 5)
    assert machine.began["reports"][-1] - lost < 3


def test_a_query_that_cannot_start_is_tried_again_unless_its_dataset_is_wrong(
    machine: Machine, datasets: DatasetQueries
) -> None:
    machine.refusals = {"reports": [NearcastError("no answer")], "wrong": [InputError("no such type")]}
    add(datasets, ["reports", "wrong", "other"])
    machine.run(datasets, 30)
    assert machine.running() == ["other", "reports"]
    assert sorted(machine.failures) == [("reports", "no answer"), ("wrong", "no such type")]
    assert len(machine.began["wrong"]) == 1


def test_a_start_that_never_ends_and_a_removed_dataset_keep_no_turn(machine: Machine, datasets: DatasetQueries) -> None:
    machine.most, machine.now = 3, 1000.0
    add(datasets, ["slow1", "slow2", "gone", "other"])
    machine.run(datasets, STEP)
    for name in ("slow1", "slow2"):
        machine.queries[name].began = 1e9  # it starts for ever
    datasets.apply([("gone", None)])
    machine.run(datasets, 30)
    assert sorted(machine.queries) == ["slow1", "slow2"]
    machine.run(datasets, 40)
    assert machine.running() == ["other"]
