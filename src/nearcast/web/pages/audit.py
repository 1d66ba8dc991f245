"""The audit log: who changed what, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.data_table import data_table, show_rows
from nearcast.web.pages.frame import answer_or_problem, frame

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add"]

_COLUMNS = {"when": "time, UTC", "who": "who", "action": "did", "what": "to what", "outcome": "outcome"}


def add(operations: Operations, live: Live) -> None:
    """The page at /audit."""

    @ui.page("/audit")
    def show(request: Request) -> None:
        with frame("/audit", live, request):
            with ui.row().classes("items-end gap-3"):
                wanted = ui.input("Contains", on_change=lambda: select())
                ui.button("Read again", on_click=lambda: read())
            said = ui.label().props('role="status"')
            table = data_table(_COLUMNS, "key", "Nothing was changed yet.")
        rows: list[dict[str, Any]] = []

        def select() -> None:
            text = str(wanted.value or "").lower()
            show_rows(table, [row for row in rows if any(text in str(row[name]).lower() for name in _COLUMNS)])

        async def read() -> None:
            found, problem = await answer_or_problem(operations.ask("audit", "ls"))
            if table.is_deleted:  # the page was left meanwhile
                return
            rows[:] = [_row(n, entry) for n, entry in enumerate(found or ())][::-1]
            said.text = problem
            select()

        ui.timer(0.1, read, once=True)


def _row(number: int, entry: dict[str, Any]) -> dict[str, Any]:
    when = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {**entry, "when": when, "key": number}
