"""Topologies from round trips and from places."""

from __future__ import annotations

import pytest

from nearcast import InputError
from nearcast.lab.wan import LinkSettings, Position, from_links, from_positions, from_rtts


def test_a_direction_takes_half_of_its_own_round_trip() -> None:
    topology = from_rtts({("a", "b"): 20.0, ("b", "a"): 30.0, ("a", "c"): 8.0, ("b", "c"): 2.0})
    assert topology.nodes == ("a", "b", "c")
    assert topology.link("a", "b").delay_ms == 10.0
    assert topology.link("b", "a").delay_ms == 15.0
    assert topology.link("c", "a").delay_ms == topology.link("a", "c").delay_ms == 4.0


def test_positions_give_distance_and_both_access_links() -> None:
    places = {"a": Position(0, 0, access_ms=2.0), "b": Position(0, 1, access_ms=5.0), "c": Position(0, 1)}
    topology = from_positions(places, ms_per_km=0.02)
    assert topology.link("a", "b").delay_ms == pytest.approx(2 + 5 + 0.02 * 111.19, abs=0.001)
    assert topology.link("b", "a") == topology.link("a", "b")
    assert topology.link("c", "b").delay_ms == 5.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"delay_ms": -1.0}, "delay is -1 ms"),
        ({"delay_ms": float("nan")}, "delay is nan ms"),
        ({"delay_ms": 5.0, "jitter_ms": 6.0}, "jitter is 6 ms; 0 to the delay"),
        ({"delay_ms": 5.0, "loss": 1.1}, "loss is 1.1; 0 to 1"),
        ({"delay_ms": 5.0, "mbit": 0.0}, "bandwidth is 0 Mbit/s"),
    ],
)
def test_impossible_ways_are_refused(fields: dict[str, float], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        LinkSettings(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("a", "b"), ("b", "c")], "no row for the pair 'a', 'c'"),
        ([("a", "a")], "2 to 1000 nodes"),
        ([("a", "b c")], "node 'b c' cannot be a name"),
        ([("a", "../b")], "cannot be a name"),
        ([("a", "-b")], "cannot be a name"),
        ([("a", "all")], "cannot be a name"),
    ],
)
def test_impossible_topologies_are_refused(pairs: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        from_links({pair: LinkSettings(1.0) for pair in pairs})


def test_an_unknown_node_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no node 'x'; there are: a, b"):
        from_rtts({("a", "b"): 1.0}).link("a", "x")
