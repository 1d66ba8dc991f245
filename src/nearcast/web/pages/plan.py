"""The plan: proposed, each move approved or refused, and exactly that executed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from nearcast.errors import NearcastError
from nearcast.web.pages.frame import frame

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add"]

_FIGURES = {
    "late_topics": "topics above their bound",
    "worst_latency_ms": "slowest topic, ms",
    "overloaded_sites": "overloaded sites",
    "cov": "difference of sites' loads, share of the mean",
    "largest_site_load": "busiest site, messages/s",
}


def add(operations: Operations, live: Live) -> None:
    """The page at /plan."""

    @ui.page("/plan")
    def show() -> None:
        with frame("/plan", live):
            ui.label("A proposal changes nothing. What you approve is executed exactly as shown, until it expires.")
            ui.button("Propose a plan", on_click=lambda: propose())
            content = ui.column().classes("w-full gap-2")

        async def propose() -> None:
            content.clear()
            with content:
                try:
                    plan = await operations.ask("plan", "show")
                except NearcastError as error:
                    ui.label(str(error)).props('role="alert"')
                    return
                _Proposed(operations, plan, content)


class _Proposed:
    """One proposal on the page."""

    def __init__(self, operations: Operations, plan: dict[str, Any], content: ui.column) -> None:
        self._operations, self._plan, self._content = operations, plan, content
        for found in plan["found"] or [{"sentence": "nothing is wrong"}]:
            ui.label(_sentence(found["sentence"]))
        for left in plan["left"]:
            ui.label(_sentence(f"topic {left['topic']} stays, because {left['reason']}")).classes("text-sm")
        self._approved = [self._move(move) for move in plan["moves"]]
        for move in plan["refused"]:
            ui.label(_sentence(f"{move['subject']} is not to {move['change']}, because {move['reason']}")).classes(
                "text-sm"
            )
        if not self._approved:
            ui.label("Nothing to move.")
            return
        _figures(plan)
        with ui.row().classes("items-center gap-3"):
            self._button = ui.button("Execute approved moves", on_click=self._execute)
            self._expiry = ui.label().classes("text-sm")
        self._timer = ui.timer(1.0, self._count_down)
        self._count_down()

    def _move(self, move: dict[str, Any]) -> ui.checkbox:
        return ui.checkbox(_sentence(f"{move['subject']} is to {move['change']}, because {move['reason']}"), value=True)

    def _count_down(self) -> None:
        left = self._plan["expires"] - time.time()
        self._expiry.text = f"Plan {self._plan['id']}, valid for {left:.0f} s" if left > 0 else "This plan has expired."
        if left <= 0:
            self._button.disable()

    async def _execute(self) -> None:
        self._button.disable()
        self._timer.cancel()
        moves = [n for n, box in enumerate(self._approved) if box.value]
        try:
            done = await self._operations.execute_plan(self._plan["id"], moves)
        except NearcastError as error:
            with self._content:
                ui.label(str(error)).props('role="alert"')
            return
        with self._content:
            ui.label("What became of it").classes("text-lg").props('role="heading" aria-level="2"')
            for move in done["moves"]:
                ui.label(f"{_sentence(move['move'])} {move['outcome']}").mark("outcome")


def _figures(plan: dict[str, Any]) -> None:
    rows = [
        {"name": title, "before": plan["before"][name], "after": plan["after"].get(name)}
        for name, title in _FIGURES.items()
        if plan["before"][name] or plan["after"].get(name)
    ]
    columns = [
        {"name": name, "label": "" if name == "name" else name, "field": name, "align": "left"}
        for name in ("name", "before", "after")
    ]
    ui.table(rows=rows, columns=columns, row_key="name").props("flat bordered dense hide-pagination")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
