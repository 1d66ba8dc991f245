"""Re-homing a client: journal, tell the client, record its new home. Decisions only; `executor` does the I/O.

The client itself moves, make-before-break (`nearcast.client.coordination.rehoming`). The command is idempotent, so
a coordinator that finds the move in the journal sends it again. A client that does not answer stays at its old home.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Finish, Journal, Journalled, Resume

__all__ = ["ClientMoveMachine", "Event", "HomeRecorded", "Instruction", "Moved", "RecordHome", "Stayed", "TellClient"]


@dataclass(frozen=True)
class Moved:
    """Event: the client is connected to its new home."""


@dataclass(frozen=True)
class Stayed:
    """Event: the client refused, could not connect, or did not answer in time."""

    reason: str


@dataclass(frozen=True)
class HomeRecorded:
    """Event: the registry has the new home."""


@dataclass(frozen=True)
class TellClient:
    """Instruction: send the client the address of its new home."""


@dataclass(frozen=True)
class RecordHome:
    """Instruction: write the new home to the registry."""


Event = Begin | Resume | Journalled | Moved | Stayed | HomeRecorded | Erased
Instruction = Journal | TellClient | RecordHome | Erase | Finish


class ClientMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self) -> None:
        self._reason = ""

    def handle(self, event: Event) -> Instruction:
        """The next instruction."""
        match event:
            case Begin():
                return Journal()
            case Journalled() | Resume():
                return TellClient()
            case Moved():
                return RecordHome()
            case Stayed(reason):
                self._reason = reason
                return Erase()
            case HomeRecorded():
                return Erase()
            case Erased():
                return Finish("abandoned" if self._reason else "done", self._reason)
