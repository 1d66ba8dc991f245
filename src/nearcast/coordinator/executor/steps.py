"""What every move has: it is written down before anything is done, and taken out of the journal at its end."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Begin", "Erase", "Erased", "Journal", "Journalled"]


@dataclass(frozen=True)
class Begin:
    """Event: a new move."""


@dataclass(frozen=True)
class Journal:
    """Instruction: write the move down, before anything is done."""


@dataclass(frozen=True)
class Journalled:
    """Event: the journal has the move."""


@dataclass(frozen=True)
class Erase:
    """Instruction: take the move out of the journal."""


@dataclass(frozen=True)
class Erased:
    """Event: the journal no longer has the move."""
