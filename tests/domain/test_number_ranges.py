"""Ranges against plain sets."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.number_ranges import NumberRanges

ranges = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(ranges, max_size=15))
def test_ranges_hold_what_a_set_holds(added: list[tuple[int, int]]) -> None:
    kept, expected = NumberRanges(), set[int]()
    for first, last in added:
        kept.add(first, last)
        expected |= set(range(first, last + 1))
        assert {number for number in range(-1, 40) if number in kept} == expected
    pairs = list(kept)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(pairs))
    assert NumberRanges(kept.flat()).flat() == kept.flat() == NumberRanges.of(expected).flat()
    assert len(kept) == len(pairs)


@given(st.lists(ranges, max_size=8), st.lists(ranges, max_size=8))
def test_ranges_without_others_are_the_difference_of_sets(
    kept: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> None:
    def numbers(pairs: list[tuple[int, int]]) -> set[int]:
        return {number for first, last in pairs for number in range(first, last + 1)}

    def of(pairs: list[tuple[int, int]]) -> NumberRanges:
        return NumberRanges([number for pair in pairs for number in pair])

    assert of(kept).without(of(taken)).flat() == NumberRanges.of(numbers(kept) - numbers(taken)).flat()
