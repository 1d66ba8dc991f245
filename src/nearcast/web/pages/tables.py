"""The pages that are tables: moves, stores, sites, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request
from nicegui import ui

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.web.pages.data_table import BYTES, PERCENT, live_table
from nearcast.web.pages.frame import answer_or_problem, frame, heading
from nearcast.web.pages.topics import MOVES, move_rows

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add"]

_SITES = {
    "site": "site", "kind": "kind", "state": "state", "clients": "clients", "topics": "topics", "workers": "workers",
    "messages_out": "messages/s", "cpu": "CPU", "memory": "memory", "busiest_worker": "busiest worker",
    "url": "address",
}  # fmt: skip
_STORES = {"site": "site", "store_up": "up", "kept": "topics kept", "waiting": "unprocessed", "bytes": "size"}
_REPLICAS = {
    "topic": "topic", "site": "store", "messages": "messages", "bytes": "size", "newest": "newest, UTC",
    "missing": "fewer than the fullest copy", "problem": "problem",
}  # fmt: skip
_SETTINGS = {"name": "setting", "value": "value", "default": "default"}
_DEFAULTS = msgspec.to_builtins(CoordinatorSettings())


def add(operations: Operations, live: Live) -> None:
    """The pages at /moves, /sites, /stores and /settings."""

    @ui.page("/moves")
    def moves(request: Request) -> None:
        with frame("/moves", live, request):
            live_table(MOVES, lambda: move_rows(live), "key", "Nothing was moved since this coordinator leads.")

    @ui.page("/sites")
    def sites(request: Request) -> None:
        with frame("/sites", live, request):
            shares = dict.fromkeys(("cpu", "memory", "busiest_worker"), PERCENT)
            live_table(_SITES, lambda: live.now.sites, "site", "No site is registered.", shares)

    @ui.page("/stores")
    def stores(request: Request) -> None:
        with frame("/stores", live, request):
            live_table(_STORES, lambda: _stores(live), "site", "No site has a store.", {"bytes": BYTES})
            heading("Copies of topics")
            ui.label(
                "Messages of publications, notifications and what is kept beside them. Stores compare digests of their "
                "copies by themselves and fetch what they lack; a copy that keeps less on purpose has fewer."
            ).classes("text-sm")
            live_table(_REPLICAS, lambda: _replicas(live), "key", "No topic is stored.", {"bytes": BYTES})

    @ui.page("/settings")
    def settings(request: Request) -> None:
        given: list[dict[str, Any]] = []

        async def read() -> None:
            found, _ = await answer_or_problem(operations.ask("coordinator", "settings"))
            if found is None:  # the header says that no coordinator answers
                return
            given[:] = [{"name": name, "value": value, "default": _DEFAULTS.get(name)} for name, value in found.items()]

        with frame("/settings", live, request):
            live_table({"name": "state", "value": ""}, lambda: _status(live), "name", "No coordinator answers.")
            heading("Settings of the coordinator")
            ui.label("From the file of nearcast coordinator run --settings; times are seconds.").classes("text-sm")
            live_table(_SETTINGS, lambda: given, "name", "Not read yet.")
        ui.timer(0.1, read, once=True)


def _stores(live: Live) -> list[dict[str, Any]]:
    rows = []
    for site in live.now.sites:
        if site["store"]:
            kept = [topic for topic in live.now.topics if site["site"] in topic["replicas"]]
            size = sum(one["bytes"] or 0 for one in live.replicas if one["site"] == site["site"])
            waiting = sum(topic["waiting"] for topic in kept)
            rows.append({**site, "kept": [topic["topic"] for topic in kept], "waiting": waiting, "bytes": size})
    return rows


def _replicas(live: Live) -> list[dict[str, Any]]:
    return [{**one, "key": f"{one['topic']} {one['site']}"} for one in live.replicas]


def _status(live: Live) -> list[dict[str, Any]]:
    rows = []
    for name, value in live.now.status.items():
        text = ", ".join(f"{key} {_plain(part)}" for key, part in value.items()) if isinstance(value, dict) else value
        rows.append({"name": name.replace("_", " "), "value": text})
    return rows


def _plain(value: Any) -> Any:
    return ("none" if not value else ", ".join(map(str, value))) if isinstance(value, list) else value
