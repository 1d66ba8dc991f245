"""Moving a client to another site without a gap: make before break. Decisions only: see `rehoming_executor`.

    open the new connection ─► subscribe there, flush ─► publish there ─► wait ─► close the old one
             │ fails                  │ fails
             └────────────────────────┴─► close the new one, stay

From "subscribe there" to "close the old one" messages come on both connections, and ids drop the overlap. The wait is
for the other sites: they send here only once they have heard of the new subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Close",
    "Commanded",
    "Event",
    "Instruction",
    "Lost",
    "MoveOutcome",
    "Open",
    "Opened",
    "Rehoming",
    "Resubscribe",
    "Resubscribed",
    "Settled",
    "Switch",
    "Wait",
]


@dataclass(frozen=True)
class Commanded:
    """The coordinator of a term says where to go."""

    term: int
    home: str
    url: str


@dataclass(frozen=True)
class Opened:
    """The new connection is there."""


@dataclass(frozen=True)
class Resubscribed:
    """All subscriptions are known to the new broker."""


@dataclass(frozen=True)
class Settled:
    """The other sites have had time to hear of them."""


@dataclass(frozen=True)
class Lost:
    """The new connection could not be made, or was lost before it was ready."""

    reason: str


@dataclass(frozen=True)
class Open:
    """Connect to the new home."""

    url: str


@dataclass(frozen=True)
class Resubscribe:
    """Resubscribe on the new connection to all there is on the old one."""


@dataclass(frozen=True)
class Switch:
    """Publish on the new connection from now on."""


@dataclass(frozen=True)
class Wait:
    """Take messages from both for a while."""


@dataclass(frozen=True)
class Close:
    """Close one of the two connections."""

    which: Literal["old", "new"]


@dataclass(frozen=True)
class MoveOutcome:
    """The answer to the coordinator: done, or why not. `term`: the highest one seen."""

    error: str
    term: int


Event = Commanded | Opened | Resubscribed | Settled | Lost
Instruction = Open | Resubscribe | Switch | Wait | Close | MoveOutcome


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
            case Commanded(term, home, url):
                return self._commanded(term, home, url)
            case Opened() if self.phase == "opening":
                self.phase = "subscribing"
                return [Resubscribe()]
            case Resubscribed() if self.phase == "subscribing":
                self.phase, self.home = "overlapping", self.target
                return [Switch(), MoveOutcome("", self.term), Wait()]
            case Settled() if self.phase == "overlapping":
                self.phase = "at home"
                return [Close("old")]
            case Lost(reason) if self.phase in ("opening", "subscribing"):
                opened, self.phase = self.phase == "subscribing", "at home"
                outcome = MoveOutcome(f"{self.target}: {reason}", self.term)
                return [Close("new"), outcome] if opened else [outcome]
        return []

    def _commanded(self, term: int, home: str, url: str) -> list[Instruction]:
        if term < self.term:
            return [MoveOutcome(f"term {term} is over; term {self.term} leads", self.term)]
        self.term = term
        if home == self.home:  # told twice
            return [MoveOutcome("", term)]
        if self.phase != "at home":
            return [MoveOutcome(f"is on its way to {self.target or self.home}", term)]
        self.phase, self.target = "opening", home
        return [Open(url)]
