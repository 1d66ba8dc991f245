"""A channel that runs, with the table of its subscriptions."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_validation import ValidatedChannel
from nearcast.cluster.channels.tokens import tokenize
from nearcast.domain.channel import check_values
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["RunningChannel", "subscription_table", "valid_values"]

# Functions that are evaluated when a plan is made: such a plan cannot be reused.
_EVALUATED_AT_PLANNING = {
    "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURDATE", "NOW", "LOCALTIMESTAMP", "UNIX_TIMESTAMP",
    "RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE",
}  # fmt: skip
_ARROW = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip
_numbers = itertools.count()


@dataclass(eq=False)
class RunningChannel:
    """A channel and its subscription table: one row for each distinct set of values, by key.

    wanted: all subscriptions. rows: those that are evaluated. off: those that are switched off, with the reason.
    problem: why the channel as a whole is switched off; empty while it is not.
    """

    validated: ValidatedChannel
    wanted: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    undecided: dict[str, int] = field(default_factory=dict)  # failures of single pairs, by subscription
    frame: DataFrame | None = None
    failures: int = 0
    sql: dict[str, str] = field(default_factory=dict)  # the rewritten query by reader; it changes with the rows
    rows_version: int = 0
    inputs_version: object = None  # of all that it reads
    unchanged_batches: int = 0  # since inputs_version changed
    reusable: bool = True  # its plan may be evaluated again
    loading: threading.Lock = field(default_factory=threading.Lock)
    # Names of channels may be prefixes of each other: a number cannot be mistaken.
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        """A plan keeps the time at which it was made, and the random seed."""
        self.reusable = not any(token.word in _EVALUATED_AT_PLANNING for token in tokenize(self.validated.spec.query))

    @property
    def name(self) -> str:
        return self.validated.spec.name

    @property
    def view(self) -> str:
        return f"_subscriptions_{self.number}"

    @property
    def due(self) -> bool:
        """Whether there is anything to evaluate."""
        return bool(self.rows) and not self.problem

    def values(self) -> dict[str, set[Any]]:
        """The distinct values in use, by parameter."""
        return {p.name: {row[p.name] for row in self.rows.values()} for p in self.validated.spec.parameters}

    def want(self, rows: dict[str, dict[str, Any]]) -> None:
        """Set the subscriptions. One that was switched off and has left is tried again when it comes back."""
        self.wanted = rows
        self.off = {key: reason for key, reason in self.off.items() if key in rows}
        self.undecided = {key: count for key, count in self.undecided.items() if key in rows}

    def evaluated_rows(self) -> dict[str, dict[str, Any]]:
        """The subscriptions that are not switched off."""
        return {key: row for key, row in self.wanted.items() if key not in self.off} if self.off else self.wanted


def valid_values(
    channel: RunningChannel, rows: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Subscriptions whose values have the types of the parameters, and the reasons why others have not.

    Sites check the values, too; but whoever can write to the catalog could write anything.
    """
    valid, refused = {}, {}
    for key, row in rows.items():
        try:
            valid[key] = check_values(channel.validated.spec, row)
        except InputError as error:
            refused[key] = str(error)
    return valid, refused


def subscription_table(channel: RunningChannel, rows: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """Key, values, and for numbers, which may be a radius, their level on the grid."""
    columns: dict[str, pa.Array] = {"_key": pa.array(list(rows), pa.string())}
    for p in channel.validated.spec.parameters:
        values = [row[p.name] for row in rows.values()]
        columns[f"_p_{p.name}"] = pa.array(values, _ARROW[p.type])
        if p.type in ("int", "bigint", "double"):
            levels = [grid.level_of(value) for value in values]
            columns[f"_l_{p.name}"] = pa.array(levels, pa.int64())
            columns[f"_h_{p.name}"] = pa.array([grid.height_of(level) for level in levels], pa.float64())
    return pa.table(columns)
