"""Moving a client to another site without a gap: make before break. Decisions only: see `rehoming_executor`.

    open the new connection ─► subscribe there, flush ─► publish there ─► wait ─► close the old one
             │ fails                  │ fails
             └────────────────────────┴─► close the new one, stay

From "subscribe there" to "close the old one" messages come on both connections, and ids drop the overlap. The wait is
for the other sites: they send here only once they have heard of the new subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from nearcast.protocol.control import Rehome

__all__ = ["Event", "Instruction", "Lost", "MoveOutcome", "Open", "Reached", "Rehoming", "Step"]


class Reached(Enum):
    """How far a move has come."""

    OPENED = "the new connection is there"
    RESUBSCRIBED = "all subscriptions are known to the new broker"
    SETTLED = "the other sites have had time to hear of them"


@dataclass(frozen=True)
class Lost:
    """The new connection could not be made, or was lost before it was ready."""

    reason: str


@dataclass(frozen=True)
class Open:
    """Connect to the new home."""

    url: str


class Step(Enum):
    """What to do once the new connection is there."""

    RESUBSCRIBE = "subscribe on the new connection to all there is on the old one"
    SWITCH = "publish on the new connection from now on"
    WAIT = "take messages from both for a while"
    CLOSE_OLD = "close the old connection"
    CLOSE_NEW = "close the new connection"


@dataclass(frozen=True)
class MoveOutcome:
    """The answer to the coordinator: done, or why not. `term`: the highest one seen."""

    error: str
    term: int


Event = Rehome | Reached | Lost
Instruction = Open | Step | MoveOutcome


class Rehoming:
    """The moves of one client. Events in, instructions out; no I/O, no clock.

    target: where it is going, or went last. phase: how far it is.
    """

    def __init__(self, home: str) -> None:
        self.home, self.term = home, 0
        self.target = ""
        self.phase: Literal["at home", "opening", "subscribing", "overlapping"] = "at home"

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now that this happened."""
        match event:
            case Rehome():
                return self._commanded(event)
            case Reached.OPENED if self.phase == "opening":
                self.phase = "subscribing"
                return [Step.RESUBSCRIBE]
            case Reached.RESUBSCRIBED if self.phase == "subscribing":
                self.phase, self.home = "overlapping", self.target
                return [Step.SWITCH, MoveOutcome("", self.term), Step.WAIT]
            case Reached.SETTLED if self.phase == "overlapping":
                self.phase = "at home"
                return [Step.CLOSE_OLD]
            case Lost(reason) if self.phase in ("opening", "subscribing"):
                opened, self.phase = self.phase == "subscribing", "at home"
                outcome = MoveOutcome(f"{self.target}: {reason}", self.term)
                return [Step.CLOSE_NEW, outcome] if opened else [outcome]
        return []

    def _commanded(self, command: Rehome) -> list[Instruction]:
        if command.term < self.term:
            return [MoveOutcome(f"term {command.term} is over; term {self.term} leads", self.term)]
        self.term = command.term
        if command.home == self.home:  # told twice
            return [MoveOutcome("", self.term)]
        if self.phase != "at home":
            return [MoveOutcome(f"is on its way to {self.target or self.home}", self.term)]
        self.phase, self.target = "opening", command.home
        return [Open(command.url)]
