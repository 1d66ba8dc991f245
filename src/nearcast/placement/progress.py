"""How a planner reports its progress: it calls a function with the share of the work that is done, 0 to 1."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Advance", "no_progress"]

Advance = Callable[[float], None]


def no_progress(fraction: float) -> None:
    """Discard the report."""
