"""Emergencies: the workload of *Multistage Adaptive Load Balancing for Big Active Data*, Section 6.1.

Reports of eight types stream in, users move and report where they are, and subscribe to seven
parameterised channels that the data cluster evaluates every 10, 20 or 30 s. Equal subscriptions are shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.lab.workloads.emergency_scene import TYPES, EmergencyParameters, Scene
from nearcast.lab.workloads.follow import site_grid
from nearcast.lab.workloads.schedule import JOIN, LEAVE, MOVE, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, ScheduleBuilder
from nearcast.lab.workloads.workload import Columns, SiteMap, Workload

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["CHANNELS", "EmergencyChannel", "emergency"]


@dataclass(frozen=True)
class EmergencyChannel:
    """A parameterised query over the datasets; `period_s` is how often the data cluster evaluates it."""

    name: str
    parameters: tuple[str, ...]
    period_s: int
    about: str


CHANNELS = (
    EmergencyChannel("reports_of_type", ("type",), 10, "reports of a type"),
    EmergencyChannel("reports_in_area", ("area",), 10, "reports in an area"),
    EmergencyChannel("reports_near_me", ("user",), 10, "reports near the user, wherever that is"),
    EmergencyChannel("type_in_area", ("type", "area"), 20, "reports of a type in an area"),
    EmergencyChannel("shelters_for_type", ("type",), 20, "reports of a type with the shelters near them"),
    EmergencyChannel("shelters_in_area", ("area",), 30, "reports in an area with the shelters near them"),
    EmergencyChannel("shelters_near_me", ("user",), 30, "shelters near the user when there is a report near"),
)


def emergency(scene: Scene, p: EmergencyParameters) -> Workload:
    """Subscriptions, their rates and where they start, and the day as a schedule."""
    if p.duration_s <= 2 * p.login_s:
        raise InputError(
            f"duration_s is {p.duration_s:g}; logging in and subscribing take {2 * p.login_s:g} (2 login_s)"
        )
    rng = np.random.default_rng([p.seed, 1])
    user, chosen, keys = _subscriptions(p, rng)
    site_x, site_y = site_grid(p.sites, p.field_km)
    home = np.argmin(np.hypot(scene.user_x[..., None] - site_x, scene.user_y[..., None] - site_y), axis=2)
    result_time, result_key, result_size = _results(scene, p, keys)

    reports = [f"reports.{t}" for t in TYPES]
    topics = [*reports, "locations", *(f"channel.{k}" for k in keys)]
    names = [*(f"user{n}" for n in range(p.users)), *(f"sensor_{t}" for t in TYPES), "cluster"]
    sites = [f"b{n}" for n in range(p.sites)]
    cluster, locations, first_key = len(names) - 1, len(TYPES), len(TYPES) + 1
    sensors = p.users + np.arange(len(TYPES))

    events = ScheduleBuilder(names, topics, sites)
    # Sensors and the data cluster are there all the time; the cluster reads all that they and the users tell.
    events.add(JOIN, 0.0, np.append(sensors, cluster), site=0, x=site_x[0], y=site_y[0])
    events.add(SUBSCRIBE, 0.0, cluster, np.arange(len(TYPES) + 1))
    where = {"x": scene.report_x, "y": scene.report_y}
    events.add(PUBLISH, scene.report_s, sensors[scene.report_type], scene.report_type, size=scene.report_size, **where)
    events.add(PUBLISH, result_time, cluster, first_key + result_key, size=result_size)
    online = _users(scene, p, rng, home, events, user, first_key + chosen, locations)

    seconds = np.bincount(result_key, weights=result_size, minlength=len(keys)) / p.duration_s
    used = np.unique(chosen)
    key = np.array(keys, dtype=object)
    people = np.array(names[: p.users], dtype=object)
    tables: dict[str, Columns] = {
        "sites": {"site": sites, "x_km": site_x, "y_km": site_y},
        "subscriptions": {"subscriber": people[user], "subscription": key[chosen]},
        "rates": {"subscription": key[used], "rate": seconds[used]},
        "current": {"subscriber": people, "site": np.array(sites, dtype=object)[home[:, 0]]},
        "channels": {
            "channel": [c.name for c in CHANNELS], "parameters": [" ".join(c.parameters) for c in CHANNELS],
            "period_s": [c.period_s for c in CHANNELS], "about": [c.about for c in CHANNELS],
        },
        "shelters": {"shelter": list(scene.shelter), "x_km": scene.shelter_x, "y_km": scene.shelter_y},
    }  # fmt: skip
    about = {
        "users": p.users, "sites": p.sites, "reports": len(scene.report_s),
        "shelters": len(scene.shelter), "channels": len(CHANNELS),
        "frontend_subscriptions": len(user), "backend_subscriptions": len(used),
        "logouts": online, "duration_s": p.duration_s, "seed": p.seed,
    }  # fmt: skip
    plan = "balance " + " ".join(f"--{t} {t}.csv" for t in ("sites", "subscriptions", "rates", "current"))
    load = np.bincount(home[:, 0], minlength=p.sites).astype(np.float64)
    places = SiteMap(sites, site_x, site_y, load)
    return Workload("emergency", about, plan, tables, places, events.build(), scene.skipped)


def _subscriptions(p: EmergencyParameters, rng: np.random.Generator) -> tuple[Ints, Ints, list[str]]:
    """User and key of each subscription: 1 to 5 channels each, 1 to 3 subscriptions a channel."""
    values = {"type": list(TYPES), "area": [f"a{n}" for n in range(p.areas_per_side**2)]}
    number: dict[str, int] = {}
    user, key = [], []
    for u in range(p.users):
        channels = rng.permutation(len(CHANNELS))[: rng.integers(1, 6)]
        for channel in (CHANNELS[c] for c in channels):
            for _ in range(rng.integers(1, 4)):
                own = values | {"user": [f"user{u}"]}
                picked = (own[name][rng.integers(len(own[name]))] for name in channel.parameters)
                name = ".".join((channel.name, *picked))
                user.append(u)
                key.append(number.setdefault(name, len(number)))
    pairs = np.unique(np.stack((user, key)), axis=1)
    return pairs[0], pairs[1], list(number)


def _results(scene: Scene, p: EmergencyParameters, keys: list[str]) -> tuple[Floats, Ints, Ints]:
    """When the cluster publishes a result, for which subscription, its size: all matches of a period."""
    kinds = {t: n for n, t in enumerate(TYPES)}
    side = p.field_km / p.areas_per_side
    cell = np.minimum(np.stack((scene.report_x, scene.report_y)) // side, p.areas_per_side - 1).astype(np.int64)
    area = cell[1] * p.areas_per_side + cell[0]
    step = np.minimum((scene.report_s / p.location_period_s).astype(np.int64), len(scene.times) - 1)
    by_name = {c.name: c for c in CHANNELS}
    times, numbers, sizes = [], [], []
    for number, key in enumerate(keys):
        name, *values = key.split(".")
        channel = by_name[name]
        match = np.ones(len(scene.report_s), dtype=bool)
        for parameter, value in zip(channel.parameters, values, strict=True):
            if parameter == "type":
                match &= scene.report_type == kinds[value]
            elif parameter == "area":
                match &= area == int(value[1:])
            else:
                u = int(value.removeprefix("user"))
                away = np.hypot(scene.report_x - scene.user_x[u, step], scene.report_y - scene.user_y[u, step])
                match &= away <= p.near_km
        period = (scene.report_s[match] // channel.period_s).astype(np.int64)
        volume = np.bincount(period, weights=scene.report_size[match])
        ran = np.flatnonzero(volume)
        times.append((ran + 1.0) * channel.period_s)
        numbers.append(np.full(len(ran), number))
        sizes.append(volume[ran].astype(np.int64))
    when, number_of, size = (np.concatenate(parts) for parts in (times, numbers, sizes))
    inside = when < p.duration_s
    return when[inside], number_of[inside], size[inside]


def _users(
    scene: Scene,
    p: EmergencyParameters,
    rng: np.random.Generator,
    home: Ints,
    events: ScheduleBuilder,
    user: Ints,
    topic: Ints,
    locations: int,
) -> int:
    """Log in, subscribe, move, tell the location, unsubscribe, log out; how many log out before the end."""
    login = rng.uniform(0, p.login_s, p.users)
    goes = rng.random(p.users) < p.logout_share
    logout = np.where(goes, rng.uniform(2 * p.login_s, p.duration_s, p.users), p.duration_s)
    at_login = np.minimum((login / p.location_period_s).astype(np.int64), len(scene.times) - 1)
    everyone = np.arange(p.users)
    where = {"x": scene.user_x[everyone, at_login], "y": scene.user_y[everyone, at_login]}
    events.add(JOIN, login, everyone, site=home[everyone, at_login], **where)
    begin = rng.uniform(p.login_s, 2 * p.login_s, len(user))
    stops = rng.random(len(user)) < p.unsubscribe_share
    end = np.where(stops, rng.uniform(2 * p.login_s, p.duration_s, len(user)), p.duration_s)
    end = np.minimum(end, logout[user])
    events.add(SUBSCRIBE, begin, user, topic)
    events.add(UNSUBSCRIBE, end, user, topic)
    events.add(LEAVE, logout, everyone)

    u, step = np.nonzero((scene.times > login[:, None]) & (scene.times < logout[:, None]))
    place = {"x": scene.user_x[u, step], "y": scene.user_y[u, step]}
    events.add(PUBLISH, scene.times[step], u, locations, size=64, **place)
    crossed = step > at_login[u]
    crossed &= home[u, step] != home[u, step - 1]
    u, step = u[crossed], step[crossed]
    events.add(MOVE, scene.times[step], u, site=home[u, step], x=scene.user_x[u, step], y=scene.user_y[u, step])
    return int(goes.sum())
