"""What the agent of a site, and a worker that takes a topic over, ask of a worker; requests are msgpack."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from nearcast.domain.latency_histogram import BUCKETS, empty
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.ranges import AnyTopic, Count, Figure, Sequence, Text, TopicPattern
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId

__all__ = [
    "HostTopic",
    "LeaveTopic",
    "MembersChanged",
    "SiteLease",
    "SourcePosition",
    "SpoolEntry",
    "SpoolPage",
    "SpoolPageRequest",
    "TopicWork",
    "WorkerAssignment",
    "WorkerCommand",
    "WorkerStats",
]


class WorkerAssignment(msgspec.Struct, frozen=True):
    """What a worker process is started with."""

    site: str
    worker: str
    url: str
    run_directory: str
    modules: list[str]
    search_path: list[str]
    topics: list[TopicSpec]
    epochs: dict[str, int] = {}
    limits: ProcessorLimits = ProcessorLimits()
    configured: bool = False  # the topics are those of `nearcast.toml`: one without a processor is refused
    credentials: str = ""  # the file to connect with


_MOST_IN_FLIGHT = 1_000_000
Moment = Annotated[float, Meta(ge=0, le=3600)]


class HostTopic(msgspec.Struct, frozen=True):
    """Take a topic, with a copy of the spool of `source`, and join its queue group.

    hold: seconds that handed-over publications wait for a sign that another member has processed them.
    """

    verb: ClassVar[str] = "host"
    spec: TopicSpec
    epoch: Count
    source: WorkerId | None = None
    hold: Moment = 0.5


class LeaveTopic(msgspec.Struct, frozen=True):
    """Leave a topic's queue group, finish what was begun, forward what still arrives within `settle` seconds."""

    verb: ClassVar[str] = "leave"
    topic: TopicPattern
    epoch: Count
    towards: WorkerId | None = None
    settle: Moment = 1.0


class MembersChanged(msgspec.Struct, frozen=True):
    """This many members run a topic now, as of an epoch. One alone sends no copies."""

    verb: ClassVar[str] = "members"
    topic: TopicPattern
    epoch: Count
    members: Count


class SpoolPageRequest(msgspec.Struct, frozen=True):
    """Send copies from now on, and a page of what the spools of a topic hold, after a cursor."""

    verb: ClassVar[str] = "spool"
    topic: TopicPattern
    after: tuple[Annotated[str, Meta(max_length=4096)], Sequence] = ("", -1)


class SiteLease(msgspec.Struct, frozen=True):
    """Durable topics may be taken and marked until then, by `lease_clock`. Sent each second.

    A worker that does not answer for a while is replaced.
    """

    verb: ClassVar[str] = "lease"
    until: float


WorkerCommand = HostTopic | LeaveTopic | MembersChanged


class SpoolEntry(msgspec.Struct, frozen=True, array_like=True):
    """One message of a spool."""

    topic: AnyTopic
    number: Count
    id: bytes
    payload: bytes


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a member is with a source's publications to a durable topic.

    next: the number whose turn it is. in_flight: those that it has not marked yet, as first and last of ranges.
    """

    topic: AnyTopic
    source: Text
    next: Count
    in_flight: list[Count] = []

    def __post_init__(self) -> None:
        """They are counted one by one."""
        pairs = list(zip(self.in_flight[::2], self.in_flight[1::2], strict=True))
        if any(first > last for first, last in pairs) or sum(last - first for first, last in pairs) > _MOST_IN_FLIGHT:
            raise ValueError(f"in_flight is first and last of ranges; allowed: {_MOST_IN_FLIGHT} numbers")


class SpoolPage(msgspec.Struct, frozen=True):
    """Part of the spools of a topic, oldest first; `more`: another page follows. positions: with the first page."""

    entries: list[SpoolEntry] = []
    more: bool = False
    positions: list[SourcePosition] = []


class TopicWork(msgspec.Struct):
    """What was done for one topic or family since the worker took it; latency: from arrival to outcome, sampled.

    deferred: publications of a durable topic that there was no room for; a store gives them again.
    """

    epoch: Count = 0
    processed: Count = 0
    busy_s: Figure = 0.0
    waiting: Count = 0
    dead_letters: Count = 0
    deferred: Count = 0
    latency: Annotated[list[Count], Meta(min_length=BUCKETS, max_length=BUCKETS)] = msgspec.field(default_factory=empty)


class WorkerStats(msgspec.Struct):
    """Counts since the worker started.

    delegated: processed here for a publisher whose home is another site.
    late: taken from a store, because nobody had marked them. unowned: not taken, because the site had no lease.
    deferred: of durable topics, without room in the queue; a store gives them again.
    dropped: lost here: what could not be sent, or was handed over for a topic that is not here.
    forged: refused, because the id names another publisher than the topic does.
    processors: the patterns of the topics that its modules can process.
    leaving, held: topics on their way out, and handed-over messages that wait, at this moment.
    """

    worker: str = ""
    processed: int = 0
    delegated: int = 0
    notified: int = 0
    late: int = 0
    unowned: int = 0
    copies_sent: int = 0
    copies_received: int = 0
    dead_letters: int = 0
    deferred: int = 0
    dropped: int = 0
    duplicates: int = 0
    forged: int = 0
    processor_pid: int = 0
    restarts: int = 0
    leaving: int = 0
    held: int = 0
    processors: list[str] = []
    topics: dict[str, TopicWork] = {}
