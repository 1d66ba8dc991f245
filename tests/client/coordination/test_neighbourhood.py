"""What a client concludes from pings and from the clock of its home."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from nearcast.client.coordination.neighbourhood import HomePing, Neighbourhood


def settled(ms: float) -> HomePing:
    ping = HomePing()
    for _ in range(5):
        assert not ping.suspicious(ms)
    return ping


def test_a_longer_way_is_noticed_at_the_first_ping_and_confirmed_by_the_next_two() -> None:
    ping = settled(20.0)
    assert ping.suspicious(50.0)
    assert ping.confirmed([50.0, 51.0, 49.0])
    assert not ping.suspicious(50.0)  # the new way is usual from now on
    assert ping.suspicious(20.0)
    assert ping.confirmed([20.0, 20.0, 20.0])


def test_one_slow_ping_is_no_change() -> None:
    ping = settled(20.0)
    assert ping.suspicious(400.0)
    assert not ping.confirmed([400.0, 20.5, 21.0])
    assert not ping.suspicious(20.0)


def test_pings_that_disagree_about_the_direction_are_no_change() -> None:
    ping = settled(50.0)
    assert not ping.confirmed([100.0, 10.0, 100.0])


def test_another_home_has_another_usual_ping() -> None:
    ping = settled(20.0)
    ping.reset()
    assert not ping.suspicious(120.0)


@given(st.floats(0.1, 300), st.integers(0, 2**32))
def test_jitter_within_the_noise_never_counts_as_a_change(ms: float, seed: int) -> None:
    ping, rng = HomePing(), random.Random(seed)
    for _ in range(200):
        assert not ping.suspicious(ms + rng.uniform(0, 2.4))


def test_a_clock_that_is_an_hour_off_is_corrected_and_a_good_one_is_left_alone() -> None:
    neighbourhood, hour = Neighbourhood(), 3_600_000_000
    neighbourhood._note_clock(home_us=hour + 10_000, asked_us=0, round_trip_us=20_000)
    assert neighbourhood.clock_offset_us == hour
    # Within half a round trip the difference may be the network's: an asymmetric way, not the clock.
    neighbourhood._note_clock(home_us=15_000, asked_us=0, round_trip_us=20_000)
    assert neighbourhood.clock_offset_us == 0
