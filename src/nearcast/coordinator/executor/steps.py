"""The steps that every move has: it is journalled before anything is done, and erased from the journal at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearcast.protocol.control import TopicRecord

__all__ = ["Begin", "Erase", "Erased", "Finish", "Journal", "Journalled", "Outcome", "Resume"]

Outcome = Literal["done", "rolled back", "abandoned"]


@dataclass(frozen=True)
class Begin:
    """Event: a new move."""


@dataclass(frozen=True)
class Resume:
    """Event: a move found in the journal, with the topic's record as it is now. None: the topic was removed."""

    record: TopicRecord | None = None


@dataclass(frozen=True)
class Journal:
    """Instruction: write the move to the journal, before anything else."""


@dataclass(frozen=True)
class Journalled:
    """Event: the journal has the move."""


@dataclass(frozen=True)
class Erase:
    """Instruction: remove the move from the journal."""


@dataclass(frozen=True)
class Erased:
    """Event: the move is no longer in the journal."""


@dataclass(frozen=True)
class Finish:
    """Instruction: the move has ended. reason: why it was not done."""

    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome
