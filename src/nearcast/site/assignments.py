"""What a site has to change so that it runs what the registry says. A pure function of the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nearcast.domain.topic import TopicSpec

__all__ = ["Change", "Drop", "Inform", "Running", "Take", "changes", "worker_of"]


@dataclass(frozen=True)
class Running:
    """A topic this site processes: in which worker, since which epoch."""

    spec: TopicSpec
    worker: str
    epoch: int


@dataclass(frozen=True)
class Drop:
    """Stop a topic here; another member, if any, has it now."""

    topic: str
    worker: str
    epoch: int
    towards: WorkerId | None


@dataclass(frozen=True)
class Take:
    """Run a topic here, with a copy of another member's spool, if any."""

    record: TopicRecord
    worker: str
    source: WorkerId | None


@dataclass(frozen=True)
class Inform:
    """Tell the worker how many members there are, and the epoch."""

    topic: str
    worker: str
    epoch: int
    members: int


Change = Drop | Take | Inform


def worker_of(record: TopicRecord, site: str) -> str:
    """The worker that runs a topic at a site, or nothing."""
    return next((worker for at, worker in record.members if at == site), "")


def changes(
    site: str, running: Mapping[str, Running], records: Iterable[TopicRecord], removed: Collection[str] = ()
) -> list[Change]:
    """What to do, stale topics first.

    A topic started with a newer epoch than the record's, or without a record yet, is a move under way.
    """
    known = {record.spec.name: record for record in records}
    drops: list[Change] = []
    others: list[Change] = []
    for name, here in running.items():
        record = known.get(name)
        if record is None:
            if name in removed:
                drops.append(Drop(name, here.worker, here.epoch, None))
        elif here.epoch <= record.epoch and worker_of(record, site) != here.worker:
            elsewhere = next(iter(record.members), None)
            drops.append(Drop(name, here.worker, record.epoch, elsewhere))
        elif here.epoch < record.epoch:
            others.append(Inform(name, here.worker, record.epoch, len(record.members)))
    for record in known.values():
        worker, current = worker_of(record, site), running.get(record.spec.name)
        if worker and (current is None or (current.worker != worker and current.epoch <= record.epoch)):
            peers = [member for member in record.members if member.site != site]
            others.append(Take(record, worker, peers[0] if peers else None))
    return drops + others
