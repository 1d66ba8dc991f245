"""The city of the demonstration, as its seed draws it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.auth.deployment_keys import make_deployment_keys
from nearcast.config.deployment_file import read_configuration, read_sites
from nearcast.errors import InputError
from nearcast.lab.demo.city import ACTS, CLOUD, ZONES, City, chosen_acts


def test_a_seed_gives_one_city_and_another_seed_another_one() -> None:
    city, same, other = City(30.0, 4), City(30.0, 4), City(30.0, 5)
    assert city.reports == same.reports != other.reports
    assert city.shelters == same.shelters != other.shelters
    assert city.homes == same.homes


def test_everything_in_the_city_has_a_zone_and_is_where_its_zone_is() -> None:
    city = City(30.0, 1)
    assert len(city.homes) == city.people + city.visitors
    assert set(city.homes) <= set(ZONES)
    assert city.homes[city.people :] == ("stadium",) * city.visitors
    assert {report.zone for report in city.reports} == set(ZONES)
    south, west = min(city.position(zone)[0] for zone in ZONES), min(city.position(zone)[1] for zone in ZONES)
    for person in range(city.people):
        lat, lon = city.walk(person, 10.0)
        assert abs(lat - south) < 0.2
        assert abs(lon - west) < 0.2
    assert len({shelter["name"] for shelter in city.shelters}) == len(city.shelters)
    assert {shelter["is_open"] for shelter in city.shelters} == {True, False}


def test_its_configuration_is_a_deployment_with_stores_and_keys(tmp_path: Path) -> None:
    city, file = City(30.0, 1), tmp_path / "nearcast.toml"
    for site in (*ZONES, CLOUD):
        (tmp_path / "stores" / site).mkdir(parents=True)
    file.write_text(
        city.configuration(lambda site: ("10.77.0.1", 4222 + 10 * (*ZONES, CLOUD).index(site)), cluster=True)
    )
    make_deployment_keys(tmp_path / "auth", read_sites(file))
    deployment = read_configuration(file)
    assert deployment.auth is not None
    assert deployment.data_cluster().warehouse == str(tmp_path / "warehouse")
    assert all(topic.quorum == 1 and topic.managed_by for topic in deployment.topics)
    twins = [topic for topic in deployment.topics if topic.name.startswith("plain.")]
    for twin in twins:
        topic = deployment.topic(twin.name.replace("plain", "swarm"))
        assert (topic.managed_by, topic.replicas) == (twin.managed_by, twin.replicas)
        assert twin.bound_ms is None, "the coordinator moves topics for their bound: a twin has none and stays"


def test_the_acts_fill_the_story_and_one_alone_takes_all_of_it() -> None:
    assert sum(act.share for act in ACTS) == pytest.approx(1.0)
    assert [act.number for act in chosen_acts(None)] == [1, 2, 3, 4, 5]
    assert [(act.number, act.share) for act in chosen_acts(3)] == [(3, 1.0)]
    with pytest.raises(InputError, match="--act is 6; allowed: 1 to 5"):
        chosen_acts(6)
