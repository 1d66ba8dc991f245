"""The text of a statement for all subscriptions, with marks for views, grid cells and buckets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nearcast.cluster.channels import grid

__all__ = ["RangeCopies", "Statement", "bounds_view", "free_prefix", "parameter_column"]


def free_prefix(text: str) -> str:
    """A prefix for names that does not occur in a text."""
    lowered = text.lower()
    return next(p for n in itertools.count() if (p := f"nc{n or ''}__") not in lowered)


def parameter_column(prefix: str, name: str) -> str:
    """The column of the subscription table for a parameter; `#level_x`, `#height_x`: of `:x` on the grid; `#bucket_x`:
    of `:x` among the bounds."""
    return f"{prefix}{name[1:]}" if name.startswith("#") else f"{prefix}value_{name}"


def bounds_view(bounds: str, name: str) -> str:
    """The view of a parameter's buckets."""
    return f"{bounds}_{name}"


@dataclass(frozen=True)
class RangeCopies:
    """The buckets into which rows are copied for a range condition. value: of the row. below: whether the parameter is
    below the value in what satisfies the condition, or above it."""

    marker: str
    value: str
    parameter: str
    below: bool

    def sql(self, prefix: str, bounds: str) -> str:
        """The rest of a FROM. bounds: how the names of the views of buckets begin; without it there is one bucket."""
        if not bounds:
            return f"LATERAL VIEW explode(array(0)) {prefix}range AS {prefix}bucket"
        # Not strict, either way: a cast to the common type may make two different values equal.
        low, high = f"{prefix}low", f"{prefix}high"
        reached = f"{low} <= {self.value}" if self.below else f"{high} >= {self.value}"
        end = f"{low if self.below else high} IS NULL"
        return f"JOIN {bounds_view(bounds, self.parameter)} AS {prefix}range ON {end} OR {reached}"


@dataclass(frozen=True)
class Statement:
    """A query for all subscriptions. template: its text, in which views, cells and buckets are marked.

    key, position: columns of the subscription's key and of the row's place in its result (if it has one).
    cells: marker, coordinates and bound of each radius condition.
    """

    template: str
    prefix: str
    key: str
    position: str
    cells: tuple[tuple[str, str, str, str | float], ...] = ()
    copies: tuple[RangeCopies, ...] = ()

    @property
    def radius_parameters(self) -> tuple[str, ...]:
        return tuple(bound for _, _, _, bound in self.cells if isinstance(bound, str))

    @property
    def range_parameters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(copy.parameter for copy in self.copies))

    def text(
        self,
        view_of: Callable[[str], str],
        subscriptions: str,
        levels: Mapping[str, Collection[int]],
        bounds: str = "",
    ) -> str:
        """The text for given views. levels: on the grid, in use for the parameters that are a radius. bounds: how
        the names of the views of these subscriptions' buckets begin; without it they are all in one bucket."""
        marked = {copy.marker: copy.sql(self.prefix, bounds) for copy in self.copies}
        for marker, lat, lon, bound in self.cells:
            used = levels.get(bound, ()) if isinstance(bound, str) else (grid.level_of(bound),)
            marked[marker] = grid.cells_around(lat, lon, used, self.prefix)
        text = re.sub(rf"(?:CROSS JOIN )?`?({self.prefix}(?:cells|copies)\d+)`?", lambda m: marked[m[1]], self.template)
        text = re.sub(rf"`?{self.prefix}view_(\w+)`?", lambda m: view_of(m[1]), text)
        return text.replace(f"{self.prefix}subscriptions", subscriptions)
