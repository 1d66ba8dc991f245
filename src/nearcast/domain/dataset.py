"""Datasets: what the data cluster keeps. A *stream* dataset grows by records; a *static* one is loaded as a whole."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearcast.domain.names import check_identifier
from nearcast.errors import InputError

__all__ = ["DatasetSpec", "check_dataset"]

_LONGEST_SCHEMA, _DEEPEST_SCHEMA = 20_000, 20  # Spark's parser takes long for more, and ends its own stack
_QUOTED = re.compile(r"`[^`]*`|'[^'\\]*'|\"[^\"\\]*\"")


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset.

    schema: its columns, as Spark DDL. source: `fed.<name>` or `pub.<topic>`; nothing for a static dataset.
    key: with one, queries see the latest record of each key. time: the column that says when a record happened; without
    one it is the time of arrival. late_after: records this many seconds behind the latest one of their source are
    refused. future_limit: records whose time is this many seconds after their arrival are refused.
    version: counts the loads of a static dataset and the backfills of a stream. created: when it was added; it
    distinguishes a dataset from an earlier one of the same name.
    """

    name: str
    schema: str
    source: str = ""
    key: str = ""
    time: str = ""
    keep_seconds: float | None = None
    late_after: float | None = None
    future_limit: float | None = None
    version: int = 0
    created: int = 0

    @property
    def static(self) -> bool:
        """Whether it is loaded as a whole instead of growing by records."""
        return not self.source


def check_dataset(spec: DatasetSpec) -> DatasetSpec:
    """Return the dataset if its name, source and numbers can be right; the schema is checked by Spark."""
    check_identifier(spec.name, "dataset name")
    _check_schema_size(spec)
    if spec.source and spec.source != f"fed.{spec.name}" and not spec.source.startswith("pub."):
        raise InputError(f"dataset {spec.name}: source is {spec.source!r}; allowed: fed.{spec.name} or pub.<topic>")
    for field in ("keep_seconds", "late_after", "future_limit"):
        value = getattr(spec, field)
        if value is not None and not value > 0:
            raise InputError(f"dataset {spec.name}: {field} is {value!r}; a number above 0 is needed")
    if spec.static and (spec.key or spec.time or spec.keep_seconds or spec.late_after or spec.future_limit):
        raise InputError(f"dataset {spec.name} is static: key, time, keep, late-after and future-limit are for streams")
    if spec.future_limit and not spec.time:
        raise InputError(f"dataset {spec.name}: future-limit needs a time column; give it --time")
    return spec


def _check_schema_size(spec: DatasetSpec) -> None:
    """Brackets are counted as Spark reads them: none within quotes, and nothing else that could hide them."""
    if len(spec.schema) > _LONGEST_SCHEMA:
        raise InputError(
            f"dataset {spec.name}: its schema has {len(spec.schema)} characters; {_LONGEST_SCHEMA} are allowed"
        )
    bare = _QUOTED.sub("", spec.schema)
    if odd := re.search(r"[^\w\s,:<>()]", bare):
        raise InputError(f"dataset {spec.name}: its schema has {odd[0]!r}; allowed in quoted names and comments only")
    depth = deepest = 0
    for letter in bare:
        depth = max(0, depth + (letter in "<(") - (letter in ">)"))
        deepest = max(deepest, depth)
    if deepest > _DEEPEST_SCHEMA:
        raise InputError(f"dataset {spec.name}: its schema is nested deeper than {_DEEPEST_SCHEMA} levels")
