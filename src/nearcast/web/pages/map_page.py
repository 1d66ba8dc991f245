"""The map: sites where they are, their clients, and the ways between them against the tightest bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nicegui import ui

from nearcast.web.pages.frame import frame

if TYPE_CHECKING:
    from nearcast.web.live import Live, Snapshot

__all__ = ["add", "map_options"]

_GOOD, _NEAR, _BAD, _UNKNOWN = "#2e9e5b", "#d99a06", "#d64545", "#8a94a6"


def add(live: Live) -> None:
    """The page at /."""

    @ui.page("/")
    def show() -> None:
        with frame("/", live):
            chart = ui.echart(map_options(live.now)).classes("w-full h-96").props('aria-label="Map of the sites"')
            ui.label(
                "Lines: measured one-way latency between sites, against the tightest bound of a topic: green below "
                "half of it, amber below it, red above. Sites: load against the watermark, size by clients."
            ).classes("text-sm")
            with ui.row().classes("w-full gap-2"):
                late = ui.label().classes("text-base").mark("late")

            def refresh() -> None:
                now = live.now
                above = [topic["topic"] for topic in now.topics if topic.get("late")]
                late.text = f"Above their bound: {', '.join(above)}" if above else "No topic is above its bound."
                options = map_options(now)
                if options != chart.options:
                    chart.options.clear()
                    chart.options.update(options)
                    chart.update()

            refresh()
            ui.timer(1.0, refresh)


def map_options(now: Snapshot) -> dict[str, Any]:
    """What ECharts draws."""
    places = _places(now.sites)
    bounds = [topic["bound_ms"] for topic in now.topics if topic.get("bound_ms")]
    bound = min(bounds, default=None)
    lines, seen = [], set()
    for site in now.sites:
        for peer, milliseconds in site["round_trips_ms"].items():
            pair = frozenset((site["site"], peer))
            if peer in places and len(pair) == 2 and pair not in seen:
                seen.add(pair)
                way = milliseconds / 2
                lines.append(
                    {
                        "coords": [places[site["site"]], places[peer]],
                        "lineStyle": {"color": _colour(way, bound)},
                        "value": f"{site['site']} to {peer}: {way:.1f} ms one way",
                    }
                )
    points = [
        {
            "name": site["site"],
            "value": [*places[site["site"]], _load(site)],
            "symbolSize": 18 + 6 * math.log10(1 + site["clients"]),
            "itemStyle": {"color": _BAD if site["state"] != "up" else _colour(_load(site), site["watermark"])},
            "label": {
                "formatter": f"{site['site']}\n{site['clients']} clients, {100 * _load(site):.0f} % load"
                + ("" if site["state"] == "up" else "\nlost")
            },
        }
        for site in now.sites
    ]
    axis = {"type": "value", "scale": True, "show": False, "boundaryGap": ["15%", "15%"]}
    return {
        "animation": False,
        "grid": {"left": 60, "right": 60, "top": 40, "bottom": 50},
        "tooltip": {"trigger": "item"},
        "xAxis": axis,
        "yAxis": dict(axis),
        "series": [
            {"type": "lines", "coordinateSystem": "cartesian2d", "data": lines, "lineStyle": {"width": 3}},
            {
                "type": "scatter",
                "data": points,
                "label": {"show": True, "position": "bottom", "color": "#8a94a6", "fontSize": 13, "lineHeight": 17},
            },
        ],
    }


def _places(sites: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Longitude and latitude; sites without a position are on a circle beside the others."""
    placed = {site["site"]: [site["position"][1], site["position"][0]] for site in sites if site["position"]}
    others = [site["site"] for site in sites if not site["position"]]
    across = [x for x, _ in placed.values()] or [0.0]
    up = [y for _, y in placed.values()] or [0.0]
    radius = max(max(across) - min(across), max(up) - min(up), 1.0)
    middle = (sum(across) / len(across), sum(up) / len(up))
    for n, name in enumerate(others):
        angle = 2 * math.pi * n / len(others)
        placed[name] = [middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle)]
    return placed


def _load(site: dict[str, Any]) -> float:
    """The largest share in use of what the site has."""
    return float(max(site["cpu"], site["memory"], site["network"], site["busiest_worker"]))


def _colour(value: float, limit: float | None) -> str:
    if not limit:
        return _UNKNOWN
    return _GOOD if value <= limit / 2 else _NEAR if value <= limit else _BAD
