"""Re-homing a client, as the coordinator sees it: journal, tell the client, note its new home. Decisions only.

The client makes the move itself, make-before-break (`nearcast.client.coordination.rehoming`); telling it twice does no
harm. So a coordinator that finds such a move in the journal tells the client again, and a client that does not answer
stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Journal, Journalled

__all__ = [
    "Begin",
    "ClientMove",
    "ClientMoveMachine",
    "Erase",
    "Erased",
    "Event",
    "Finish",
    "Instruction",
    "Journal",
    "Journalled",
    "Moved",
    "Note",
    "Noted",
    "Resume",
    "Stayed",
    "Tell",
]


class ClientMove(msgspec.Struct, frozen=True, tag="client"):
    """A client's home before and after, as journalled."""

    id: str
    client: str
    before: str
    after: str
    goal: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Resume:
    """A move found in the journal."""


@dataclass(frozen=True)
class Moved:
    """The client says it is at its new home."""


@dataclass(frozen=True)
class Stayed:
    """The client refused, could not connect, or did not answer in time."""

    reason: str


@dataclass(frozen=True)
class Noted:
    """The registry has the new home."""


@dataclass(frozen=True)
class Tell:
    """Tell the client its new home's address."""


@dataclass(frozen=True)
class Note:
    """Write the new home into the registry."""


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do. `reason` is why the client stayed, if it did."""

    moved: bool
    reason: str = ""


Event = Begin | Resume | Journalled | Moved | Stayed | Noted | Erased
Instruction = Journal | Tell | Note | Erase | Finish


class ClientMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self, move: ClientMove) -> None:
        self.move = move
        self._reason = ""

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now that this happened."""
        match event:
            case Begin():
                return [Journal()]
            case Journalled() | Resume():
                return [Tell()]
            case Moved():
                return [Note()]
            case Stayed(reason):
                self._reason = reason
                return [Erase()]
            case Noted():
                return [Erase()]
            case Erased():
                return [Finish(not self._reason, self._reason)]
