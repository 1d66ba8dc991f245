"""One pass of the loop: a model from the last reports, what is wrong with it, a plan, and its execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearcast.coordinator.coordinator import Coordinator

__all__ = ["Planning"]


class Planning:
    """Model, detectors, goals and plan, for a coordinator that leads."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def step(self) -> None:
        """One pass."""

    def show(self) -> dict[str, Any]:
        """The plan for the present state, not carried out."""
        return {}

    async def apply(self) -> dict[str, Any]:
        """The plan for the present state, carried out."""
        return {}

    def topic_figures(self, topic: str) -> dict[str, Any]:
        """What the model has about a topic."""
        return {}

    def last_pass(self) -> dict[str, Any]:
        """What the last pass found and did."""
        return {}
