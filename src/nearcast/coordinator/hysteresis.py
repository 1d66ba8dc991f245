"""Keeps topics and clients from moving to and fro: who moved without effect must be late for longer to move again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Hysteresis"]

_LASTING = 10.0  # seconds; a move that was followed by another sooner than this was without effect
_ALL_TOLD = 5.0  # seconds; a report period
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 32.0
_FORGET_AFTER = 60.0  # without a move, and for topics without being late


@dataclass
class _Moved:
    at: float
    wait: float = 0.0
    late_at: float = float("-inf")


class Hysteresis:
    """Times are of one monotonic clock. Subjects are `topic T` and `client C`.

    A subject that moves again before its last move has lasted gets a wait, which doubles each time, and is halved by a
    move that lasted and by every ten seconds without trouble: a topic must be late for so long without a break to move
    again, a client must stay for so long.
    What changes its zone now and then is answered at once; what swings between two zones stops moving, because none of
    its stays is as long as its wait.
    """

    def __init__(self) -> None:
        self._moved: dict[str, _Moved] = {}
        self._late_since: dict[str, float] = {}

    def observe(self, late: set[str], now: float) -> None:
        """The topics that are late now."""
        for topic in late:
            if moved := self._moved.get(f"topic {topic}"):
                if topic not in self._late_since:
                    moved.wait = _shorter(moved.wait, int((now - max(moved.at, moved.late_at)) // _LASTING))
                moved.late_at = now
        self._late_since = {topic: self._late_since.get(topic, now) for topic in late}
        for subject, moved in list(self._moved.items()):
            if max(moved.at, moved.late_at) < now - max(_FORGET_AFTER, 2 * moved.wait):
                del self._moved[subject]

    def moved(self, subject: str, now: float) -> None:
        """A subject has moved; the move began then."""
        last = self._moved.get(subject)
        if last is None:
            self._moved[subject] = _Moved(now)
        elif now - last.at < max(_LASTING, 2 * last.wait):
            self._moved[subject] = _Moved(now, min(max(_FIRST_WAIT, 2 * last.wait), _LONGEST_WAIT))
        else:
            self._moved[subject] = _Moved(now, _shorter(last.wait, 1))

    def just_late(self, now: float) -> set[str]:
        """The topics that became late just now: some of their clients may not have told yet where they are."""
        return {topic for topic, since in self._late_since.items() if now - since < _ALL_TOLD}

    def held(self, now: float) -> set[str]:
        """The subjects that may not move yet."""
        return {subject for subject, moved in self._moved.items() if now < self._free_at(subject, moved)}

    def _free_at(self, subject: str, moved: _Moved) -> float:
        if not moved.wait:
            return float("-inf")
        kind, _, name = subject.partition(" ")
        since = max(moved.at, self._late_since.get(name, float("inf"))) if kind == "topic" else moved.at
        return since + moved.wait


def _shorter(wait: float, halvings: int) -> float:
    shorter = wait / 2**halvings
    return shorter if shorter >= _FIRST_WAIT else 0.0
