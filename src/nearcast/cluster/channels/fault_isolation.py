"""Finds which subscriptions or records make a channel's evaluation fail, so that all others keep their results.

An evaluation of some subscriptions against some records either succeeds or fails as a whole. Bisecting finds one
failing pair in about log2(subscriptions) + log2(records) evaluations; a few samples tell whose fault it is. What fails
for a moment only, as on a machine without memory or disk, is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

__all__ = ["EvaluationFailure", "Isolation", "isolate"]

T = TypeVar("T")
# Others with which a suspect is evaluated alone; it is at fault when it fails with most of them.
_SAMPLES = 5


@dataclass(frozen=True)
class EvaluationFailure:
    """Why an evaluation failed."""

    reason: str


@dataclass
class Isolation(Generic[T]):
    """What is left when the offenders are taken out.

    result: of all other subscriptions and records; None when there are none, or when the search was given up.
    subscriptions, records: the offenders, with the reason of each. undecided: single pairs that nothing can be compared
    with; the pair has no result. given_up: why the search ended early; empty when it did not.
    """

    result: T | None = None
    subscriptions: dict[str, str] = field(default_factory=dict)
    records: dict[int, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    given_up: str = ""


def isolate(
    keys: Sequence[str],
    rows: Sequence[int],
    evaluate: Callable[[Sequence[str], Sequence[int]], T | EvaluationFailure],
    may_go_on: Callable[[], bool],
) -> Isolation[T]:
    """Evaluate these subscriptions (by key) against these records (by position) without those that are at fault."""

    def fails(some_keys: Sequence[str], some_rows: Sequence[int]) -> bool:
        return isinstance(evaluate(some_keys, some_rows), EvaluationFailure)

    found: Isolation[T] = Isolation()
    keys, rows = list(keys), list(rows)
    in_company = 0
    while keys and rows:
        outcome = evaluate(keys, rows)
        if not isinstance(outcome, EvaluationFailure):
            found.result = outcome
            return found
        if not may_go_on():
            found.given_up = outcome.reason
            return found
        key = _first_failing(keys, lambda some: fails(some, rows))
        row = _first_failing(rows, partial(fails, [key]))
        alone = evaluate([key], [row])
        if not isinstance(alone, EvaluationFailure):
            in_company += 1
            if in_company > 1:  # as some plans do: nothing to take out
                found.given_up = outcome.reason
                return found
            continue  # or it failed for a moment only
        other_rows = [other for other in _sample(rows) if other != row]
        other_keys = [other for other in _sample(keys) if other != key]
        key_fails = sum(fails([key], [other]) for other in other_rows)
        row_fails = sum(fails([other], [row]) for other in other_keys)
        if not fails([key], [row]):
            continue  # it does not fail any more
        if not other_rows and not other_keys:
            found.undecided[key] = alone.reason
            keys.remove(key)
        elif 2 * key_fails <= len(other_rows) and (2 * row_fails > len(other_keys) or not other_keys):
            found.records[row] = alone.reason
            rows.remove(row)
        else:
            found.subscriptions[key] = alone.reason
            keys.remove(key)
    return found


def _first_failing(items: list[T], fails: Callable[[list[T]], bool]) -> T:
    """One item that fails, given that all of them together do."""
    low, high = 0, len(items)
    while high - low > 1:
        middle = (low + high) // 2
        if fails(items[low:middle]):
            high = middle
        else:
            low = middle
    return items[low]


def _sample(items: Sequence[T]) -> list[T]:
    step = max(len(items) // _SAMPLES, 1)
    return list(items[::step][: _SAMPLES + 1])
