"""What several stores know of a source, put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.number_ranges import NumberRanges
from nearcast.protocol.marks import ProgressAnswer, SourceProgress
from nearcast.site.agent.catch_up_machine import CatchUpMachine
from nearcast.site.agent.processing_progress import merged_progress

numbers = st.sets(st.integers(1, 30))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3))
def test_a_mark_that_one_store_has_counts_and_so_does_a_publication(stores: list[tuple[set[int], set[int]]]) -> None:
    answers = [
        ProgressAnswer([SourceProgress(NumberRanges.of(marked).flat(), NumberRanges.of(stored - marked).flat())])
        for marked, stored in stores
    ]
    merged = merged_progress(answers).sources[0]
    marked = set[int]().union(*(one for one, _ in stores))
    stored = set[int]().union(*(one for _, one in stores))
    assert merged.marked == NumberRanges.of(marked).flat()
    assert merged.unmarked == NumberRanges.of(stored - marked).flat()


def test_a_lie_about_a_range_costs_nothing() -> None:
    lie = ProgressAnswer([SourceProgress([1, 10], [5, 2**53])])
    assert merged_progress([lie, lie]).sources[0].unmarked == [11, 2**53]


def test_a_machine_tells_what_has_a_mark_and_what_waits_for_one() -> None:
    machine = CatchUpMachine(2.0)
    for number in (3, 4, 6):
        machine.publication(number, 0.0, "gps", "car", number)
    assert machine.progress("gps", "car") == ([], [3, 4, 6, 6])
    assert machine.progress("gps", "bus") == ([], [])
