"""The dashboard: the panels of deploy/grafana, drawn from what the console has collected itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.frame import frame, heading, redraw
from nearcast.web.panel_history import PANELS, PERIOD

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.panel_history import DashboardPanel, PanelHistory

__all__ = ["add", "chart_options", "stat_values"]

_GREY = "#6f7b8d"  # readable on light and on dark
_LINES = "#8a94a655"
_COLOURS = [
    "#3b82f6",
    "#d97706",
    "#16a34a",
    "#dc2626",
    "#9333ea",
    "#0891b2",
    "#db2777",
    "#65a30d",
    "#78716c",
    "#0d9488",
]
_SHOWN_UNITS = {"s": ("ms", 1000), "percentunit": ("%", 100), "cps": ("per s", 1), "Bps": ("kB/s", 0.001)}
_LONG = 10.0  # from so many seconds on, milliseconds are hard to read


def add(live: Live) -> None:
    """The page at /dashboard."""

    @ui.page("/dashboard")
    def show(request: Request) -> None:
        with frame("/dashboard", live, request):
            _stats(live)
            rows = dict.fromkeys(panel.row for panel in PANELS)
            for row in rows:
                heading(row)
                with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-2 lg:grid-cols-3 gap-3"):
                    for panel in PANELS:
                        if panel.row == row:
                            _panel(live.panels, panel)
            ui.label(
                f"A point each {PERIOD} s, of the last quarter of an hour, kept by this console since it was started; "
                "a panel has the ten largest series of each moment. Times are UTC. "
                "For longer times: deploy/grafana with Prometheus."
            ).classes("text-sm")


def stat_values(live: Live) -> dict[str, int]:
    """The numbers at the top."""
    now = live.now
    return {
        "Topics above their bound": sum(bool(topic.get("late")) for topic in now.topics),
        "Lost sites": len(now.status.get("lost", ())),
        "Stores down": sum(bool(site["store"]) and not site["store_up"] for site in now.sites),
        "Unprocessed messages": sum(topic["waiting"] for topic in now.topics),
        "Dead letters, last hour": live.panels.dead_letters(),
        "Leading coordinators": int(not now.problem),
    }


def chart_options(history: PanelHistory, panel: DashboardPanel) -> dict[str, Any]:
    """What ECharts draws of a panel."""
    found = history.series(panel.title)
    unit, scale = _SHOWN_UNITS.get(panel.unit, ("", 1))
    if panel.unit == "s" and max((point or 0 for points in found.values() for point in points), default=0) >= _LONG:
        unit, scale = "s", 1
    series = [
        {
            "type": "line",
            "name": name,
            "symbolSize": 3,
            "showAllSymbol": True,  # a point between two gaps, too
            "data": [None if point is None else round(point * scale, 3) for point in points],
        }
        for name, points in found.items()
    ]
    label = {"color": _GREY, "fontSize": 11}
    return {
        "animation": False,
        "color": _COLOURS,
        "aria": {"enabled": True, "label": {"description": _description(panel.title, unit, series)}},
        "grid": {"left": 8, "right": 12, "top": 28, "bottom": 44, "containLabel": True},
        "legend": {"type": "scroll", "bottom": 0, "textStyle": label, "pageTextStyle": label},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "category",
            "data": [datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") for at in history.times],
            "axisLabel": {**label, "hideOverlap": True},
        },
        "yAxis": {
            "type": "value",
            "name": unit,
            "nameTextStyle": label,
            "axisLabel": label,
            "splitLine": {"lineStyle": {"color": _LINES}},
            "min": 0,
        },
        "series": series,
    }


def _description(title: str, unit: str, series: list[dict[str, Any]]) -> str:
    """What a reader of screens says: the present values."""
    now = [f"{line['name']} {line['data'][-1]:g} {unit}".strip() for line in series if line["data"][-1] is not None]
    return f"{title}: {', '.join(now) or 'nothing'}."


def _stats(live: Live) -> None:
    heading("Now")
    labels: dict[str, ui.label] = {}
    with ui.element("div").classes("w-full grid grid-cols-2 md:grid-cols-3 lg:grid-cols-6 gap-3"):
        for title in stat_values(live):
            with ui.card().classes("p-3 gap-1").props('role="group"'):
                ui.label(title).classes("text-sm")
                labels[title] = ui.label().classes("text-2xl font-bold")

    def refresh() -> None:
        for title, value in stat_values(live).items():
            labels[title].text = f"{value:,}"

    refresh()
    ui.timer(1.0, refresh)


def _panel(history: PanelHistory, panel: DashboardPanel) -> None:
    with ui.card().classes("p-3 gap-1 min-w-0"):
        ui.label(panel.title).classes("font-bold").props('role="heading" aria-level="3"')
        if panel.text:
            ui.label(panel.text).classes("text-xs")
        nothing = ui.label("Nothing to show yet.").classes("text-sm")
        chart = ui.echart(chart_options(history, panel)).classes("w-full h-56").props('role="img" tabindex="0"')

    def refresh() -> None:
        options = chart_options(history, panel)
        chart.set_visibility(bool(options["series"]))
        nothing.set_visibility(not options["series"])
        redraw(chart, options)

    refresh()
    ui.timer(PERIOD, refresh)
