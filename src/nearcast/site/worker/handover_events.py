"""What the handover machine is told, and what it says is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged, SpoolPage, SpoolPageRequest

__all__ = [
    "AwaitIdle",
    "Command",
    "CopyFailed",
    "Discard",
    "Done",
    "Drain",
    "Drained",
    "Event",
    "FetchPage",
    "Forget",
    "Forward",
    "HandedOver",
    "HandoverMessage",
    "HoldExpired",
    "HoldOver",
    "Idle",
    "Instruction",
    "Keep",
    "PageReceived",
    "PlainReceived",
    "Process",
    "Refuse",
    "Role",
    "SettleOver",
    "StartTimer",
    "Subscribe",
    "Subscribed",
]

Role = Literal["queue", "copies", "plain"]
Command = HostTopic | LeaveTopic | MembersChanged | SpoolPageRequest


class HandoverMessage(NamedTuple):
    """A message of a concrete topic; the id may be empty."""

    topic: str
    id: bytes
    payload: bytes


# Events: the commands of protocol/worker, and what happened.


@dataclass(frozen=True)
class Subscribed:
    """The broker knows of a subscription."""

    role: Role


@dataclass(frozen=True)
class Drained:
    """A subscription has ended, and all it got has been taken."""

    role: Role


@dataclass(frozen=True)
class PageReceived:
    """Part of the source's spool."""

    page: SpoolPage


@dataclass(frozen=True)
class CopyFailed:
    """The source did not send its spool."""

    reason: str


@dataclass(frozen=True)
class PlainReceived:
    """The plain subscription got a publication."""

    publication: HandoverMessage


@dataclass(frozen=True)
class HandedOver:
    """A worker that left the topic forwarded a publication."""

    publication: HandoverMessage


@dataclass(frozen=True)
class HoldExpired:
    """A publication that was handed over has been held long enough."""

    publication: HandoverMessage


@dataclass(frozen=True)
class SettleOver:
    """All brokers have heard by now that this worker left the queue group."""


@dataclass(frozen=True)
class HoldOver:
    """What others forwarded to this worker while it left has come by now."""


@dataclass(frozen=True)
class Idle:
    """Nothing of the topic waits to be processed."""


# Instructions: what to do next.


@dataclass(frozen=True)
class Subscribe:
    """Subscribe, and wait until the broker knows; `Subscribed` follows."""

    role: Role


@dataclass(frozen=True)
class Drain:
    """End a subscription after taking what was sent to it; `Drained` follows."""

    role: Role


@dataclass(frozen=True)
class FetchPage:
    """Ask the source for part of its spool; `PageReceived` or `CopyFailed` follows."""

    source: WorkerId
    request: SpoolPageRequest


@dataclass(frozen=True)
class AwaitIdle:
    """Wait until what was taken is processed; `Idle` follows."""


@dataclass(frozen=True)
class StartTimer:
    """An event after some seconds."""

    seconds: float
    event: SettleOver | HoldOver | HoldExpired


@dataclass(frozen=True)
class Keep:
    """Append to the spool; another member processes it."""

    publication: HandoverMessage


@dataclass(frozen=True)
class Process:
    """Append to the spool and process."""

    publication: HandoverMessage


@dataclass(frozen=True)
class Forward:
    """Hand a publication over to a member."""

    towards: WorkerId
    publication: HandoverMessage


@dataclass(frozen=True)
class Discard:
    """A publication that was handed over to a worker that can neither process nor forward it."""

    publication: HandoverMessage


@dataclass(frozen=True)
class Forget:
    """The topic has gone: close its spools and delete their files. Then host it again if these commands say so."""

    returning: tuple[HostTopic, ...] = ()


@dataclass(frozen=True)
class Done:
    """A command was carried out, once the I/O instructed before this has been done."""

    command: Command


@dataclass(frozen=True)
class Refuse:
    """A command cannot be carried out."""

    command: Command
    reason: str


Event = (
    Command
    | Subscribed
    | Drained
    | PageReceived
    | CopyFailed
    | PlainReceived
    | HandedOver
    | HoldExpired
    | SettleOver
    | HoldOver
    | Idle
)
Instruction = (
    Subscribe | Drain | FetchPage | AwaitIdle | StartTimer | Keep | Process | Forward | Discard | Forget | Done | Refuse
)
