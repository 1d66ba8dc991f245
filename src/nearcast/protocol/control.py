"""What the control plane says to sites and clients, and what it keeps about them.

Every command carries the term of the coordinator that sent it: whoever has seen a higher one refuses it. Every
assignment of a topic carries an epoch: a worker stops when it learns of a newer one that leaves it out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nearcast.domain.ranges import Address, Count, Name, Seconds, Sequence, Term, Text, TopicPattern
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId

__all__ = [
    "MOST_SITES",
    "MOST_TOPICS",
    "Assignments",
    "AssignmentsRequest",
    "Notice",
    "Rehome",
    "ReportAnswer",
    "StartTopic",
    "StopTopic",
    "TermClaim",
    "TopicRecord",
    "Witness",
]


MOST_SITES = 10_000
MOST_TOPICS = 100_000
"""Topics and families that a deployment may have."""


class TopicRecord(msgspec.Struct, frozen=True):
    """Who runs a topic's processor. `move` is the move that made it so.

    A removed topic keeps its record, so that everybody learns of it.
    """

    spec: TopicSpec
    epoch: Count = 1
    members: Annotated[tuple[WorkerId, ...], Meta(max_length=1000)] = ()
    move: Text = ""
    removed: bool = False


class ReportAnswer(msgspec.Struct, frozen=True):
    """The coordinator's answer to a report. registered: whether it knows the site. revision: of its records.

    lease_s: how long after it sent the report the site may own durable topics; 0: not yet. clock: the coordinator's.
    sites: all that have registered, for a site that knows others.
    state: the registry's identity. One that was lost and restored has another, and its revisions start again.
    """

    term: Term
    revision: Sequence
    registered: bool
    lease_s: Seconds = 0.0
    state: Text = ""
    clock: Seconds = 0.0
    sites: Annotated[list[Name], Meta(max_length=MOST_SITES)] | None = None


class Witness(msgspec.Struct, frozen=True):
    """From site to site: may I count on you, that no coordinator leads? And the answer: whether it may."""

    site: Name
    witnessed: bool = False


class Notice(msgspec.Struct, frozen=True):
    """A site tells a client why it closes its connections, and for how long it keeps doing so."""

    reason: Text
    seconds: Seconds = 0.0


class AssignmentsRequest(msgspec.Struct, frozen=True):
    """The records that changed after a revision, please."""

    revision: Sequence


class Assignments(msgspec.Struct, frozen=True):
    """Records that changed, in the order they did, up to a revision; `more` when there are others behind it.

    lease_s, state: as in the answer to a report; the lease with a registration only.
    """

    term: Term
    revision: Sequence
    records: Annotated[list[TopicRecord], Meta(max_length=MOST_TOPICS)] = []
    more: bool = False
    lease_s: Seconds = 0.0
    state: Text = ""


class StartTopic(msgspec.Struct, frozen=True):
    """To a site: run a topic's processor in a worker, beginning with a copy of the spool of `source`, if any."""

    term: Term
    epoch: Count
    spec: TopicSpec
    worker: Name
    source: WorkerId | None = None


class StopTopic(msgspec.Struct, frozen=True):
    """To a site: leave a topic; what is still under way to it goes `towards` another member, if any."""

    term: Term
    epoch: Count
    topic: TopicPattern
    worker: Name
    towards: WorkerId | None = None


class Rehome(msgspec.Struct, frozen=True):
    """To a client: connect to another site."""

    term: Term
    home: Name
    url: Address


class TermClaim(msgspec.Struct, frozen=True):
    """Does the coordinator of this term lead? The answer is nothing, or an error that says who does."""

    term: Term
