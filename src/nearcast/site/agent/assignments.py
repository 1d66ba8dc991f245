"""What a site has to change so that it runs what the registry assigns. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.topic import TopicSpec

__all__ = [
    "AssignmentChange",
    "Host",
    "Release",
    "RunningTopic",
    "UpdateMembers",
    "assignment_changes",
    "configured_records",
    "worker_of",
]


@dataclass(frozen=True)
class RunningTopic:
    """A topic this site processes: in which worker, since which epoch."""

    spec: TopicSpec
    worker: str
    epoch: int


@dataclass(frozen=True)
class Release:
    """Stop a topic in a worker; publications that still arrive go `towards` another member, if any."""

    topic: str
    worker: str
    epoch: int
    towards: WorkerId | None


@dataclass(frozen=True)
class Host:
    """Run a topic in a worker, with a copy of another member's spool, if any."""

    record: TopicRecord
    worker: str
    source: WorkerId | None


@dataclass(frozen=True)
class UpdateMembers:
    """Tell the worker how many members there are, and the epoch."""

    topic: str
    worker: str
    epoch: int
    members: int


AssignmentChange = Release | Host | UpdateMembers


def configured_records(deployment: Deployment) -> list[TopicRecord]:
    """The topics of a configuration, assigned to the workers of their sites; no more workers than topics."""
    workers: dict[tuple[str, str], str] = {}
    for site in deployment.sites:
        managed = deployment.managed_at(site.name)
        for n, topic in enumerate(managed):
            workers[site.name, topic.name] = f"worker-{n % min(site.workers, len(managed))}"
    return [
        TopicRecord(topic, 1, tuple(WorkerId(site, workers[site, topic.name]) for site in topic.managed_by))
        for topic in deployment.topics
    ]


def worker_of(record: TopicRecord, site: str) -> str:
    """The worker that runs a topic at a site, or nothing."""
    return next((worker for at, worker in record.members if at == site), "")


def assignment_changes(
    site: str, running: Mapping[str, RunningTopic], records: Iterable[TopicRecord], removed: Collection[str] = ()
) -> list[AssignmentChange]:
    """The changes, releases first.

    A topic started with a newer epoch than the record's, or without a record yet, is a move under way.
    """
    known = {record.spec.name: record for record in records}
    releases: list[AssignmentChange] = []
    others: list[AssignmentChange] = []
    for name, here in running.items():
        record = known.get(name)
        if record is None:
            if name in removed:
                releases.append(Release(name, here.worker, here.epoch, None))
        elif here.epoch <= record.epoch and worker_of(record, site) != here.worker:
            elsewhere = next(iter(record.members), None)
            releases.append(Release(name, here.worker, record.epoch, elsewhere))
        elif here.epoch < record.epoch:
            others.append(UpdateMembers(name, here.worker, record.epoch, len(record.members)))
    for record in known.values():
        worker, current = worker_of(record, site), running.get(record.spec.name)
        if worker and (current is None or (current.worker != worker and current.epoch <= record.epoch)):
            peers = [member for member in record.members if member.site != site]
            others.append(Host(record, worker, peers[0] if peers else None))
    return releases + others
