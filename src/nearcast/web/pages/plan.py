"""The plan: proposed, each move approved or refused, and exactly that executed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.changes import Changes
from nearcast.web.pages.frame import answer_or_problem, frame, redraw
from nearcast.web.pages.map_page import map_options
from nearcast.web.pages.plan_map import plan_options

if TYPE_CHECKING:
    from collections.abc import Callable

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
    def show(request: Request) -> None:
        with frame("/plan", live, request) as user:
            ui.label("A proposal changes nothing. What you approve is executed exactly as shown, until it expires.")
            button = ui.button("Propose a plan", on_click=lambda: propose())
            # One map for all plans: a chart that is removed before the browser has drawn it fails there.
            chart = ui.echart(map_options(live.now)).classes("w-full h-72").props('aria-label="The plan on the map"')
            content = ui.column().classes("w-full gap-2").mark("proposal")

        def draw(moves: list[dict[str, Any]]) -> None:
            redraw(chart, plan_options(live.now, moves) if moves else map_options(live.now))

        async def propose() -> None:
            # One plan at a time is on the page: a second click while the coordinator is asked would show two of them,
            # with two buttons to execute, and nobody could say which was meant.
            button.disable()
            content.clear()
            plan, problem = await answer_or_problem(operations.ask("plan", "show"))
            if content.is_deleted:  # the page was left meanwhile
                return
            with content:
                if plan is None:
                    ui.label(problem).props('role="alert"')
                else:
                    _Proposed(Changes(operations, user), user.may_change, plan, content, draw, button.set_enabled)
            button.enable()


class _Proposed:
    """One proposal on the page. draw: shows moves on the map. allow: whether another one may be asked for."""

    def __init__(
        self,
        changes: Changes,
        may_execute: bool,
        plan: dict[str, Any],
        content: ui.column,
        draw: Callable[[list[dict[str, Any]]], None],
        allow: Callable[[bool], object],
    ) -> None:
        self._changes, self._plan, self._content, self._draw, self._allow = changes, plan, content, draw, allow
        for found in plan["found"] or [{"sentence": "nothing is wrong"}]:
            ui.label(_sentence(found["sentence"]))
        for left in plan["left"]:
            ui.label(_sentence(f"topic {left['topic']} stays, because {left['reason']}")).classes("text-sm")
        self._approved = [self._move(move) for move in plan["moves"]]
        for move in plan["refused"]:
            ui.label(_sentence(f"{move['subject']} is not to {move['change']}, because {move['reason']}")).classes(
                "text-sm"
            )
        self._redraw()
        if not self._approved:
            ui.label("Nothing to move.")
            return
        _figures(plan)
        if not may_execute:
            ui.label("An operator can execute this plan; you are a reader.").classes("text-sm")
            return
        with ui.row().classes("items-center gap-3"):
            self._button = ui.button("Execute approved moves", on_click=self._execute)
            self._expiry = ui.label().classes("text-sm")
        self._timer = ui.timer(1.0, self._count_down)
        self._count_down()

    def _move(self, move: dict[str, Any]) -> ui.checkbox:
        said = f"{move['subject']} is to {move['change']}, because {move['reason']}"
        return ui.checkbox(_sentence(said), value=True, on_change=self._redraw)

    def _redraw(self) -> None:
        self._draw([move for move, box in zip(self._plan["moves"], self._approved, strict=True) if box.value])

    def _count_down(self) -> None:
        left = self._plan["expires"] - time.time()
        self._expiry.text = f"Plan {self._plan['id']}, valid for {left:.0f} s" if left > 0 else "This plan has expired."
        if left <= 0:
            self._button.disable()

    async def _execute(self) -> None:
        self._button.disable()
        self._allow(False)
        self._timer.cancel()
        moves = [n for n, box in enumerate(self._approved) if box.value]
        for box in self._approved:  # what is executed does not change any more
            box.disable()
        self._expiry.text = f"Plan {self._plan['id']} is being executed: {len(moves)} of {len(self._approved)} moves."
        done, problem = await answer_or_problem(self._changes.ask("plan", "execute", id=self._plan["id"], moves=moves))
        if self._content.is_deleted:
            return
        self._expiry.text = f"Plan {self._plan['id']} was {'not ' if done is None else ''}executed."
        with self._content:
            if done is None:
                ui.label(problem).props('role="alert"')
            else:
                ui.label("What became of it").classes("text-lg").props('role="heading" aria-level="2"')
                for move in done["moves"]:
                    ui.label(f"{_sentence(move['move'])} {_sentence(move['outcome'])}")
        self._allow(True)


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
