"""What an experiment is: declared once, run, drawn and judged by the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nearcast.errors import InputError
from nearcast.lab.experiments.results import Row, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nearcast.lab.experiments.results import Results

__all__ = ["Claim", "Experiment", "Panel", "Point", "Row", "Task", "Verdict", "verdict"]

Point = Mapping[str, Value]
Verdict = Literal["holds", "partly", "differs"]


@dataclass(frozen=True)
class Task:
    """One point with one seed: what a process, or a task of Spark, measures."""

    point: Point
    seed: int
    quick: bool = False
    data: Path | None = None  # the file of real data, if the experiment has one and it is there

    def __getitem__(self, name: str) -> Value:
        return self.point[name]

    def number(self, name: str) -> float:
        return float(self.point[name])


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the mean of `y` with its confidence interval over `x`, a line (or bars) per value of `series`.

    Where x is text, bars are drawn. `where` selects rows; `limits` are horizontal lines with their names.
    """

    x: str
    y: str
    x_label: str
    y_label: str
    series: str = "method"
    title: str = ""
    where: Mapping[str, Value] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = True


@dataclass(frozen=True)
class Claim:
    """What the paper says, its figure, ours with the confidence interval, and why they differ where they do."""

    claim: str
    paper: str
    ours: str
    verdict: Verdict
    why: str = ""


def verdict(*parts: bool) -> Verdict:
    """Holds when all parts do, differs when none does."""
    return "holds" if all(parts) else "partly" if any(parts) else "differs"


@dataclass(frozen=True)
class Experiment:
    """`measure(task)` gives rows of metrics, one per method say; rows of one task share the instance: they are paired.

    `points(quick)` are the values of the x-axis and of whatever else is varied; `seeds` is how many instances of each
    there are, quick and in full. `measure` must be a function of a module: processes and Spark import it by name.
    An experiment that measures real processes is not `parallel`: its tasks run one after the other, here.
    `data` is its file in the folder of real data, if it can use one. `missing()` says why it cannot be run on this
    machine, or None.
    """

    name: str
    paper: str  # "000" to "004"
    figure: str
    title: str
    about: str
    points: Callable[[bool], Sequence[Point]]
    seeds: tuple[int, int]
    measure: Callable[[Task], Iterable[Row]]
    claims: Callable[[Results], Sequence[Claim]]
    panels: Sequence[Panel] = ()
    draw: Callable[[Results, Figure], None] | None = None
    size: tuple[float, float] | None = None  # of the figure, in inches
    columns: int = 3  # of the panels
    parallel: bool = True
    data: str = ""
    missing: Callable[[], str | None] = lambda: None

    def tasks(self, *, quick: bool, seeds: int | None = None, data: Path | None = None) -> list[Task]:
        """All tasks; the seeds of a point follow each other. data: the folder of real data."""
        count = seeds or self.seeds[0 if quick else 1]
        file = data / self.data if data is not None and self.data else None
        if file is not None and not file.exists():
            raise InputError(f"--data: there is no file {file}; {self.name} reads it")
        return [Task(point, seed, quick, file) for point in self.points(quick) for seed in range(1, count + 1)]
