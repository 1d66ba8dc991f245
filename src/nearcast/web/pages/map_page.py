"""The map: sites and clients where they are, and the ways between sites against the tightest bound."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.frame import counted, frame, redraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.web.client_positions import PlacedClient
    from nearcast.web.live import Live
    from nearcast.web.snapshot import Snapshot

__all__ = ["LABEL", "add", "map_options", "places"]

LABEL = {"color": "#ffffff", "backgroundColor": "#1e293b", "padding": [3, 6], "borderRadius": 4, "fontSize": 12}
"""Of texts on the map: readable on light, on dark, and where they are on a line."""
_CLIENT = "#3b82f6"
_GOLDEN = math.pi * (3 - math.sqrt(5))
_MOST_DOTS = 200
_GOOD, _NEAR, _BAD, _UNKNOWN = "#2e9e5b", "#d99a06", "#d64545", "#8a94a6"


def add(live: Live) -> None:
    """The page at /."""

    @ui.page("/")
    def show(request: Request) -> None:
        with frame("/", live, request):
            chart = (
                ui.echart(map_options(live.now, live.positions.now()))
                .classes("w-full h-[60vh] min-h-96")
                .props('aria-label="Map of the sites"')
            )
            ui.label(
                "Lines: measured one-way latency between sites, against the tightest bound of a topic: green below "
                "half of it, amber below it, red above. Sites: load against the watermark. Blue dots: clients, where "
                "they say they are, or around their home."
            ).classes("text-sm")
            with ui.row().classes("w-full gap-2"):
                late = ui.label().classes("text-base").mark("late")

            def refresh() -> None:
                now = live.now
                above = [topic["topic"] for topic in now.topics if topic.get("late")]
                late.text = f"Above their bound: {', '.join(above)}" if above else "No topic is above its bound."
                redraw(chart, map_options(now, live.positions.now()))

            refresh()
            ui.timer(1.0, refresh)


def map_options(now: Snapshot, placed: Sequence[PlacedClient] = ()) -> dict[str, Any]:
    """What ECharts draws. placed: the clients whose positions are known."""
    unplaced = _unplaced(now, placed)
    where = places(now.sites)
    bounds = [topic["bound_ms"] for topic in now.topics if topic.get("bound_ms")]
    bound = min(bounds, default=None)
    lines, seen = [], set()
    for site in now.sites:
        for peer, milliseconds in site["round_trips_ms"].items():
            pair = frozenset((site["site"], peer))
            if peer in where and len(pair) == 2 and pair not in seen:
                seen.add(pair)
                way = milliseconds / 2
                lines.append(
                    {
                        "coords": [where[site["site"]], where[peer]],
                        "lineStyle": {"color": _colour(way, bound), "opacity": 0.8},
                        "value": f"{site['site']} to {peer}: {way:.1f} ms one way",
                    }
                )
    points = [
        {
            "name": site["site"],
            "value": [*where[site["site"]], _load(site)],
            "symbolSize": 22,
            "itemStyle": {
                "color": _BAD if site["state"] != "up" else _colour(_load(site), site["watermark"]),
                "opacity": 1,
            },
            "label": {
                "formatter": f"{site['site']}\n{counted(site['clients'], 'clients')}, {100 * _load(site):.0f} % load"
                + ("" if site["state"] == "up" else "\nlost"),
                "distance": _spiral(unplaced[site["site"]]) - 8 if unplaced[site["site"]] else 5,
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
                "data": _dots_around_homes(unplaced, where),
                "silent": True,
                "itemStyle": {"color": _CLIENT},
            },
            {
                "type": "scatter",
                "data": [
                    {"name": f"{client.name}, home {client.home}", "value": [*client.position[::-1]]}
                    for client in placed
                ],
                "symbolSize": 6,
                "itemStyle": {"color": _CLIENT, "opacity": 0.8},
            },
            {
                "type": "scatter",
                "data": points,
                "label": {"show": True, "position": "bottom", "lineHeight": 16, **LABEL},
            },
        ],
    }


def _unplaced(now: Snapshot, placed: Sequence[PlacedClient]) -> dict[str, int]:
    """By site: its clients whose positions are not known. Of many, as many as have room."""
    known = Counter(client.home for client in placed)
    return {site["site"]: max(0, min(site["clients"] - known[site["site"]], _MOST_DOTS)) for site in now.sites}


def _dots_around_homes(unplaced: dict[str, int], where: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "value": where[site],
            "symbolSize": 4,
            "symbolOffset": [_spiral(n) * math.cos(_GOLDEN * n), _spiral(n) * math.sin(_GOLDEN * n)],
        }
        for site, count in unplaced.items()
        for n in range(count)
    ]


def _spiral(number: int) -> float:
    """Pixels from the middle of the site: outside of its symbol, and evenly dense."""
    return 16 + 3 * math.sqrt(number)


def places(sites: list[dict[str, Any]]) -> dict[str, list[float]]:
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
