"""What an experiment measured, as rows; means and paired ratios with 95 % confidence intervals; CSV there and back."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from nearcast.placement.arrays import Floats

__all__ = ["Estimate", "Results", "Row", "Value", "estimate", "read", "write"]

Value = str | float
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Estimate:
    """A mean and half of its 95 % confidence interval (Student's t; 0 for a single value)."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def text(self, digits: int = 2, unit: str = "", scale: float = 1.0) -> str:
        """For example `1.34 ± 0.02 ms`."""
        mean, half = scale * self.mean, scale * self.half
        return f"{mean:.{digits}f}{f' ± {half:.{digits}f}' if self.count > 1 else ''}{unit}"

    def percent(self) -> str:
        """Of a ratio: by how much it is above or below 1, as `-12.3 ± 0.8 %`."""
        return Estimate(self.mean - 1, self.half, self.count).text(1, " %", 100).replace("-0.0", "0.0")


def estimate(values: Iterable[float] | Floats) -> Estimate:
    """Of independent values."""
    sample = np.asarray(list(values), dtype=float)
    if not len(sample):
        raise InputError("an estimate needs at least one value; no row was selected")
    if len(sample) == 1:
        return Estimate(float(sample[0]), 0.0, 1)
    half = float(student.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Estimate(float(sample.mean()), half, len(sample))


def _over_seeds(values: Iterable[tuple[Value, float]]) -> Estimate:
    """Of values with their seeds. Those of one seed share what was drawn: they count as one value, their mean."""
    by_seed: dict[Value, list[float]] = {}
    for seed, value in values:
        by_seed.setdefault(seed, []).append(value)
    return estimate(float(np.mean(each)) for each in by_seed.values())


class Results:
    """Rows of one experiment. `task_columns` are those of the point and the seed; rows of one task are paired."""

    def __init__(self, rows: Sequence[Row], task_columns: Sequence[str], about: Mapping[str, object]) -> None:
        self.rows = list(rows)
        self.task_columns = tuple(task_columns)
        self.about = dict(about)

    def where(self, **equal: Value) -> Results:
        """The rows with these values."""
        kept = [row for row in self.rows if all(row.get(name) == value for name, value in equal.items())]
        return Results(kept, self.task_columns, self.about)

    def select(self, keep: Callable[[Row], bool]) -> Results:
        return Results([row for row in self.rows if keep(row)], self.task_columns, self.about)

    def values(self, column: str) -> list[Value]:
        """The different values of a column, in the order of the rows."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))

    def numbers(self, metric: str) -> Floats:
        """Of all rows that have the metric."""
        return np.array([row[metric] for row in self.rows if metric in row], dtype=float)

    def mean(self, metric: str, **equal: Value) -> Estimate:
        return _over_seeds((row["seed"], float(row[metric])) for row in self.where(**equal).rows if metric in row)

    def most(self, metric: str, **equal: Value) -> float:
        """The largest value of any row."""
        return float(self.where(**equal).numbers(metric).max())

    def ratio(self, metric: str, of: Mapping[str, Value], to: Mapping[str, Value], **equal: Value) -> Estimate:
        """Mean over the tasks of (the metric of one row / that of the other row of the same task)."""
        above, below = self._by_task(metric, {**of, **equal}), self._by_task(metric, {**to, **equal})
        return _over_seeds((task[-1], value / below[task]) for task, value in above.items() if below.get(task))

    def difference(self, metric: str, of: Mapping[str, Value], to: Mapping[str, Value], **equal: Value) -> Estimate:
        """Mean over the tasks of the difference of two rows of a task."""
        above, below = self._by_task(metric, {**of, **equal}), self._by_task(metric, {**to, **equal})
        return _over_seeds((task[-1], value - below[task]) for task, value in above.items() if task in below)

    def _by_task(self, metric: str, equal: Mapping[str, Value]) -> dict[tuple[Value, ...], float]:
        """By the columns of the task, the seed last."""
        # A column that one side fixes is no part of the pairing: it may be a column of the point.
        columns = [*(name for name in self.task_columns if name not in equal and name != "seed"), "seed"]
        found = self.where(**equal).rows
        return {tuple(row[name] for name in columns): float(row[metric]) for row in found if metric in row}


def write(results: Results, path: Path) -> None:
    """The rows as CSV, and beside it how they were made as JSON."""
    columns = list(dict.fromkeys(name for row in results.rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in results.rows:
            writer.writerow({name: _short(value) for name, value in row.items()})
    about = {**results.about, "task_columns": list(results.task_columns)}
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")


def read(path: Path) -> Results:
    """What `write` wrote. A column is of numbers when all its values are."""
    about = json.loads(path.with_suffix(".json").read_text())
    with path.open(newline="") as file:
        texts = list(csv.DictReader(file))
    columns = list(texts[0]) if texts else []
    numeric = {name for name in columns if all(_is_number(row[name]) for row in texts)}
    rows: list[Row] = [
        {name: float(text) if name in numeric else text for name, text in row.items() if text != ""} for row in texts
    ]
    return Results(rows, about.pop("task_columns"), about)


def _short(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _is_number(text: str) -> bool:
    try:
        return text == "" or float(text) is not None
    except ValueError:
        return False
