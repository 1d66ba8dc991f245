"""Counters of the data cluster: for the log, the terminal and its metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["DriverProgress", "ProducerCounts", "StageTimer"]


@dataclass
class ProducerCounts:
    """Of one producer: a dataset with its continuous channels, or a scheduled channel.

    seconds: of the last batch, without Spark's time before it. stages: seconds by stage, of all batches.
    """

    rows: int = 0
    refused: int = 0
    removed: int = 0
    results: int = 0
    batches: int = 0
    lag: int = 0
    seconds: float = 0.0
    problem: str = ""
    stages: dict[str, float] = field(default_factory=dict)


class StageTimer:
    """Measures the seconds of each stage of a batch."""

    def __init__(self) -> None:
        self._last, self._seconds = time.perf_counter(), dict[str, float]()

    def lap(self, stage: str) -> None:
        """A stage has ended."""
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the stages so far and start from zero."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class DriverProgress:
    """All counters; producers add to them from their own threads."""

    def __init__(self) -> None:
        self._counts: dict[str, ProducerCounts] = {}
        self._lock = threading.Lock()

    def add(
        self, name: str, *, rows: int, refused: int, removed: int, results: int, stages: Mapping[str, float]
    ) -> None:
        """Count a batch or an execution; its stage `spark` is the time before it."""
        with self._lock:
            count = self._counts.setdefault(name, ProducerCounts())
            count.rows += rows
            count.refused += refused
            count.removed += removed
            count.results += results
            count.batches += 1
            count.seconds = sum(seconds for stage, seconds in stages.items() if stage != "spark")
            count.problem = ""
            for stage, seconds in stages.items():
                count.stages[stage] = count.stages.get(stage, 0.0) + seconds

    def note(self, name: str, *, lag: int | None = None, problem: str | None = None) -> None:
        """Note how far a producer is behind its stream, or its problem."""
        with self._lock:
            count = self._counts.setdefault(name, ProducerCounts())
            count.lag = count.lag if lag is None else lag
            count.problem = count.problem if problem is None else problem

    def forget(self, name: str) -> None:
        """Remove a producer that does not run any more."""
        with self._lock:
            self._counts.pop(name, None)

    def snapshot(self) -> dict[str, ProducerCounts]:
        """A copy of the counters."""
        with self._lock:
            return {name: replace(count, stages=dict(count.stages)) for name, count in sorted(self._counts.items())}
