"""The steps that every move has: it is journalled before anything is done, and erased from the journal at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Erase", "Finish", "Journal", "Outcome"]

Outcome = Literal["done", "rolled back", "abandoned"]


@dataclass(frozen=True)
class Journal:
    """Write the move to the journal, before anything else."""


@dataclass(frozen=True)
class Erase:
    """Remove the move from the journal."""


@dataclass(frozen=True)
class Finish:
    """The move has ended. reason: why it was not done."""

    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome
