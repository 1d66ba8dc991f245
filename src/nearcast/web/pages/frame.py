"""What all pages have: a heading, links to the others, the state of the coordinator, light and dark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nicegui import ui

if TYPE_CHECKING:
    from nearcast.web.live import Live

__all__ = ["frame", "live_table"]

PAGES = {
    "/": "Map",
    "/topics": "Topics",
    "/moves": "Moves",
    "/plan": "Plan",
    "/channels": "Channels",
    "/datasets": "Datasets",
    "/stores": "Stores",
    "/dead-letters": "Dead letters",
    "/sites": "Sites",
    "/settings": "Settings",
}
_PERIOD = 1.0


@contextlib.contextmanager
def frame(path: str, live: Live) -> Iterator[None]:
    """The frame of the page at a path; what is made inside is its content."""
    dark = ui.dark_mode(None)
    ui.page_title(f"Nearcast: {PAGES[path]}")
    with ui.header().classes("items-center gap-2 px-3 py-1 bg-slate-800"):
        ui.label("Nearcast").classes("text-lg font-bold text-white")
        state = ui.label().classes("text-sm text-white grow")
        ui.button("Light", on_click=dark.disable).props("flat dense color=white")
        ui.button("Dark", on_click=dark.enable).props("flat dense color=white")
        with ui.element("nav").classes("w-full flex flex-wrap gap-x-3").props('aria-label="Pages"'):
            for target, name in PAGES.items():
                link = ui.link(name, target).classes("text-white text-sm py-1")
                if target == path:
                    link.classes("font-bold underline").props('aria-current="page"')
                else:
                    link.classes("no-underline")

    announcement = ui.label().classes("w-full max-w-screen-xl mx-auto font-bold").props('role="status"')

    def refresh() -> None:
        now = live.now
        announcement.text = live.announcement
        announcement.set_visibility(bool(live.announcement))
        if now.problem:
            state.text = f"No news: {now.problem}"
        else:
            status = now.status
            lost = f", lost: {', '.join(status['lost'])}" if status["lost"] else ""
            state.text = f"{status['sites']} sites{lost}, {status['topics']} topics, {status['clients']} clients"

    refresh()
    ui.timer(_PERIOD, refresh)
    with ui.column().classes("w-full max-w-screen-xl mx-auto gap-3"):
        ui.label(PAGES[path]).classes("text-xl font-bold").props('role="heading" aria-level="1"')
        yield


def live_table(columns: dict[str, str], rows: Any, key: str, empty: str) -> None:
    """A table that is refreshed each second. columns: title by field. rows: a function that gives them."""

    def shown() -> list[dict[str, Any]]:
        return [{name: _text(row.get(name)) for name in {*columns, key}} for row in rows()]

    given = [
        {"name": name, "label": title, "field": name, "align": "left", "sortable": True}
        for name, title in columns.items()
    ]
    table = ui.table(rows=shown(), columns=given, row_key=key, pagination=50).classes("w-full")
    table.props(f'flat bordered dense wrap-cells no-data-label="{empty}"')

    def refresh() -> None:
        found = shown()
        if found != table.rows:
            table.rows = found

    ui.timer(_PERIOD, refresh)


def _text(value: Any) -> Any:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return round(value, 3) if isinstance(value, float) else value
