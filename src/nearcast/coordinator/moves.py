"""The moves as they are journalled: what changes, from what to what, for which goal and why."""

from __future__ import annotations

import msgspec

from nearcast.domain.worker_id import WorkerId

__all__ = ["ClientMove", "Move", "ReplicaMove", "TopicMove"]


class TopicMove(msgspec.Struct, frozen=True, tag="topic"):
    """A topic's members before and after. `epoch` is the record's when the move was planned.

    lost: members at sites that do not answer. They get no commands; they stop when they see the new epoch.
    """

    id: str
    topic: str
    epoch: int
    before: tuple[WorkerId, ...]
    after: tuple[WorkerId, ...]
    goal: str = ""
    reason: str = ""
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

    id: str
    client: str
    before: str
    after: str
    goal: str = ""
    reason: str = ""


class ReplicaMove(msgspec.Struct, frozen=True, tag="replicas"):
    """The stores of a topic before and after."""

    id: str
    topic: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    goal: str = ""
    reason: str = ""

    @property
    def fresh(self) -> tuple[str, ...]:
        """The stores that do not hold the topic yet."""
        return tuple(site for site in self.after if site not in self.before)

    @property
    def both(self) -> tuple[str, ...]:
        """Old and new stores."""
        return (*self.before, *self.fresh)


Move = TopicMove | ClientMove | ReplicaMove
