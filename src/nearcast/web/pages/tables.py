"""The pages that are tables: topics, moves, channels, datasets, stores, sites, settings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nicegui import ui

from nearcast.web.pages.frame import frame, live_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.web.live import Live

__all__ = ["add"]

_TOPICS = {
    "topic": "topic", "members": "runs at", "bound_ms": "bound, ms", "measured_p90_ms": "p90, ms",
    "way_in_ms": "in, ms", "in_worker_p90_ms": "worker, ms", "way_out_ms": "out, ms", "messages_per_s": "messages/s",
    "waiting": "unprocessed", "replicas": "stores", "problem": "problem",
}  # fmt: skip
_MOVES = {
    "when": "time, UTC", "kind": "what", "subject": "name", "from": "from", "to": "to", "goal": "goal",
    "reason": "because", "outcome": "outcome", "seconds": "took, s",
}  # fmt: skip
_SITES = {
    "site": "site", "kind": "kind", "state": "state", "clients": "clients", "topics": "topics", "workers": "workers",
    "messages_out": "messages/s", "cpu": "CPU share", "memory": "memory share", "busiest_worker": "busiest worker",
    "url": "address",
}  # fmt: skip


def add(live: Live) -> None:
    """The pages from /topics to /settings."""

    @ui.page("/topics")
    def topics() -> None:
        with frame("/topics", live):
            live_table(_TOPICS, lambda: live.now.topics, "topic", "No topic is registered.")
            _latencies(live)

    @ui.page("/moves")
    def moves() -> None:
        with frame("/moves", live):
            live_table(_MOVES, lambda: _moves(live), "key", "Nothing was moved since this coordinator leads.")

    @ui.page("/sites")
    def sites() -> None:
        with frame("/sites", live):
            live_table(_SITES, lambda: live.now.sites, "site", "No site is registered.")

    @ui.page("/stores")
    def stores() -> None:
        titles = {"site": "site", "store_up": "answers", "replicas": "topics kept", "waiting": "unprocessed"}
        with frame("/stores", live):
            live_table(titles, lambda: _stores(live), "site", "No site has a store.")

    @ui.page("/channels")
    def channels() -> None:
        titles = {"name": "channel", "query": "query", "period": "every, s", "parameters": "parameters"}
        with frame("/channels", live):
            _catalog(titles, lambda: live.channels, "There is no channel.")

    @ui.page("/datasets")
    def datasets() -> None:
        titles = {"name": "dataset", "schema": "schema", "source": "from", "key": "key", "keep_seconds": "kept, s"}
        with frame("/datasets", live):
            _catalog(titles, lambda: live.datasets, "There is no dataset.")

    @ui.page("/settings")
    def settings() -> None:
        with frame("/settings", live):
            live_table({"name": "", "value": ""}, lambda: _status(live), "name", "No coordinator answers.")


def _latencies(live: Live) -> None:
    """The measured p90 of the last two minutes, of the ten slowest topics."""

    def options() -> dict[str, Any]:
        last = {
            name: next((p for p in reversed(points) if p is not None), None) for name, points in live.latencies.items()
        }
        slowest = sorted((name for name in last if last[name] is not None), key=lambda name: -(last[name] or 0))[:10]
        return {
            "animation": False,
            "legend": {"type": "scroll", "textStyle": {"color": "#8a94a6"}},
            "tooltip": {"trigger": "axis"},
            "xAxis": {"type": "category", "show": False},
            "yAxis": {"type": "value", "name": "p90, ms"},
            "series": [
                {"type": "line", "name": name, "showSymbol": False, "data": list(live.latencies[name])}
                for name in slowest
            ],
        }

    chart = ui.echart(options()).classes("w-full h-64").props('aria-label="Measured latency of the slowest topics"')

    def refresh() -> None:
        chart.options.clear()
        chart.options.update(options())
        chart.update()

    ui.timer(1.0, refresh)


def _moves(live: Live) -> list[dict[str, Any]]:
    """The newest first."""
    rows = []
    for n, move in enumerate(live.now.moves):
        when = datetime.fromtimestamp(move["time"], UTC).strftime("%H:%M:%S")
        rows.append({**move, "when": when, "key": f"{move['time']}-{n}"})
    return rows[::-1]


def _stores(live: Live) -> list[dict[str, Any]]:
    rows = []
    for site in live.now.sites:
        if site["store"]:
            kept = [topic for topic in live.now.topics if site["site"] in topic["replicas"]]
            waiting = sum(topic["waiting"] for topic in kept)
            rows.append({**site, "replicas": [topic["topic"] for topic in kept], "waiting": waiting})
    return rows


def _status(live: Live) -> list[dict[str, Any]]:
    rows = []
    for name, value in live.now.status.items():
        text = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else value
        rows.append({"name": name.replace("_", " "), "value": text})
    return rows


def _catalog(titles: dict[str, str], read: Callable[[], list[dict[str, Any]]], empty: str) -> None:
    def rows() -> list[dict[str, Any]]:
        return [
            {**row, "parameters": [f"{p['name']}:{p['type']}" for p in row.get("parameters", ())]} for row in read()
        ]

    live_table(titles, rows, "name", empty)
