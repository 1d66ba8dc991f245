"""When the queries of datasets start: a few at a time, and one that failed after a pause that grows.

Each start takes a Python process that must answer Spark within ten seconds, whatever else the machine does. If all
queries started at once, as after the end of a driver, they would keep each other from it again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["QueryStarts"]

_AT_ONCE = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_RAN_SECONDS = 5.0  # a query that worked for so long has run: its next failure is a new one
_LONGEST_START = 60.0  # a start that takes longer does not keep the others waiting


@dataclass
class QueryStarts:
    """Queries by name. Each waits for its turn, starts, and runs; times are seconds of any clock."""

    _due: dict[str, float] = field(default_factory=dict)
    _starting: dict[str, float] = field(default_factory=dict)
    _running: dict[str, float] = field(default_factory=dict)
    _pauses: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, now: float) -> None:
        """A new query waits for its turn."""
        self.remove(name)
        self._due[name] = now

    def remove(self, name: str) -> None:
        """A query is not wanted any more."""
        for times in (self._due, self._starting, self._running, self._pauses):
            times.pop(name, None)

    def next(self, now: float) -> str | None:
        """The query to start now, which then is starting: the one that has been due for longest."""
        starting = sum(now - since < _LONGEST_START for since in self._starting.values())
        due = [name for name, at in self._due.items() if at <= now]
        if starting >= _AT_ONCE or not due:
            return None
        name = min(due, key=self._due.__getitem__)
        del self._due[name]
        self._starting[name] = now
        return name

    def is_starting(self, name: str) -> bool:
        """Whether its start has begun, and neither ended nor failed."""
        return name in self._starting

    def started(self, name: str, now: float) -> None:
        """A query works."""
        del self._starting[name]
        self._running[name] = now

    def failed(self, name: str, now: float) -> float:
        """A query stopped, or did not start; it is due again after this many seconds."""
        self._starting.pop(name, None)
        if now - self._running.pop(name, now) >= _RAN_SECONDS:
            self._pauses.pop(name, None)
        pause = self._pauses.get(name, _FIRST_PAUSE)
        self._pauses[name] = min(2 * pause, _LONGEST_PAUSE)
        self._due[name] = now + pause
        return pause
