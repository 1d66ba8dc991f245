"""The console: one module per page, all in the same frame, refreshed from one live state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.web.pages import dead_letters, map_page, plan, tables

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add_pages"]


def add_pages(operations: Operations, live: Live) -> None:
    """Add all pages to the console."""
    map_page.add(live)
    tables.add(live)
    plan.add(operations, live)
    dead_letters.add(operations, live)
