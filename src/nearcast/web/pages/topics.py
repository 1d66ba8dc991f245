"""Topics: where each runs, its latency against its bound, and one of them in detail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.data_table import live_table
from nearcast.web.pages.frame import frame, heading, redraw

if TYPE_CHECKING:
    from nearcast.web.live import Live

__all__ = ["MOVES", "add", "move_rows"]

_TOPICS = {
    "topic": "topic", "members": "runs at", "bound_ms": "bound, ms", "measured_p90_ms": "p90, ms",
    "way_in_ms": "in, ms", "in_worker_p90_ms": "worker, ms", "way_out_ms": "out, ms", "messages_per_s": "messages/s",
    "waiting": "unprocessed", "replicas": "stores", "problem": "problem",
}  # fmt: skip
MOVES = {
    "when": "time, UTC", "kind": "what", "subject": "name", "from": "from", "to": "to", "goal": "goal",
    "reason": "because", "outcome": "outcome", "seconds": "took, s",
}  # fmt: skip
_ALL = "all topics"
_SLOWEST = 10


def add(live: Live) -> None:
    """The page at /topics."""

    @ui.page("/topics")
    def show(request: Request) -> None:
        with frame("/topics", live, request):
            live_table(_TOPICS, lambda: live.now.topics, "topic", "No topic is registered.")
            heading("Latency and moves")
            with ui.row().classes("items-end gap-3"):
                chosen = ui.select([_ALL], value=_ALL, label="Topic").classes("min-w-48")
            _latencies(live, chosen)
            live_table(
                MOVES, lambda: _moves(live, chosen.value), "key", "It was not moved since this coordinator leads."
            )

            def refresh() -> None:
                options = [_ALL, *(topic["topic"] for topic in live.now.topics)]
                if options != chosen.options:
                    chosen.set_options(options, value=chosen.value if chosen.value in options else _ALL)

            refresh()
            ui.timer(1.0, refresh)


def move_rows(live: Live) -> list[dict[str, Any]]:
    """Moves for a table, the newest first."""
    rows = []
    for n, move in enumerate(live.now.moves):
        when = datetime.fromtimestamp(move["time"], UTC).strftime("%H:%M:%S")
        rows.append({**move, "when": when, "key": f"{move['time']}-{n}"})
    return rows[::-1]


def _moves(live: Live, topic: str) -> list[dict[str, Any]]:
    return [row for row in move_rows(live) if row["kind"] != "client" and topic in (_ALL, row["subject"])]


def _latencies(live: Live, chosen: ui.select) -> None:
    """The measured p90 of the last two minutes: of one topic with its bound, or of the slowest."""

    def options() -> dict[str, Any]:
        names = _slowest(live) if chosen.value == _ALL else [chosen.value]
        series = [
            {"type": "line", "name": name, "showSymbol": False, "data": list(live.latencies.get(name, ()))}
            for name in names
        ]
        bounds = [topic["bound_ms"] for topic in live.now.topics if topic["topic"] == chosen.value]
        if series and bounds and bounds[0]:
            line = {"yAxis": bounds[0], "label": {"formatter": "bound"}}
            series[0]["markLine"] = {"silent": True, "symbol": "none", "data": [line]}
        return {
            "animation": False,
            "legend": {"type": "scroll", "textStyle": {"color": "#8a94a6"}},
            "tooltip": {"trigger": "axis"},
            "xAxis": {"type": "category", "show": False},
            "yAxis": {"type": "value", "name": "p90, ms"},
            "series": series,
        }

    chart = ui.echart(options()).classes("w-full h-64").props('aria-label="Measured latency"')
    nothing = ui.label("Nobody measured a latency in the last two minutes.").classes("text-sm")

    def refresh() -> None:
        found = options()
        measured = any(point is not None for line in found["series"] for point in line["data"])
        chart.set_visibility(measured)
        nothing.set_visibility(not measured)
        redraw(chart, found)

    refresh()
    ui.timer(1.0, refresh)


def _slowest(live: Live) -> list[str]:
    last = {name: next((p for p in reversed(points) if p is not None), None) for name, points in live.latencies.items()}
    return sorted((name for name in last if last[name] is not None), key=lambda name: -(last[name] or 0))[:_SLOWEST]
