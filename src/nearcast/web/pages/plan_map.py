"""A plan on the map: each site with what it has before and after the plan, and arrows for what moves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nearcast.web.pages.frame import counted
from nearcast.web.pages.map_page import LABEL, map_options, places

if TYPE_CHECKING:
    from nearcast.web.snapshot import Snapshot

__all__ = ["plan_options"]

_ARROW = "#3b82f6"
_LISTED = 3


def plan_options(now: Snapshot, moves: list[dict[str, Any]]) -> dict[str, Any]:
    """What ECharts draws: the present map, and the changes of these moves on it."""
    options = map_options(now)
    where, change = places(now.sites), _changes(moves)
    has = {site["site"]: site for site in now.sites}
    for point in options["series"][-1]["data"]:
        name, site = point["name"], has[point["name"]]
        lines = [_counted(site[kind], change[kind, name], kind) for kind in ("topics", "clients")]
        point["label"] = {"formatter": "\n".join([name, *lines])}
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        left = [name for name in move["from"] if name not in move["to"]]
        joined = [name for name in move["to"] if name not in move["from"]]
        for source in left or move["from"]:
            for target in joined:
                if source in where and target in where:
                    arrows.setdefault((source, target), []).append(move["subject"])
    options["series"].append(
        {
            "type": "lines",
            "coordinateSystem": "cartesian2d",
            "symbol": ["none", "arrow"],
            "symbolSize": 12,
            "lineStyle": {"width": 2, "color": _ARROW, "curveness": 0.2, "opacity": 1},
            "label": {"show": True, "position": "middle", **LABEL},
            "data": [
                {
                    "coords": [where[source], where[target]],
                    "value": ", ".join(subjects),
                    "label": {"formatter": _short(subjects)},
                }
                for (source, target), subjects in arrows.items()
            ],
        }
    )
    return options


def _changes(moves: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """How many topics and clients each site gains. Stored copies are arrows only."""
    change: Counter[tuple[str, str]] = Counter()
    for move in moves:
        if move["change"].startswith("be kept"):
            continue
        kind = "clients" if move["subject"].startswith("client ") else "topics"
        for name in set(move["to"]) - set(move["from"]):
            change[kind, name] += 1
        for name in set(move["from"]) - set(move["to"]):
            change[kind, name] -= 1
    return change


def _counted(now: int, change: int, kind: str) -> str:
    return f"{now} → {counted(now + change, kind)}" if change else counted(now, kind)


def _short(subjects: list[str]) -> str:
    more = f" and {len(subjects) - _LISTED} more" if len(subjects) > _LISTED else ""
    return ", ".join(subjects[:_LISTED]) + more
