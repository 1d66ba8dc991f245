"""UAV swarms and game avatars: the two scenarios of ePulsar."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.workloads.literal import check_prediction

from nearcast.coordinates.geography import great_circle_km, local_plane_km
from nearcast.errors import InputError
from nearcast.lab.workloads.game import GameParameters, game, generate_cities
from nearcast.lab.workloads.mobility import random_waypoint
from nearcast.lab.workloads.network_embedding import network_coordinates
from nearcast.lab.workloads.uav import UavParameters, generate_towers, uav

SMALL_UAV = UavParameters(swarms=3, drones=4, rate_scale=0.005, duration_s=120)
SMALL_GAME = GameParameters(avatars=12, groups=3, rate_scale=0.002, duration_s=120)


def test_random_waypoints_keep_the_speed_and_the_box() -> None:
    times = np.arange(0, 500, 1.0)
    x, y = random_waypoint(np.random.default_rng(1), 5, (0, 0, 10, 4), 0.05, times)
    assert x.shape == (5, 500)
    assert (x.min(), y.min()) >= (0, 0)
    assert (x.max(), y.max()) <= (10, 4)
    step = np.hypot(np.diff(x), np.diff(y))
    # Straight steps have the speed; at a turn the chord is shorter.
    assert step.max() == pytest.approx(0.05)
    assert np.median(step) == pytest.approx(0.05)


def test_zones_come_from_the_towers_and_every_drone_is_in_the_zone_it_flies_over() -> None:
    made = uav(generate_towers(80, 2), SMALL_UAV)
    places = made.places
    for event in made.schedule:
        if event.kind in ("join", "move"):
            distance = np.hypot(places.x - event.x, places.y - event.y)
            assert distance[list(places.names).index(event.site)] == pytest.approx(distance.min(), abs=1e-5)
    assert any(e.kind == "move" for e in made.schedule)
    check_prediction(made.schedule)


def test_the_leader_commands_and_the_others_report() -> None:
    made = uav(generate_towers(80, 2), SMALL_UAV)
    clients = made.tables["clients"]
    rows = list(zip(clients["topic"], clients["client"], clients["role"], strict=True))
    assert [c for t, c, r in rows if (t, r) == ("swarm1.follow_leader", "pub")] == ["drone1-0"]
    assert [c for t, c, r in rows if (t, r) == ("swarm1.sensor_data", "sub")] == ["drone1-0"]
    others = [f"drone1-{d}" for d in range(1, 4)]
    assert [c for t, c, r in rows if (t, r) == ("swarm1.follow_leader", "sub")] == others
    assert [c for t, c, r in rows if (t, r) == ("swarm1.sensor_data", "pub")] == others
    assert set(made.tables["topics"]["bound_ms"]) == {40.0}


def test_sites_of_a_city_are_fifteen_ms_apart_one_way() -> None:
    sites = uav(generate_towers(80, 2), SMALL_UAV).tables["sites"]
    point = np.stack([sites[f"c{axis}"] for axis in range(8)], axis=1)
    apart = np.linalg.norm(point[:, None] - point[None, :], axis=2)
    assert apart[~np.eye(4, dtype=bool)] == pytest.approx(15.0, abs=0.1)


def test_impossible_swarms_are_refused() -> None:
    with pytest.raises(InputError, match="zones is 9; 1 to 5"):
        uav(generate_towers(5, 1), UavParameters(zones=9))
    with pytest.raises(InputError, match="drones is 1"):
        uav(generate_towers(5, 1), UavParameters(drones=1))


@pytest.mark.parametrize("dwell", ["uniform", "exponential"])
def test_avatars_hear_their_group_and_nobody_else(dwell: str) -> None:
    p = GameParameters(avatars=12, groups=3, dwell=dwell, rate_scale=0.002, duration_s=200)  # type: ignore[arg-type]
    made = game(generate_cities(), p)
    check_prediction(made.schedule)
    assert made.about["group_changes"] > 0
    hears: dict[str, set[str]] = {f"player{n}": set() for n in range(12)}
    for event in made.schedule:
        if event.kind == "subscribe":
            hears[event.client].add(event.topic.replace("avatar", "player"))
        elif event.kind == "unsubscribe":
            hears[event.client].remove(event.topic.replace("avatar", "player"))
    groups = {frozenset({who, *others}) for who, others in hears.items()}
    assert sum(map(len, groups)) == 12
    assert len(groups) <= 3
    clients = made.tables["clients"]
    told: dict[str, set[str]] = {name: set() for name in hears}
    for topic, client, role in zip(clients["topic"], clients["client"], clients["role"], strict=True):
        if role == "sub":
            told[client].add(topic.replace("avatar", "player"))
    assert told == hears


def test_uniform_dwell_is_thirty_to_sixty_seconds() -> None:
    made = game(generate_cities(), GameParameters(avatars=8, groups=4, rate_scale=0.001, duration_s=600))
    # 600 s at 45 s on average: 13 changes each.
    assert made.about["group_changes"] == pytest.approx(8 * 600 / 45, rel=0.1)


def test_coordinates_of_cities_keep_their_delays() -> None:
    cities = generate_cities()
    point = network_coordinates(cities.rtt_ms / 2)
    estimate = np.linalg.norm(point[:, None] - point[None, :], axis=2)
    upper = np.triu_indices(10, 1)
    error = np.abs(estimate - cities.rtt_ms / 2)[upper] / (cities.rtt_ms / 2)[upper]
    assert np.median(error) < 0.05


def test_same_seed_same_game() -> None:
    assert game(generate_cities(), SMALL_GAME).schedule.time_s.tolist() == (
        game(generate_cities(), SMALL_GAME).schedule.time_s.tolist()
    )


def test_impossible_games_are_refused() -> None:
    with pytest.raises(InputError, match="cities is 11; 1 to 10"):
        game(generate_cities(), GameParameters(cities=11))
    with pytest.raises(InputError, match="groups is 20; 1 to 8"):
        game(generate_cities(), GameParameters(avatars=8, groups=20))


def test_distances_on_earth_and_on_the_plane_agree_over_a_city() -> None:
    east, north = local_plane_km(40.80, -73.90, (40.75, -73.98))
    assert np.hypot(east, north) == pytest.approx(great_circle_km(40.80, -73.90, 40.75, -73.98), rel=1e-3)
    # A quarter of the equator.
    assert great_circle_km(0, 0, 0, 90) == pytest.approx(10_007.5, rel=1e-4)
