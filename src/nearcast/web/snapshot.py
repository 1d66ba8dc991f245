"""What the coordinator said last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """number: grows with each. problem: why there is nothing new; the rest is then what was known before."""

    number: int = 0
    problem: str = "not asked yet"
    status: dict[str, Any] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
