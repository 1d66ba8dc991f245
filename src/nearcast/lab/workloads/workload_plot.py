"""One picture of a workload: where it happens, how its topics differ, how its rates change over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.lab.workloads.schedule import JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nearcast.lab.workloads.workload import Workload

__all__ = ["draw"]

SITE, CLIENT, OUT = "#c0392b", "#2c7fb8", "#e08214"
MOST_POINTS, MOST_POINTS_LINEAR = 4_000, 300
MOST_TRIANGLES, MOST_NAMES = 60, 25
READABLE: dict[str, Any] = {
    "zorder": 4,
    "bbox": {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "boxstyle": "round,pad=0.1"},
}


def draw(workload: Workload, path: Path) -> None:
    """Draw a PNG: positions, topics, rates over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5.2), layout="constrained")
    where, topics, rates = figure.subplots(1, 3, width_ratios=[1.1, 1, 1.2])
    _positions(figure, where, workload)
    _topics(topics, workload)
    _rates(rates, workload)
    schedule = workload.schedule
    figure.suptitle(
        f"{workload.name}: {len(schedule.clients):,} clients, {len(schedule.topics):,} topics, "
        f"{len(schedule):,} events",
        fontsize=15,
    )
    figure.savefig(path, dpi=110)


def _positions(figure: Figure, axes: Axes, workload: Workload) -> None:
    places, schedule = workload.places, workload.schedule
    axes.set_title("Positions")
    heaviest = float(np.max(places.weight, initial=0.0)) or 1.0
    if len(places.names) > MOST_TRIANGLES:
        _many_places(figure, axes, workload)
    else:
        at = np.flatnonzero(~np.isnan(schedule.x))
        at = at[:: max(1, len(at) // MOST_POINTS)]
        axes.scatter(schedule.x[at], schedule.y[at], s=9, c=CLIENT, alpha=0.4, linewidths=0, label="clients")
        size = 60 + 240 * places.weight / heaviest
        axes.scatter(places.x, places.y, s=size, c=SITE, marker="^", edgecolors="white", zorder=3, label="sites")
        if len(places.names) <= MOST_NAMES:
            for name, x, y in zip(places.names, places.x, places.y, strict=True):
                axes.annotate(name, (x, y), xytext=(0, 11), textcoords="offset points", ha="center", **READABLE)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
        axes.margins(0.12)
    if "edges" in workload.tables:
        index = {name: n for n, name in enumerate(places.names)}
        ends = [[index[str(n)] for n in workload.tables["edges"][c]] for c in ("a", "b")]
        axes.plot(places.x[ends], places.y[ends], color="#999999", linewidth=0.7, zorder=1)
    axes.set_xlabel(places.axes[0])
    axes.set_ylabel(places.axes[1])
    if not any(places.axes):
        axes.set_xticks([])
        axes.set_yticks([])
    axes.set_aspect("equal" if places.axes[0] == "km" else "auto", adjustable="datalim")


def _many_places(figure: Figure, axes: Axes, workload: Workload) -> None:
    """Too many to name: coloured by their load, the outermost half per cent on each side left out."""
    from matplotlib.colors import LogNorm

    places = workload.places
    order = np.argsort(places.weight)
    lightest, heaviest = places.weight[order[0]], places.weight[order[-1]]
    norm = LogNorm() if 0 < 100 * lightest < heaviest else None
    size = float(np.clip(20_000 / len(places.names), 6, 60))
    dots = axes.scatter(places.x[order], places.y[order], c=places.weight[order], norm=norm, s=size, zorder=3)
    figure.colorbar(dots, ax=axes, label="messages/s", shrink=0.8)
    for limit, values in ((axes.set_xlim, places.x), (axes.set_ylim, places.y)):
        low, high = np.quantile(values, [0.005, 0.995])
        limit(low - 0.06 * (high - low) - 1e-9, high + 0.06 * (high - low) + 1e-9)


def _topics(axes: Axes, workload: Workload) -> None:
    """Messages of each topic, the busiest first."""
    predicted = workload.schedule.predicted()
    axes.set_title("Topics in the schedule, busiest first")
    for label, counts, colour, width in (
        ("delivered", predicted.delivered, OUT, 3.5),
        ("published", predicted.published, CLIENT, 1.5),
    ):
        ranked = np.sort(counts[counts > 0])[::-1]
        axes.plot(np.arange(1, len(ranked) + 1), ranked, color=colour, label=label, linewidth=width)
    smallest = min(c[c > 0].min(initial=1 << 40) for c in (predicted.published, predicted.delivered))
    if predicted.delivered.max(initial=1) > 100 * smallest:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if len(predicted.topics) > MOST_POINTS_LINEAR:
        axes.set_xscale("log")
    axes.set_xlabel("topic, by rank")
    axes.set_ylabel("messages")
    axes.legend(frameon=False)


def _rates(axes: Axes, workload: Workload) -> None:
    """Messages per second over time, and how many clients and subscriptions there are."""
    if "load_over_time" in workload.tables:
        load = workload.tables["load_over_time"]
        hours = np.asarray(load["time_s"], dtype=np.float64) / 3600
        width = np.diff(hours).min(initial=workload.about["window_s"] / 3600)
        axes.set_title("All trips over time")
        axes.bar(hours, load["rate"], width=width, align="edge", color=CLIENT)
        axes.set_xlabel("hours")
        axes.set_ylabel("published messages/s")
        return
    schedule = workload.schedule
    axes.set_title("Schedule over time")
    edges = np.linspace(0, max(float(schedule.time_s[-1]), 1e-9) * (1 + 1e-9), 61)
    rows, subscribers = schedule.fan_out()
    times = schedule.time_s[rows]
    published = np.histogram(times, edges)[0] / edges[1]
    delivered = np.histogram(times, edges, weights=subscribers)[0] / edges[1]
    axes.stairs(delivered, edges, color=OUT, label="delivered/s", linewidth=3.5)
    axes.stairs(published, edges, color=CLIENT, label="published/s", linewidth=1.5)
    axes.set_xlabel("seconds")
    axes.set_ylabel("messages/s")
    axes.set_ylim(0, 1.25 * max(delivered.max(), published.max(), 1e-9))
    other = axes.twinx()
    middle = (edges[1:] + edges[:-1]) / 2
    upto = np.searchsorted(schedule.time_s, middle)
    most = 1
    for label, up, down, style in (("clients", JOIN, LEAVE, ":"), ("subscriptions", SUBSCRIBE, UNSUBSCRIBE, "--")):
        step = (schedule.kind == up).astype(np.int64) - (schedule.kind == down)
        there = np.concatenate(([0], np.cumsum(step)))[upto]
        most = max(most, int(there.max()))
        other.plot(middle, there, color="#444444", linestyle=style, label=label, linewidth=1.8)
    other.set_ylabel("clients, subscriptions")
    other.set_ylim(0, 1.25 * most)
    lines = [*axes.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
