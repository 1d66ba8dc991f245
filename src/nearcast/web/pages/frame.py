"""What all pages have: a heading, links to the others, the state of the coordinator, light and dark."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import ui

from nearcast.errors import NearcastError
from nearcast.web.pages.data_table import COMPACT_CARDS
from nearcast.web.users import ConsoleUser, current_user

if TYPE_CHECKING:
    from fastapi import Request

    from nearcast.web.live import Live

__all__ = ["PAGES", "answer_or_problem", "counted", "frame", "heading", "redraw"]

T = TypeVar("T")

PAGES = {
    "/": "Map",
    "/dashboard": "Dashboard",
    "/topics": "Topics",
    "/moves": "Moves",
    "/plan": "Plan",
    "/channels": "Channels",
    "/datasets": "Datasets",
    "/stores": "Stores",
    "/dead-letters": "Dead letters",
    "/sites": "Sites",
    "/users": "Users",
    "/audit": "Audit",
    "/settings": "Settings",
}
_PERIOD = 1.0
_PRIMARY = "#2f74d0"  # white on it, and it on white or on black, can be read


# The page of a session that is over shows the login instead of a connection that is lost.
_FOLLOW_SESSION = """<script>
setInterval(async () => {
  const answer = await fetch("/api/v1/session").catch(() => null);
  if (answer !== null && answer.status === 401) location.href = "/login";
}, 3000);
</script>"""
_LOG_OUT = "() => fetch('/logout', {method: 'POST'}).then(() => location.href = '/login')"


@contextlib.contextmanager
def frame(path: str, live: Live, request: Request) -> Iterator[ConsoleUser]:
    """The frame of the page at a path, for the user that is given; what is made inside is its content."""
    user = current_user(request)
    dark = ui.dark_mode(None)
    ui.colors(primary=_PRIMARY)
    ui.add_css(COMPACT_CARDS)
    ui.page_title(f"Nearcast: {PAGES[path]}")
    with ui.header().classes("items-center gap-2 px-3 py-1 bg-slate-800"):
        ui.label("Nearcast").classes("text-lg font-bold text-white")
        state = ui.label().classes("text-sm text-white grow")
        ui.button("Light", on_click=dark.disable).props("flat dense color=white")
        ui.button("Dark", on_click=dark.enable).props("flat dense color=white")
        if user.logged_in:
            ui.add_head_html(_FOLLOW_SESSION)
            ui.label(f"{user.name}, {user.role}").classes("text-sm text-white")
            ui.button("Log out").props("flat dense color=white").on("click", js_handler=_LOG_OUT)
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
            sites, topics, clients = (counted(status[noun], noun) for noun in ("sites", "topics", "clients"))
            state.text = f"{sites}{lost}, {topics}, {clients}"

    refresh()
    ui.timer(_PERIOD, refresh)
    with ui.column().classes("w-full max-w-screen-xl mx-auto gap-3"):
        ui.label(PAGES[path]).classes("text-xl font-bold").props('role="heading" aria-level="1"')
        yield user


def heading(text: str) -> None:
    """The heading of a part of a page."""
    ui.label(text).classes("text-lg font-bold mt-2").props('role="heading" aria-level="2"')


def counted(number: int, noun: str) -> str:
    """A number with its noun, which is given in the plural."""
    return f"{number} {noun if number != 1 else noun.removesuffix('s')}"


def redraw(chart: ui.echart, options: dict[str, Any]) -> None:
    """Draw these options, if they are others than before."""
    if options != chart.options:
        chart.options.clear()
        chart.options.update(options)
        chart.update()


async def answer_or_problem(question: Awaitable[T]) -> tuple[T | None, str]:
    """The answer, or none and why."""
    try:
        return await question, ""
    except NearcastError as error:
        return None, str(error)
