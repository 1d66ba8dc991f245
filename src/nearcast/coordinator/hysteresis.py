"""Keeps topics and clients from moving to and fro: who moved often must be late for longer to move again."""

from __future__ import annotations

from collections import deque

__all__ = ["Hysteresis"]

_WINDOW = 60.0  # seconds in which moves are counted
_FREE_MOVES = 1  # in the window, before anything is held


class Hysteresis:
    """Times are of one monotonic clock. Subjects are `topic T` and `client C`.

    A topic that moved k > 1 times within the last minute is held until it has been late for 2^(k-1) seconds without a
    break, a client until so much time has passed: what swings between two zones moves ever more rarely.
    """

    def __init__(self) -> None:
        self._moves: dict[str, deque[float]] = {}
        self._late_since: dict[str, float] = {}

    def observe(self, late: set[str], now: float) -> None:
        """The topics that are late now."""
        self._late_since = {topic: self._late_since.get(topic, now) for topic in late}
        for subject, times in list(self._moves.items()):
            while times and times[0] < now - _WINDOW:
                times.popleft()
            if not times:
                del self._moves[subject]

    def moved(self, subject: str, now: float) -> None:
        """A subject has moved; the move began then."""
        self._moves.setdefault(subject, deque()).append(now)

    def held(self, now: float) -> set[str]:
        """The subjects that may not move yet."""
        return {subject for subject, times in self._moves.items() if now < self._free_at(subject, times)}

    def _free_at(self, subject: str, times: deque[float]) -> float:
        if len(times) <= _FREE_MOVES:
            return float("-inf")
        kind, _, name = subject.partition(" ")
        since = max(times[-1], self._late_since.get(name, float("inf"))) if kind == "topic" else times[-1]
        return since + 2.0 ** (len(times) - 1)
