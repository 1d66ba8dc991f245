"""The channels that run: those of the catalog whose queries are valid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.channels.scheduled_channel import ScheduledChannel
from nearcast.cluster.spark_errors import error_line, is_interruption
from nearcast.domain.channel import ChannelSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats.boundary import drop
from nearcast.nats.catalog import decode_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.cluster.channels.planning_guard import PlanningGuard
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.domain.dataset import DatasetSpec

__all__ = ["ChannelSet"]

_log = logging.getLogger(__name__)


class ChannelSet:
    """schedule: makes the ScheduledChannel of a channel with a period. removed: is told the channels that end.

    guard: around each plan that is made.
    """

    def __init__(
        self,
        spark: SparkSession,
        progress: DriverProgress,
        schedule: Callable[[RunningChannel], ScheduledChannel],
        removed: Callable[[RunningChannel], None],
        guard: PlanningGuard,
    ) -> None:
        self._spark, self._progress, self._schedule, self._removed = spark, progress, schedule, removed
        self._guard = guard
        self._specs: dict[str, ChannelSpec] = {}
        self._refused: dict[str, ChannelSpec] = {}
        self.running: dict[str, RunningChannel] = {}
        self.scheduled: dict[str, ScheduledChannel] = {}

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> None:
        """Take changes of the catalog; `update` makes them effective."""
        for name, value in changes:
            self._specs.pop(name, None)
            if value is not None:
                try:
                    self._specs[name] = decode_spec(name, value, ChannelSpec)
                except InputError as error:  # the others continue
                    drop("channel", name, error)
                    self._progress.note(name, problem=f"its entry in the catalog is unreadable: {error}")

    def update(self, datasets: Mapping[str, DatasetSpec]) -> set[str]:
        """Run the channels that the catalog has, and no others; returns the names of new ones."""
        changed = [n for n, channel in self.running.items() if self._specs.get(n) != channel.validated.spec]
        for name in changed:
            ended = self.running.pop(name)
            if scheduled := self.scheduled.pop(name, None):
                scheduled.stop()
                self._progress.forget(name)
            self._removed(ended)
        # Channels of one query are validated once.
        known = {_query(channel.validated.spec): channel.validated for channel in self.running.values()}
        new = set()
        for name, spec in self._specs.items():
            if name in self.running or self._refused.get(name) == spec:
                continue
            try:
                if (same := known.get(_query(spec))) is not None:
                    validated = replace(same, spec=spec)
                else:
                    with self._guard.planning(spec):
                        validated = known[_query(spec)] = validate_query(self._spark, spec, datasets)
            except Exception as error:  # it was valid when it was added; a dataset must have changed since
                if not isinstance(error, NearcastError) and is_interruption(error):
                    raise
                self._refused[name] = spec
                reason = str(error) if isinstance(error, NearcastError) else f"channel {name}: {error_line(error)}"
                _log.error("%s", reason)
                self._progress.note(name, problem=reason.splitlines()[0])
                continue
            self.running[name] = RunningChannel(validated)
            new.add(name)
            if not spec.continuous:
                self.scheduled[name] = self._schedule(self.running[name])
        return new

    def continuous(self, dataset: str) -> list[RunningChannel]:
        """The continuous channels that take the new records of a dataset."""
        specs = ((channel, channel.validated.spec) for channel in self.running.values())
        return [channel for channel, spec in specs if spec.continuous and spec.new == dataset]

    def start(self) -> None:
        """Start the scheduled channels that are not started yet."""
        for scheduled in self.scheduled.values():
            scheduled.start()

    def stop(self) -> None:
        """Stop the scheduled channels."""
        for scheduled in self.scheduled.values():
            scheduled.stop()


def _query(spec: ChannelSpec) -> tuple[Any, ...]:
    """What validation depends on."""
    return spec.query, spec.parameters, spec.continuous, spec.new
