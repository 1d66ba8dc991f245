"""Every workload, played through the SDK against three real sites: delivered is what its own model predicts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.system.test_cli import run

from nearcast.errors import InputError, NearcastError
from nearcast.lab.workloads import Schedule, ScheduleBuilder
from nearcast.lab.workloads.content import ContentParameters, content
from nearcast.lab.workloads.emergency import emergency
from nearcast.lab.workloads.emergency_scene import EmergencyParameters, generate_scene
from nearcast.lab.workloads.follow import FollowParameters, follow, generate_follows
from nearcast.lab.workloads.game import GameParameters, game, generate_cities
from nearcast.lab.workloads.player import play
from nearcast.lab.workloads.schedule import JOIN, MOVE, PUBLISH, SUBSCRIBE
from nearcast.lab.workloads.taxi import trip_schedule
from nearcast.lab.workloads.taxi_job import TaxiParameters
from nearcast.lab.workloads.uav import UavParameters, generate_towers, uav
from nearcast.testing import RunningSites

StartCity = Callable[..., contextlib.AbstractAsyncContextManager[RunningSites]]
SITES = ("tokyo", "osaka", "cloud")


def _follow() -> Schedule:
    p = FollowParameters(topics=6, sites=3, duration_s=20)
    return follow(generate_follows(24, p), p).schedule


def _taxi() -> Schedule:
    rng = np.random.default_rng(1)
    t0 = rng.uniform(0, 200, 12)
    x0, y0 = rng.normal(-73.98, 0.005, 12), rng.normal(40.75, 0.005, 12)
    trips = {"t0": t0, "t1": t0 + 400, "x0": x0, "y0": y0, "x1": x0 + 0.02, "y1": y0 + 0.01}
    return trip_schedule(pd.DataFrame(trips), TaxiParameters())


def _uav() -> Schedule:
    # Slow radios and fast drones: many moves, few messages.
    p = UavParameters(zones=3, swarms=2, drones=3, rate_scale=0.001, duration_s=200)
    return uav(generate_towers(60, 1), p).schedule


def _game() -> Schedule:
    p = GameParameters(cities=3, avatars=9, groups=3, rate_scale=0.001, duration_s=90)
    return game(generate_cities(), p).schedule


def _content() -> Schedule:
    return content(ContentParameters(nodes=12, topics=3, duration_s=20)).schedule


def _emergency() -> Schedule:
    p = EmergencyParameters(users=8, sites=3, reports=120, login_s=20, duration_s=120, speed_m_s=100)
    return emergency(generate_scene(p), p).schedule


@pytest.mark.parametrize("make", [_follow, _taxi, _uav, _game, _content, _emergency])
async def test_delivered_is_what_the_model_predicts(city: StartCity, make: Callable[[], Schedule]) -> None:
    schedule = make()
    predicted = schedule.predicted()
    async with city() as c:
        played = await play(schedule, [c.url(site) for site in SITES], speed=math.inf)
    assert played.lost == 0
    assert [played.published.get(t, 0) for t in schedule.topics] == predicted.published.tolist()
    assert [played.delivered.get(t, 0) for t in schedule.topics] == predicted.delivered.tolist()
    assert predicted.delivered.sum() > 100


async def test_the_speed_is_kept(city: StartCity) -> None:
    builder = ScheduleBuilder(["a"], ["t"], ["s"])
    builder.add(JOIN, 0.0, 0, site=0)
    builder.add(SUBSCRIBE, 0.0, 0, 0)
    builder.add(PUBLISH, np.arange(5.0), 0, 0)
    async with city(names=("tokyo",)) as c:
        played = await play(builder.build(), [c.url("tokyo")], speed=4.0)
    # Four seconds between the first message and the last, four times as fast.
    assert played.seconds >= 1.0
    assert played.delivered == {"t": 5}


async def test_a_client_that_moves_misses_nothing_and_hears_nothing_twice(city: StartCity) -> None:
    builder = ScheduleBuilder(["speaker", "mover"], ["t"], ["s0", "s1", "s2"])
    builder.add(JOIN, 0.0, [0, 1], site=0)
    builder.add(SUBSCRIBE, 0.0, 1, 0)
    builder.add(PUBLISH, np.arange(1, 301) / 100, 0, 0, size=100)
    builder.add(MOVE, np.arange(10) / 4 + 0.3, 1, site=np.arange(1, 11) % 3)
    async with city() as c:
        played = await play(builder.build(), [c.url(site) for site in SITES], speed=math.inf)
    assert (played.delivered, played.lost) == ({"t": 300}, 0)


async def test_the_command_plays_a_folder_and_tells_what_arrived(city: StartCity, tmp_path: Path) -> None:
    content(ContentParameters(nodes=12, topics=3, duration_s=20)).save(tmp_path / "made")
    async with city(names=("tokyo", "osaka")) as c:
        brokers = [word for site in ("tokyo", "osaka") for word in ("--broker", c.url(site))]
        code, out, err = await run("workload", "play", str(tmp_path / "made"), "--speed", "inf", *brokers)
    assert code == 0, err
    number = _content().predicted().delivered.sum()
    assert f"delivered  {number:,} of {number:,} predicted" in out


async def test_what_cannot_be_played_is_refused(city: StartCity) -> None:
    builder = ScheduleBuilder(["a"], ["t"], ["s"])
    builder.add(PUBLISH, 0.0, 0, 0)
    schedule = builder.build()
    with pytest.raises(InputError, match="at least one broker"):
        await play(schedule, [])
    async with city(names=("tokyo",)) as c:
        with pytest.raises(InputError, match="a speed above 0"):
            await play(schedule, [c.url("tokyo")], speed=0)
        with pytest.raises(NearcastError, match="a publish before it joins"):
            await play(schedule, [c.url("tokyo")])
