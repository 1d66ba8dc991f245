"""A channel that runs, with its subscriptions."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.statement import ValidatedChannel
from nearcast.cluster.channels.text_patterns import check_like_values
from nearcast.domain.channel import check_values
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearcast.cluster.channels.channel_shape import ChannelShape

__all__ = ["RunningChannel", "valid_values"]

_numbers = itertools.count()


@dataclass(eq=False)
class RunningChannel:
    """A channel and its subscriptions: one row for each distinct set of values, by key.

    wanted: all subscriptions. off: those that are switched off, with the reason. shape: evaluates the others.
    problem: why the channel as a whole is switched off; empty while it is not.
    """

    validated: ValidatedChannel
    wanted: dict[str, dict[str, Any]] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    undecided: dict[str, int] = field(default_factory=dict)  # failures of single pairs, by subscription
    shape: ChannelShape | None = None
    failures: int = 0
    loading: threading.RLock = field(default_factory=threading.RLock)
    # Names of channels may be prefixes of each other: a number cannot be mistaken.
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def name(self) -> str:
        return self.validated.spec.name

    @property
    def count(self) -> int:
        """How many subscriptions are evaluated."""
        return self.shape.count(self.name) if self.shape is not None else 0

    @property
    def due(self) -> bool:
        """Whether there is anything to evaluate."""
        return bool(self.count) and not self.problem

    def want(self, added: Mapping[str, dict[str, Any]], removed: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Note changes of the subscriptions; returns those to be evaluated from now on. One that was switched off and
        has left is tried again when it comes back."""
        for key in removed:
            self.wanted.pop(key, None)
            self.off.pop(key, None)
            self.undecided.pop(key, None)
        self.wanted.update(added)
        return {key: row for key, row in added.items() if key not in self.off}

    def evaluated_rows(self) -> dict[str, dict[str, Any]]:
        """The subscriptions that are not switched off."""
        with self.loading:
            return {key: row for key, row in self.wanted.items() if key not in self.off}


def valid_values(
    channel: RunningChannel, rows: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Subscriptions whose values have the types of the parameters, and the reasons why others have not.

    Sites check the values, too; but whoever can write to the catalog could write anything.
    """
    valid, refused = {}, {}
    for key, row in rows.items():
        try:
            values = check_values(channel.validated.spec, row)
            check_like_values(channel.validated.like_parameters, values)
            valid[key] = values
        except InputError as error:
            refused[key] = str(error)
    return valid, refused
