"""Channels and datasets: what they are, what the data cluster does with them, quarantined records, a query."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fastapi import Request
from nicegui import ui

from nearcast.web.pages.data_table import data_table, live_table, show_rows
from nearcast.web.pages.frame import answer_or_problem, counted, frame, heading

if TYPE_CHECKING:
    from nearcast.web.live import Live
    from nearcast.web.operations import Operations

__all__ = ["add", "producer_rows"]

_CHANNELS = {
    "name": "channel", "query": "query", "runs": "runs", "parameters": "parameters",
    "subscriptions": "subscriptions", "p90_ms": "p90, ms", "fault": "fault",
}  # fmt: skip
_PRODUCERS = {
    "name": "dataset or channel", "rows_per_s": "records/s", "results_per_s": "results/s",
    "seconds": "last batch, s", "lag": "behind, messages", "refused": "refused", "problem": "problem",
}  # fmt: skip
_DATASETS = {
    "name": "dataset", "schema": "schema", "source": "from", "key": "key", "keep_seconds": "kept, s",
    "rows": "rows", "fresh": "written", "quarantined": "quarantined",
}  # fmt: skip
_QUARANTINE = {"when": "came, UTC", "sequence": "sequence", "id": "id", "reason": "reason", "payload": "payload"}
_NO_CLUSTER = "No data cluster answers; start one with: nearcast cluster run"
_SHOWN = 100


def add(operations: Operations, live: Live) -> None:
    """The pages at /channels and /datasets."""

    @ui.page("/channels")
    def channels(request: Request) -> None:
        with frame("/channels", live, request):
            live_table(_CHANNELS, lambda: _channels(live), "name", "There is no channel.")
            ui.label("p90: record to receipt, at the site whose clients measured the longest.").classes("text-sm")
            heading("Work of the data cluster")
            ui.label(
                "A dataset answers its continuous channels batch by batch; a scheduled channel runs by itself. "
                "Rates of the last seconds. Records that were refused are on the page of datasets."
            ).classes("text-sm")
            live_table(_PRODUCERS, lambda: producer_rows(live), "name", _NO_CLUSTER)

    @ui.page("/datasets")
    def datasets(request: Request) -> None:
        with frame("/datasets", live, request):
            live_table(_DATASETS, lambda: _datasets(live), "name", "There is no dataset.")
            _quarantine(operations, live)
            _query(operations)


def producer_rows(live: Live) -> list[dict[str, Any]]:
    """What the data cluster does, with rates between its last two states."""
    if live.cluster is None:
        return []
    before = {one.name: one for one in live.cluster_before.producers} if live.cluster_before is not None else {}
    rows = []
    seconds = max(live.cluster_seconds, 1.0)
    for one in live.cluster.producers:
        last = before.get(one.name, one)
        rows.append(
            {
                "name": one.name,
                "rows_per_s": round(max(0.0, (one.rows - last.rows) / seconds), 1),
                "results_per_s": round(max(0.0, (one.results - last.results) / seconds), 1),
                "seconds": one.seconds,
                "lag": one.lag,
                "refused": one.refused,
                "problem": one.problem,
            }
        )
    return rows


def _channels(live: Live) -> list[dict[str, Any]]:
    subscriptions = live.cluster.subscriptions if live.cluster is not None else {}
    return [
        {
            **channel,
            "runs": "as records come" if channel.get("period") is None else f"every {channel['period']:g} s",
            "parameters": [f"{p['name']}:{p['type']}" for p in channel.get("parameters", ())],
            "subscriptions": subscriptions.get(channel["name"]),
            "p90_ms": max(
                (site.get("channels_p90_ms", {}).get(channel["name"], 0) for site in live.now.sites), default=0
            )
            or None,
            "fault": _fault(live, channel["name"]),
        }
        for channel in live.channels
    ]


def _fault(live: Live, channel: str) -> str:
    own = live.faults.get(channel, "")
    others = sum(name.startswith(f"{channel}.") for name in live.faults)
    return own or (f"subscriptions with faults: {others}; nearcast channel faults {channel}" if others else "")


def _datasets(live: Live) -> list[dict[str, Any]]:
    known = {one.name: one for one in live.cluster.datasets} if live.cluster is not None else {}
    rows = []
    for dataset in live.datasets:
        state = known.get(dataset["name"])
        rows.append(
            {
                **dataset,
                "rows": state.rows if state is not None else None,
                "fresh": f"{max(0.0, time.time() - state.written):.0f} s ago" if state and state.written else None,
                "quarantined": state.quarantined if state is not None else None,
            }
        )
    return rows


def _quarantine(operations: Operations, live: Live) -> None:
    heading("Quarantine")
    with ui.row().classes("items-end gap-3"):
        chosen = ui.select([], label="Dataset").classes("min-w-48")
        ui.button("Show refused records", on_click=lambda: look())
    said = ui.label("Records that did not fit the schema or came too late, the newest first.").props('role="status"')
    table = data_table(_QUARANTINE, "number", "No record was refused.")
    table.set_visibility(False)

    async def look() -> None:
        refresh()
        if not chosen.value:
            said.text = "There is no stream dataset."
            return
        found, problem = await answer_or_problem(operations.quarantine(chosen.value, _SHOWN))
        if table.is_deleted:  # the page was left meanwhile
            return
        said.text = problem or (
            f"{counted(len(found), 'records')}, the newest first." if found else "None was refused."
        )
        table.set_visibility(bool(found))
        rows = [
            {
                "number": n,
                "when": datetime.fromtimestamp(one.time, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                "sequence": one.sequence,
                "id": one.id,
                "reason": one.reason or f"{one.removed} messages were removed before they were read",
                "payload": one.payload,
            }
            for n, one in enumerate(found or ())
        ]
        show_rows(table, rows)

    def refresh() -> None:
        names = [dataset["name"] for dataset in live.datasets if dataset["source"]]
        if names != chosen.options:
            chosen.set_options(names, value=chosen.value if chosen.value in names else next(iter(names), None))

    refresh()
    ui.timer(1.0, refresh)


def _query(operations: Operations) -> None:
    heading("Query")
    ui.label(f"One SELECT over datasets, by the rules of channels; the first {_SHOWN} rows, 20 s at most.").classes(
        "text-sm"
    )
    text = ui.textarea("SQL", placeholder="SELECT kind, count(*) FROM reports GROUP BY kind").classes(
        "w-full font-mono"
    )
    with ui.row().classes("items-center gap-3"):
        button = ui.button("Run", on_click=lambda: run())
        said = ui.label().classes("whitespace-pre-wrap").props('role="status"')
    answer = ui.column().classes("w-full")

    async def run() -> None:
        button.disable()
        said.text = "Running."
        answer.clear()
        found, problem = await answer_or_problem(operations.query(str(text.value or "").strip() or " ", _SHOWN))
        if answer.is_deleted:  # the page was left meanwhile
            return
        button.enable()
        if found is None:
            said.text = problem
            return
        said.text = f"{len(found.rows)} rows{' and more' if found.more else ''} in {found.seconds:.2f} s."
        with answer:
            names = [f"c{n}" for n in range(len(found.columns))]  # columns may have equal names
            table = data_table(dict(zip(names, found.columns, strict=True)), "number", "It has no row.")
            show_rows(table, [{"number": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(found.rows)])
