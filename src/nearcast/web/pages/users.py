"""Who is there: sessions of this console, and registered clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.data_table import live_table
from nearcast.web.pages.frame import answer_or_problem, frame, heading

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.login_sessions import LoginSessions
    from nearcast.web.operations import Operations

__all__ = ["add"]

_SESSIONS = {"user": "user", "role": "role", "address": "from"}
_CLIENTS = {
    "client": "client", "home": "home", "publishes": "topics published", "subscribes": "topics subscribed to",
    "channels": "channel subscriptions",
}  # fmt: skip
_PERIOD = 5.0


def add(operations: Operations, live: Live, sessions: LoginSessions | None) -> None:
    """The page at /users. sessions: none where there is no login."""

    @ui.page("/users")
    def show(request: Request) -> None:
        clients: list[dict[str, Any]] = []

        async def read() -> None:
            found, _ = await answer_or_problem(operations.ask("client", "ls"))
            if found is not None:  # else the header says that no coordinator answers
                clients[:] = found

        with frame("/users", live, request):
            heading("Logged in to this console")
            if sessions is None:
                ui.label("This console has no login: everybody on this machine may use it.")
            else:
                live_table(_SESSIONS, lambda: _sessions(sessions), "key", "Nobody is logged in.")
            heading("Registered clients")
            live_table(_CLIENTS, lambda: clients, "client", "No client is registered.")
            ui.label(
                "Users are made and revoked where the keys are: nearcast auth ls, add, revoke. A revoked user is out "
                "of this console at once."
            ).classes("text-sm")
        ui.timer(_PERIOD, read)


def _sessions(sessions: LoginSessions) -> list[dict[str, Any]]:
    return [
        {"key": n, "user": one.user.name, "role": one.user.role, "address": one.address}
        for n, one in enumerate(sessions.open())
    ]
