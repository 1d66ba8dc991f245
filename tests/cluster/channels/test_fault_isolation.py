"""Offenders are found, and all others keep their results. Spark is not needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.channels.fault_isolation import EvaluationFailure, isolate

KEYS = [f"k{n}" for n in range(40)]
ROWS = list(range(25))
Pairs = set[tuple[str, int]]


class Evaluations:
    """Counts evaluations; one fails when it holds a bad subscription or a bad record."""

    def __init__(self, bad_keys: set[str], bad_rows: set[int]) -> None:
        self.bad_keys, self.bad_rows, self.count = bad_keys, bad_rows, 0

    def __call__(self, keys: Sequence[str], rows: Sequence[int]) -> Pairs | EvaluationFailure:
        self.count += 1
        if (self.bad_keys & set(keys) and rows) or (self.bad_rows & set(rows) and keys):
            return EvaluationFailure("division by zero")
        return {(key, row) for key in keys for row in rows}


@given(st.sets(st.sampled_from(KEYS), max_size=3), st.sets(st.sampled_from(ROWS), max_size=3))
def test_every_offender_is_taken_out_and_nothing_else(bad_keys: set[str], bad_rows: set[int]) -> None:
    found = isolate(KEYS, ROWS, Evaluations(bad_keys, bad_rows), lambda: True)
    assert set(found.subscriptions) == bad_keys
    assert set(found.records) == bad_rows
    assert found.result == {(k, r) for k in KEYS for r in ROWS if k not in bad_keys and r not in bad_rows}


def test_one_offender_among_many_is_found_in_few_evaluations() -> None:
    keys = [f"k{n}" for n in range(100_000)]
    evaluations = Evaluations({"k31415"}, set())
    found = isolate(keys, [7], evaluations, lambda: True)
    assert found.subscriptions == {"k31415": "division by zero"}
    assert evaluations.count < 40


@pytest.mark.parametrize(("keys", "rows"), [(KEYS[:1], ROWS), (KEYS, ROWS[:1])])
def test_an_offender_is_told_from_the_only_record_or_subscription(keys: list[str], rows: list[int]) -> None:
    assert set(isolate(keys, rows, Evaluations({"k0"}, set()), lambda: True).subscriptions) == {"k0"}
    assert set(isolate(keys, rows, Evaluations(set(), {0}), lambda: True).records) == {0}


def test_a_single_pair_stays_undecided_and_a_search_can_be_given_up() -> None:
    found = isolate(["k0"], [0], Evaluations({"k0"}, set()), lambda: True)
    assert found.undecided == {"k0": "division by zero"}
    assert isolate(KEYS, ROWS, Evaluations({"k0"}, set()), lambda: False).given_up == "division by zero"


@pytest.mark.parametrize("failing", range(14))
def test_what_fails_for_a_moment_is_nobodys_fault(failing: int) -> None:
    """A disk that was full, an executor that was lost: all evaluations fail, and then none. (If that happens while the
    suspect is compared with others, it may be blamed.)"""
    evaluations = Evaluations(set(), set())

    def evaluate(keys: Sequence[str], rows: Sequence[int]) -> Pairs | EvaluationFailure:
        evaluated = evaluations(keys, rows)
        return EvaluationFailure("no space left") if evaluations.count <= failing else evaluated

    found = isolate(KEYS, ROWS, evaluate, lambda: True)
    assert (found.subscriptions, found.records, found.given_up) == ({}, {}, "")
    assert found.result == {(key, row) for key in KEYS for row in ROWS}
