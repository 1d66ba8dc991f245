"""The console: one module per page, all in the same frame, refreshed from one live state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.web.pages import audit, catalog, dashboard, dead_letters, map_page, plan, tables, topics, users

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.login_sessions import LoginSessions
    from nearcast.web.operations import Operations

__all__ = ["add_pages"]


def add_pages(operations: Operations, live: Live, sessions: LoginSessions | None) -> None:
    """Add all pages to the console. sessions: none where there is no login."""
    map_page.add(live)
    dashboard.add(live)
    topics.add(live)
    tables.add(operations, live)
    catalog.add(operations, live)
    users.add(operations, live, sessions)
    audit.add(operations, live)
    plan.add(operations, live)
    dead_letters.add(operations, live)
