"""Latency over time, one panel per policy: a line per topic, the bound, and below it changes and moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from nearcast.lab.scenarios.report import JudgedRun

__all__ = ["draw", "topic_lines"]

BIN = 0.5  # s
# Okabe and Ito: told apart by everybody, and in grey by their lightness; more lines differ by their dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00")
DASHES = ("-", "--", ":", "-.")
MOST_NAMED = 8
MOST_ROWS = 8


def topic_lines(judged: JudgedRun) -> dict[str, NDArray[np.float64]]:
    """The lines of a run: of all topics, or of those the plotted participant got messages of.

    A line is the p90 in ms of deliveries in each bin, by time of publication; not a number where there were none.
    """
    ledger, scenario = judged.ledger, judged.run.scenario
    shown = np.isfinite(ledger.latency_ms)
    if scenario.plotted is not None:
        shown &= ledger.subscriber == scenario.plotted
    bins = (ledger.published / BIN).astype(np.int64)
    lines = {}
    for number in np.unique(ledger.topic[shown]):
        rows = np.flatnonzero(shown & (ledger.topic == number))
        p90 = np.full(int(np.ceil(scenario.seconds / BIN)), np.nan)
        rows = rows[np.argsort(bins[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(bins[rows], prepend=-1))
        for part in np.split(rows, starts[1:]):
            p90[bins[part[0]]] = np.percentile(ledger.latency_ms[part], 90)
        lines[scenario.topics[number]] = p90
    return lines


def draw(runs: Sequence[JudgedRun], path: Path) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    scenario = runs[0].run.scenario
    lines = [topic_lines(run) for run in runs]
    named = [topic for topic in scenario.topics if any(topic in each for each in lines)]
    style = {t: (COLOURS[n % 8], DASHES[n // 8 % 4]) for n, t in enumerate(named)}
    rows = min(len(named), MOST_ROWS)
    figure = Figure(figsize=(11, 0.9 + (2.2 + 0.13 * rows) * len(runs)), layout="constrained")
    heights = [height for _ in runs for height in (2.2, 0.13 * rows + 0.1)]
    axes = figure.subplots(2 * len(runs), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    values = np.concatenate([p90 for each in lines for p90 in each.values()] or [np.zeros(1)])
    top = max(2.2 * scenario.bound_ms, 1.1 * float(np.nanpercentile(values, 99.5)))
    for n, run in enumerate(runs):
        _latency(axes[2 * n], run, lines[n], style, top)
        _events(axes[2 * n + 1], run, named, style)
    axes[-1].set_xlabel("time of publication, s")
    axes[-1].set_xlim(0, scenario.seconds)
    whose = "" if scenario.plotted is None else f" of what {scenario.participants[scenario.plotted].name} received"
    title = f"{scenario.name}: p90 per {BIN:g} s and topic{whose}, bound {scenario.bound_ms:g} ms, seed {scenario.seed}"
    figure.suptitle(title, fontsize=11)
    handles = axes[0].get_lines()[: min(len(lines[0]), MOST_NAMED)] if len(named) <= MOST_NAMED else []
    figure.legend(handles=[*handles, *_marks()], loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def _latency(
    axes: Axes, run: JudgedRun, lines: dict[str, NDArray[np.float64]], style: dict[str, tuple[str, str]], top: float
) -> None:
    scenario = run.run.scenario
    for topic, p90 in lines.items():
        colour, dashes = style[topic]
        times = BIN * (np.arange(len(p90)) + 0.5)
        axes.plot(times, np.minimum(p90, top), color=colour, linestyle=dashes, linewidth=1.1, label=topic)
    axes.axhline(scenario.bound_ms, color="black", linewidth=0.9, linestyle=(0, (6, 3)))
    axes.annotate(
        "bound", (1, scenario.bound_ms), xycoords=("axes fraction", "data"), fontsize=8, va="center",
        xytext=(3, 0), textcoords="offset points",
    )  # fmt: skip
    summary = run.summary()
    axes.set_title(
        f"{run.run.policy}: {summary.above_bound:.1%} above the bound, "
        f"{summary.topic_moves} topic moves, {summary.client_moves} client moves",
        loc="left", fontsize=10,
    )  # fmt: skip
    axes.set_ylim(0, top)
    axes.set_ylabel("latency, ms", fontsize=9)
    axes.grid(axis="y", linewidth=0.4, color="0.85")
    axes.spines[["top", "right"]].set_visible(False)


def _events(axes: Axes, run: JudgedRun, topics: Sequence[str], style: dict[str, tuple[str, str]]) -> None:
    """A row per topic (beyond some, topics of one colour share it): triangles for its changes, bars for its moves.

    For a plotted participant, only the changes that affect it, and the moves of topics it subscribes to at that time.
    """
    scenario, start = run.run.scenario, run.run.start
    for n, topic in enumerate(topics):
        colour, row = style[topic][0], n % MOST_ROWS
        changes = [change.at for change in scenario.changes if topic in change.topics]
        moves = [move.at - start for move in run.run.moves if move.kind == "topic" and move.subject == topic]
        if scenario.plotted is not None:
            me = scenario.participants[scenario.plotted]
            changes = [c.at for c in scenario.changes if topic in c.topics and me.topic in c.affected]
            spans = [(span.start, span.end) for span in me.subscribes if span.topic == topic]
            moves = [at for at in moves if any(since <= at < until for since, until in spans)]
        axes.plot(changes, [row] * len(changes), "v", color=colour, markersize=4.5, markeredgewidth=0)
        axes.plot(moves, [row] * len(moves), "|", color="black", markersize=6, markeredgewidth=1.1)
    axes.set_ylim(min(len(topics), MOST_ROWS) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_ylabel("changes,\nmoves", fontsize=7, rotation=0, ha="right", va="center")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _marks() -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="0.4", marker="v", linestyle="", markersize=5, label="change"),
        Line2D([], [], color="black", marker="|", linestyle="", markersize=7, label="topic move"),
    ]
