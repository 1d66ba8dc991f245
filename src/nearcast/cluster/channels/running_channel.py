"""A channel that runs, with the table of its subscriptions."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.validated_channel import ValidatedChannel
from nearcast.domain.channel import check_values
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["RunningChannel", "valid_values"]

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
    loading: threading.Lock = field(default_factory=threading.Lock)
    # Names of channels may be prefixes of each other: a number cannot be mistaken.
    number: int = field(default_factory=lambda: next(_numbers))

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

    def radii(self) -> dict[str, set[float]]:
        """The distinct values in use for the parameters that are a radius."""
        names = self.validated.statement.radius_parameters
        return {name: {row[name] for row in self.rows.values()} for name in names}

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
