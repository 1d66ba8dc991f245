"""A figure of an experiment: readable in print, in grey and for colour-blind readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from nearcast.lab.experiments.experiment import Experiment, Panel
    from nearcast.lab.experiments.results import Results, Value

__all__ = ["COLOURS", "DASHES", "HATCHES", "MARKERS", "draw", "plain_axes", "style"]

# Okabe and Ito, and three more; lines differ by marker and dashes, bars by hatching as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00", "#7B3294", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: tuple[object, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (5, 2, 1, 2)),
    (0, (8, 2)),
    "-",
    (0, (3, 1)),
    (0, (1, 3)),
    (0, (6, 1, 1, 1)),
    (0, (2, 2)),
)
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
PANEL = (4.0, 2.9)  # inches
LEGEND_INCHES, LEGEND_INCHES_PER_LETTER = 0.65, 0.066  # an entry: its sample, and its text of 8 points
MOST_MARKERS = 10  # of a line
ROOM_FOR_LABELS = 30  # characters below an axis


def draw(experiment: Experiment, results: Results, path: Path) -> None:
    """Write the PNG of an experiment."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    columns = max(min(len(experiment.panels), experiment.columns), 1)
    rows = max(-(-len(experiment.panels) // columns), 1)
    size = experiment.size or (max(PANEL[0] * columns, 5.5), PANEL[1] * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    canvas: Any = FigureCanvasAgg(figure)
    if experiment.draw is not None:
        experiment.draw(results, figure)
    else:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, place in zip(experiment.panels, axes, strict=False):
            _panel(place, panel, results)
        for place in axes[len(experiment.panels) :]:
            place.set_visible(False)
        shown = {
            text: handle for place in axes for handle, text in zip(*place.get_legend_handles_labels(), strict=True)
        }
        longest = max(map(len, shown), default=1)
        figure.legend(
            shown.values(),
            shown.keys(),
            loc="outside lower center",
            ncols=max(1, min(len(shown), int(size[0] / (LEGEND_INCHES + LEGEND_INCHES_PER_LETTER * longest)))),
            frameon=False,
            fontsize=8,
        )
    figure.suptitle(f"{experiment.title} ({experiment.figure})", fontsize=11)
    canvas.draw()
    # A palette: a third of the size, and the figures are kept with the page. Dithering would spoil lines.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    picture = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


def style(number: int) -> dict[str, object]:
    """Of the line with this number."""
    which = number % len(COLOURS)
    return {
        "color": COLOURS[which],
        "marker": MARKERS[which],
        "linestyle": DASHES[which],
        # Lines that lie on each other: the later one is drawn on top and has the smaller marker.
        "markersize": max(7.5 - 0.6 * which, 3.3),
        "linewidth": 1.4,
    }


def plain_axes(axes: Axes) -> None:
    axes.grid(axis="y", linewidth=0.4, color="0.85")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _panel(axes: Axes, panel: Panel, results: Results) -> None:
    names = results.values(panel.series)  # of all rows: a series looks the same in every panel
    chosen = results.where(**panel.where)
    chosen = chosen.select(lambda row: panel.y in row)
    categories = [value for value in chosen.values(panel.x) if isinstance(value, str)]
    drawn = [name for name in names if chosen.where(**{panel.series: name}).rows]
    if not categories:
        for name in drawn:
            _line(axes, panel, chosen, name, names.index(name))
    else:
        _bars(axes, panel, chosen, categories, {name: names.index(name) for name in drawn})
        axes.set_xticks(range(len(categories)), categories)
        if sum(map(len, categories)) > ROOM_FOR_LABELS:
            for label in axes.get_xticklabels():
                label.set(rotation=25, ha="right")
    for text, value in panel.limits.items():
        axes.axhline(value, color="0.25", linewidth=0.9, linestyle=(0, (6, 3)))
        axes.annotate(text, (1, value), xycoords=("axes fraction", "data"), fontsize=8, va="bottom", ha="right")
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    elif panel.from_zero:
        # What is drawn begins at zero or at the lowest mean; a wide interval of few seeds does not move the axis.
        lowest = min((float(np.min(line.get_ydata())) for line in axes.lines), default=0.0)
        axes.set_ylim(bottom=min(0.0, 1.05 * lowest))
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.set_title(panel.title, fontsize=9, loc="left")
    plain_axes(axes)


def _line(axes: Axes, panel: Panel, results: Results, name: Value, look: int) -> None:
    places = sorted(float(x) for x in results.where(**{panel.series: name}).values(panel.x))
    found = [results.mean(panel.y, **{panel.series: name, panel.x: x}) for x in places]
    mean, half = np.array([each.mean for each in found]), np.array([each.half for each in found])
    every = max(1, len(places) // MOST_MARKERS)
    axes.plot(places, mean, label=str(name), markevery=every, **style(look))  # type: ignore[arg-type]
    axes.fill_between(places, mean - half, mean + half, color=COLOURS[look % len(COLOURS)], alpha=0.18, linewidth=0)


def _bars(axes: Axes, panel: Panel, results: Results, categories: Sequence[str], looks: Mapping[Value, int]) -> None:
    """A bar per category and series; those of a category share its width, whichever of the series they belong to."""
    for at, category in enumerate(categories):
        here = [name for name in looks if results.where(**{panel.series: name, panel.x: category}).rows]
        for number, name in enumerate(here):
            found, look = results.mean(panel.y, **{panel.series: name, panel.x: category}), looks[name]
            width, place = min(0.8 / len(here), 0.5), number - (len(here) - 1) / 2
            axes.bar(
                at + place * width, found.mean, width, yerr=found.half or None, capsize=2,
                color=COLOURS[look % len(COLOURS)], hatch=HATCHES[look % len(HATCHES)], edgecolor="white",
                linewidth=0.5, label=str(name), error_kw={"linewidth": 0.9},
            )  # fmt: skip
