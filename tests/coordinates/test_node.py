"""The live update: each refinement does what it is for, and nonsense does not spread."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import msgspec
import pytest

from nearcast import InputError
from nearcast.coordinates import Coordinate, Node, VivaldiSettings, round_trip_ms

PLANE = VivaldiSettings(dimensions=2, gravity_ms=math.inf, adjustment_window=0)


def test_each_height_counts_once_in_the_distance() -> None:
    a = Coordinate((0.0, 3.0), height=1.0)
    b = Coordinate((4.0, 0.0), height=2.0)
    assert round_trip_ms(a, b) == round_trip_ms(b, a) == 5 + 1 + 2
    assert round_trip_ms(a, a) == 2.0  # two different nodes in one place still have two access links


def test_an_adjustment_counts_unless_it_would_make_the_distance_negative() -> None:
    a = Coordinate((0.0, 3.0), height=1.0, adjustment=-2.0)
    assert round_trip_ms(a, Coordinate((4.0, 0.0), height=2.0, adjustment=0.5)) == 6.5
    assert round_trip_ms(a, Coordinate((0.0, 3.0), height=0.5)) == 1.5


def test_one_update_by_hand() -> None:
    node = Node(PLANE)
    node.coordinate = Coordinate((0.0, 0.0), height=1.0, error=1.0)
    other = Coordinate((3.0, 4.0), height=2.0, error=0.6)
    after = node.update("b", other, 16.0)
    # length 5 + 1 + 2 = 8; weight 1 / 1.6; force 0.25 * weight * (16 - 8), away from the peer:
    # 5/8 of it moves the position, 3/8 raises the height
    weight = 1.0 / 1.6
    force = 0.25 * weight * 8
    assert after.position == pytest.approx((-0.6 * force * 5 / 8, -0.8 * force * 5 / 8))
    assert after.height == pytest.approx(1.0 + force * 3 / 8)
    assert after.error == pytest.approx(0.25 * weight * 0.5 + (1 - 0.25 * weight) * 1.0)


def test_gravity_by_hand() -> None:
    node = Node(msgspec.structs.replace(PLANE, gravity_ms=10.0))
    node.coordinate = Coordinate((30.0, 40.0), height=1.0, error=1.0)
    other = Coordinate((30.0, 0.0), height=1.0, error=1.0)
    after = node.update("b", other, 42.0)  # exactly as estimated: only gravity acts
    pull = ((50 + 1 + 0.01) / 10) ** 2 * 50 / 51.01
    assert after.position == pytest.approx((30 - 0.6 * pull, 40 - 0.8 * pull))


def test_adjustment_is_half_the_mean_residual() -> None:
    node = Node(msgspec.structs.replace(PLANE, adjustment_window=4))
    node.coordinate = Coordinate((0.0, 0.0), height=1.0, error=0.0)  # certain of itself: does not move
    other = Coordinate((3.0, 4.0), height=2.0, error=1.0)
    assert node.update("b", other, 12.0).adjustment == pytest.approx(4 / 8)
    assert node.update("b", other, 12.0).adjustment == pytest.approx(8 / 8)


def test_a_single_spike_is_filtered() -> None:
    calm, spiked = Node(seed=1), Node(seed=1)
    other = Node(seed=2).coordinate
    for sample in (10.0, 10.0):
        calm.update("b", other, sample)
        spiked.update("b", other, sample)
    assert spiked.update("b", other, 900.0) == calm.update("b", other, 10.0)


def test_forgetting_a_peer_drops_its_samples() -> None:
    node, fresh = Node(seed=1), Node(seed=1)
    other = Node(seed=2).coordinate
    for sample in (900.0, 900.0):
        node.update("b", other, sample)
    node.forget("b")
    node.coordinate = fresh.coordinate
    assert node.update("b", other, 10.0).error == fresh.update("b", other, 10.0).error


def test_an_invalid_value_resets_the_node() -> None:
    node = Node(seed=1)
    start = node.coordinate
    node.update("b", Coordinate((-1e308, 1e308) * 4, height=1e308), 10.0)
    assert node.resets == 1
    assert node.coordinate == start
    assert math.isfinite(sum(node.update("c", Node(seed=2).coordinate, 10.0).position))


@pytest.mark.parametrize(
    ("other", "rtt_ms", "reason"),
    [
        (Coordinate((0.0,) * 3, 1.0), 10.0, "has 3 dimensions; 8 are needed"),
        (Coordinate((math.nan,) * 8, 1.0), 10.0, "is not finite"),
        (Coordinate((0.0,) * 8, -1.0), 10.0, "negative height"),
        (Coordinate((0.0,) * 8, 1.0), -1.0, "0 to 10000 is allowed"),
        (Coordinate((0.0,) * 8, 1.0), 10_001.0, "0 to 10000 is allowed"),
        (Coordinate((0.0,) * 8, 1.0), math.nan, "0 to 10000 is allowed"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(other: Coordinate, rtt_ms: float, reason: str) -> None:
    node = Node(seed=1)
    before = node.coordinate
    with pytest.raises(InputError, match=reason):
        node.update("b", other, rtt_ms)
    assert node.coordinate == before


def test_nodes_on_top_of_each_other_part() -> None:
    a, b = Node(seed=1), Node(seed=1)
    for _ in range(300):
        a.update("b", b.coordinate, 20.0)
        b.update("a", a.coordinate, 20.0)
    assert round_trip_ms(a.coordinate, b.coordinate) == pytest.approx(20.0, rel=0.02)


def test_a_zero_round_trip_is_taken() -> None:
    a, b = Node(seed=1), Node(seed=2)
    for _ in range(100):
        a.update("b", b.coordinate, 0.0)
    assert a.resets == 0
    assert round_trip_ms(a.coordinate, b.coordinate) < 0.1


def test_a_moved_node_believes_new_samples_at_once() -> None:
    """The median filter holds two old samples of each peer; told of the move, the node drops them."""
    generator = random.Random(3)
    peers = {str(i): Coordinate(tuple(generator.gauss(0, 40) for _ in range(8)), 1.0, 0.0, 0.1) for i in range(200)}
    near, far = peers["0"], peers["1"]

    def settle(node: Node, home: Coordinate, updates: int) -> float:
        for _ in range(updates):
            peer = generator.choice(list(peers))
            node.update(peer, peers[peer], max(math.dist(home.position, peers[peer].position), 0.1) + 2)
        return math.dist(node.coordinate.position, home.position)

    told, untold = Node(seed=5), Node(seed=5)
    assert settle(told, near, 600) < 15
    assert settle(untold, near, 600) < 15
    told.moved()
    assert settle(told, far, 150) < 0.4 * settle(untold, far, 150)
    assert settle(told, far, 600) < 15


def test_a_device_behind_a_gateway_adds_its_access_link() -> None:
    gateway, server = Coordinate((0.0, 0.0), 1.0), Coordinate((3.0, 4.0), 2.0)
    assert round_trip_ms(gateway.behind(15.0), server) == round_trip_ms(gateway, server) + 15


def test_coordinates_travel() -> None:
    sent = Node(seed=1).update("b", Node(seed=2).coordinate, 10.0)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Coordinate) == sent


def test_the_live_update_needs_no_numpy() -> None:
    code = "import sys, nearcast.coordinates; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
