"""Dead letters: browse, look into, retry, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.changes import Changes
from nearcast.web.pages.data_table import data_table, show_rows
from nearcast.web.pages.frame import answer_or_problem, frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nearcast.client.dead_letters import StoredLetter
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add"]

_COLUMNS = {
    "topic": "topic",
    "published": "published, UTC",
    "attempts": "attempts",
    "reason": "reason",
    "payload": "payload",
}
_SHOWN_BYTES = 300


def add(operations: Operations, live: Live) -> None:
    """The page at /dead-letters."""

    @ui.page("/dead-letters")
    def show(request: Request) -> None:
        with frame("/dead-letters", live, request) as user:
            with ui.row().classes("items-end gap-3"):
                topic = ui.input("Topic or pattern", value=">")
                ui.button("Look", on_click=lambda: look())
                if user.may_change:
                    ui.button("Retry selected", on_click=lambda: change(retry))
                    ui.button("Drop selected", on_click=lambda: change(drop)).props("color=negative")
            said = ui.label().props('role="status"')
            table = data_table(
                _COLUMNS, "id", "There are no dead letters.", selection="multiple" if user.may_change else None
            )

        changes = Changes(operations, user)

        async def look() -> None:
            letters, problem = await answer_or_problem(operations.dead_letters(topic.value))
            if table.is_deleted:  # the page was left meanwhile
                return
            # What was selected while the stores were asked stays selected, as far as it is still there.
            chosen = {row["id"] for row in table.selected}
            rows = [_row(letter) for letter in letters or ()]
            show_rows(table, rows)
            table.selected = [row for row in rows if row["id"] in chosen]
            said.text = problem or said.text

        async def retry(ids: list[str]) -> str:
            outcomes = await changes.retry(topic.value, ids, force=True)
            refused = [one["outcome"] for one in outcomes if not one["sent"]]
            return f"{len(outcomes) - len(refused)} given to their processors again. {' '.join(refused)}"

        async def drop(ids: list[str]) -> str:
            return f"{await changes.drop(topic.value, ids)} dropped."

        async def change(selected: Callable[[list[str]], Awaitable[str]]) -> None:
            ids = [row["id"] for row in table.selected]
            if not ids:
                said.text = "Select dead letters first."
                return
            done, problem = await answer_or_problem(selected(ids))
            said.text = problem or done
            if not problem:
                await look()

        ui.timer(0.1, look, once=True)


def _row(letter: StoredLetter) -> dict[str, Any]:
    listed = letter.to_dict()
    payload = letter.payload[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return listed | {"published": listed["published"][:23].replace("T", " "), "payload": payload}
