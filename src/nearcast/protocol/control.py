"""What the control plane says to sites, workers and clients, and what it keeps about them.

Every command carries the term of the coordinator that sent it: whoever has seen a higher one refuses it. Every
assignment of a topic carries an epoch: a worker stops when it learns of a newer one that leaves it out.
"""

from __future__ import annotations

import msgspec

from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId

__all__ = [
    "Answer",
    "Assignments",
    "AssignmentsRequest",
    "HostTopic",
    "LeaveTopic",
    "MembersChanged",
    "Rehome",
    "ReportAnswer",
    "Snapshot",
    "SpoolEntry",
    "SpoolPage",
    "StartTopic",
    "StopTopic",
    "TopicRecord",
    "WorkerCommand",
]


class TopicRecord(msgspec.Struct, frozen=True):
    """Who runs a topic's processor. `move` is the move that made it so.

    A removed topic keeps its record, so that everybody learns of it.
    """

    spec: TopicSpec
    epoch: int = 1
    members: tuple[WorkerId, ...] = ()
    move: str = ""
    removed: bool = False


class ReportAnswer(msgspec.Struct, frozen=True):
    """The coordinator's answer to a report. registered: whether it knows the site. revision: of its records."""

    term: int
    revision: int
    registered: bool


class AssignmentsRequest(msgspec.Struct, frozen=True):
    """The records that changed after a revision, please."""

    revision: int


class Assignments(msgspec.Struct, frozen=True):
    """Records that changed, in the order they did, up to a revision; `more` when there are others behind it."""

    term: int
    revision: int
    records: list[TopicRecord] = []
    more: bool = False


class StartTopic(msgspec.Struct, frozen=True):
    """To a site: run a topic's processor in a worker, beginning with a copy of the spool of `source`, if any."""

    term: int
    epoch: int
    spec: TopicSpec
    worker: str
    source: WorkerId | None = None


class StopTopic(msgspec.Struct, frozen=True):
    """To a site: leave a topic; what is still under way to it goes `towards` another member, if any."""

    term: int
    epoch: int
    topic: str
    worker: str
    towards: WorkerId | None = None


class Rehome(msgspec.Struct, frozen=True):
    """To a client: connect to another site."""

    term: int
    home: str
    url: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Done, or why not."""

    error: str = ""
    term: int = 0


class HostTopic(msgspec.Struct, frozen=True, tag=True):
    """To a worker: take a topic, with a copy of the spool of `source`, and join its queue group.

    hold: seconds that publications handed over wait for a sign that another member has processed them.
    """

    spec: TopicSpec
    epoch: int
    source: WorkerId | None = None
    hold: float = 0.5


class LeaveTopic(msgspec.Struct, frozen=True, tag=True):
    """To a worker: leave a topic's queue group, finish what was begun, send on what comes for `settle` seconds yet."""

    topic: str
    epoch: int
    towards: WorkerId | None = None
    settle: float = 1.0


class MembersChanged(msgspec.Struct, frozen=True, tag=True):
    """To a worker: this many members run a topic now, as of an epoch. One alone sends no copies."""

    topic: str
    epoch: int
    members: int


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """To a worker: send copies from now on, and a page of what the spools of a topic hold, behind a cursor."""

    topic: str
    after: tuple[str, int] = ("", -1)


WorkerCommand = HostTopic | LeaveTopic | MembersChanged | Snapshot


class SpoolEntry(msgspec.Struct, frozen=True, array_like=True):
    """One message of a spool."""

    topic: str
    number: int
    id: bytes
    payload: bytes


class SpoolPage(msgspec.Struct, frozen=True):
    """Part of the spools of a topic, oldest first; `more` asks for the next page."""

    entries: list[SpoolEntry] = []
    more: bool = False
    error: str = ""
