"""Publications that got no quorum: those that come after them say so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.client.given_up import GivenUpNumbers
from nearcast.nats.stamp import given_up


def told(numbers: GivenUpNumbers, number: int, now: float = 0.0) -> tuple[int, int] | None:
    return given_up(f"car~a1:tokyo:17:{numbers.number_field(number, now)}".encode())


@given(st.permutations(range(3, 9)))
def test_those_of_an_outage_are_one_range_once_all_have_failed(failed: list[int]) -> None:
    numbers = GivenUpNumbers()
    for number in sorted(failed[:3]) + sorted(failed[3:]):
        numbers.add(number, 0.0)
    ranges = {told(numbers, number) for number in range(10, 20)}
    assert {n for one in ranges if one for n in range(one[0], one[1] + 1)} == set(range(3, 9))


def test_several_ranges_are_told_in_turn_for_ten_minutes() -> None:
    numbers = GivenUpNumbers()
    numbers.add(2, 0.0)
    numbers.add(5, 300.0)
    assert {told(numbers, 7, 301.0), told(numbers, 8, 301.0)} == {(2, 2), (5, 5)}
    assert {told(numbers, 9, 601.0), told(numbers, 10, 601.0)} == {(5, 5)}
    assert told(numbers, 11, 901.0) is None
    assert not numbers


def test_however_many_fail_what_is_told_is_bounded() -> None:
    numbers = GivenUpNumbers()
    for number in range(1, 1001, 2):
        numbers.add(number, 0.0)
    assert len({told(numbers, number) for number in range(1001, 2001)}) == 64
