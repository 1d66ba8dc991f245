"""The moves as they are journalled: what changes, from what to what, for which goal and why."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nearcast.domain.ranges import Count, Name, NameOrNone, Text, TopicPattern
from nearcast.domain.worker_id import WorkerId

__all__ = ["ClientMove", "Move", "ReplicaMove", "TopicMove"]


MoveId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class TopicMove(msgspec.Struct, frozen=True, tag="topic"):
    """A topic's members before and after. `epoch` is the record's when the move was planned.

    lost: members at sites that do not answer. They get no commands; they stop when they see the new epoch.
    """

    id: MoveId
    topic: TopicPattern
    epoch: Count
    before: tuple[WorkerId, ...]
    after: tuple[WorkerId, ...]
    goal: Text = ""
    reason: Text = ""
    lost: tuple[WorkerId, ...] = ()

    @property
    def joining(self) -> tuple[WorkerId, ...]:
        """Members that do not run the topic yet."""
        return tuple(name for name in self.after if name not in self.before)

    @property
    def leaving(self) -> tuple[WorkerId, ...]:
        """Members that stop running the topic."""
        return tuple(name for name in self.before if name not in self.after)


class ClientMove(msgspec.Struct, frozen=True, tag="client"):
    """A client's home before and after."""

    id: MoveId
    client: Name
    before: NameOrNone
    after: Name
    goal: Text = ""
    reason: Text = ""


class ReplicaMove(msgspec.Struct, frozen=True, tag="replicas"):
    """The stores of a topic before and after."""

    id: MoveId
    topic: TopicPattern
    before: tuple[Name, ...]
    after: tuple[Name, ...]
    goal: Text = ""
    reason: Text = ""

    @property
    def fresh(self) -> tuple[str, ...]:
        """The stores that do not hold the topic yet."""
        return tuple(site for site in self.after if site not in self.before)

    @property
    def both(self) -> tuple[str, ...]:
        """Old and new stores."""
        return (*self.before, *self.fresh)


Move = TopicMove | ClientMove | ReplicaMove
