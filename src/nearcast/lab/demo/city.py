"""The city: five edge sites and a cloud, who is there, what they tell each other, and the acts of the story.

Delays are one way, in milliseconds. People, reports and shelters are those of the emergency workload.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from nearcast.domain.deployment import AuthSpec, ClusterSpec
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError
from nearcast.lab.scenarios.policies import consistent_hash
from nearcast.lab.scenarios.scenario import CLOUD, Participant, Scenario, SubscribedSpan
from nearcast.lab.scenarios.startup import toml_text
from nearcast.lab.workloads.emergency_scene import TYPES, EmergencyParameters, Scene, generate_scene
from nearcast.lab.workloads.follow import site_grid

__all__ = ["ACTS", "BOUND_MS", "CLOUD", "COORDINATOR_SETTINGS", "ZONES", "Act", "City", "Report", "chosen_acts"]

ZONES = ("harbour", "stadium", "airport", "campus", "market")
BOUND_MS, ALERT_BOUND_MS = 40.0, 150.0
BETWEEN_MS, CLOUD_MS, ACCESS_MS = 15.0, 40.0, 8.0
DRONE_RATE, REPORT_RATE = 2.0, 1.5  # per second and drone; per second in the whole city
REPORT_SECONDS = 2.0  # between two reports of a site or client to the coordinator
# The load of this city is small, and its story short: balance matters from a few messages a second on, and a site that
# is lost is given up sooner than by default.
COORDINATOR_SETTINGS = {"period": 2.0, "lease": 4.0, "site_lost_after": 7.0, "cool_down": 15.0, "mean_load": 2.0}
_FIELD_KM, _ORIGIN = 10.0, (45.60, 13.70)  # of the field's south-western corner: latitude, longitude
_SITES = np.stack(site_grid(len(ZONES), _FIELD_KM), axis=1).tolist()  # of the edge, on the field
_KM_PER_DEGREE = 111.2
_STILL_TO_COME = 600.0  # seconds of reports beyond the story: the data cluster may be slow to start
_SHELTERS = ("School", "Library", "Sports Hall", "Church", "Town Hall", "Museum", "Station", "Depot")


@dataclass(frozen=True)
class Act:
    """share: of the duration of the whole story."""

    number: int
    title: str
    about: str
    share: float


ACTS = (
    Act(1, "An ordinary day", "drones fly, emergencies are reported; topics began at sites chosen by hash", 0.2),
    Act(2, "A match at the stadium", "visitors arrive, the load skews, balance acts", 0.2),
    Act(3, "Drones cross the city", "each swarm changes zone, its topic follows", 0.25),
    Act(4, "A site fails", "every process of a site is killed (-9), and started again later", 0.25),
    Act(5, "A latecomer", "somebody new asks for the last ten minutes", 0.1),
)


def chosen_acts(number: int | None) -> tuple[Act, ...]:
    """All acts, or one of them, which then takes the whole time."""
    if number is None:
        return ACTS
    for act in ACTS:
        if act.number == number:
            return (Act(act.number, act.title, act.about, 1.0),)
    raise InputError(f"--act is {number}; allowed: 1 to {len(ACTS)}")


@dataclass(frozen=True)
class Report:
    """An emergency. at: seconds since the story began. age_s: how long before its report it was seen."""

    id: str
    at: float
    kind: str
    zone: str
    lat: float
    lon: float
    age_s: float


@dataclass(frozen=True)
class City:
    """Who and what there is, all of it drawn with one seed."""

    seconds: float
    seed: int
    swarms: int = 3
    drones: int = 3
    people: int = 20
    visitors: int = 12

    @cached_property
    def scene(self) -> Scene:
        """People (then visitors), reports and shelters of the emergency workload."""
        seconds = self.seconds + _STILL_TO_COME
        return generate_scene(
            EmergencyParameters(
                users=self.people + self.visitors, sites=len(ZONES), reports=int(seconds * REPORT_RATE), shelters=40,
                field_km=_FIELD_KM, near_km=2.0, speed_m_s=5.0, location_period_s=5.0, duration_s=seconds,
                seed=self.seed,
            )
        )  # fmt: skip

    def position(self, site: str) -> tuple[float, float]:
        """Latitude and longitude of a site. The cloud is beside the city: it is far away, and the map is not."""
        if site == CLOUD:
            return _degrees(_FIELD_KM * 1.25, _FIELD_KM / 2)
        return _degrees(*_SITES[ZONES.index(site)])

    def zone_of(self, x: float, y: float) -> str:
        """The zone of a place on the field, in km: that of the nearest site."""
        return ZONES[int(np.argmin([math.dist(site, (x, y)) for site in _SITES]))]

    @cached_property
    def homes(self) -> tuple[str, ...]:
        """The zone of each person at first. Visitors arrive at the stadium."""
        scene = self.scene
        zones = [self.zone_of(scene.user_x[n, 0], scene.user_y[n, 0]) for n in range(self.people)]
        return (*zones, *("stadium",) * self.visitors)

    @cached_property
    def reports(self) -> tuple[Report, ...]:
        """In order of time."""
        scene, rng = self.scene, np.random.default_rng((self.seed, 2))
        found = []
        for n in range(len(scene.report_s)):
            x, y = float(scene.report_x[n]), float(scene.report_y[n])
            age = float(rng.exponential(90.0))
            kind = TYPES[scene.report_type[n]].replace("_", " ")
            found.append(Report(f"r{n}", float(scene.report_s[n]), kind, self.zone_of(x, y), *_degrees(x, y), age))
        return tuple(found)

    @cached_property
    def shelters(self) -> list[dict[str, object]]:
        """Every fourth is closed."""
        scene = self.scene
        found: list[dict[str, object]] = []
        for n in range(len(scene.shelter)):
            x, y = float(scene.shelter_x[n]), float(scene.shelter_y[n])
            name = f"{self.zone_of(x, y).capitalize()} {_SHELTERS[n % len(_SHELTERS)]}"
            if any(shelter["name"] == name for shelter in found):
                name += f" {n}"
            lat, lon = _degrees(x, y)
            found.append({"name": name, "is_open": n % 4 != 3, "lat": lat, "lon": lon})
        return found

    def walk(self, person: int, at: float) -> tuple[float, float]:
        """Where a person is, as latitude and longitude."""
        scene = self.scene
        x = float(np.interp(at, scene.times, scene.user_x[person]))
        return _degrees(x, float(np.interp(at, scene.times, scene.user_y[person])))

    def place(self, name: str, zone: str, at: float) -> tuple[float, float]:
        """Where a participant is, as latitude and longitude. zone: where its swarm is; visitors stay at the stadium."""
        number = int(re.sub(r"\D", "", name.rpartition("-")[2]) or 0)
        if name.startswith("person") and number < self.people:
            return self.walk(number, max(0.0, at))
        if name.startswith("sensor"):
            return self.position(zone)
        (x, y), angle = _SITES[ZONES.index(zone)], 2.4 * number + at / 10
        radius = 0.4 + 0.05 * (number % 10)
        return _degrees(x + radius * math.cos(angle), y + radius * math.sin(angle))

    def scenario(self, prefix: str = "swarm") -> Scenario:
        """Drones, a sensor for each zone, and people, as the ledger of the lab's scenarios knows them.

        prefix: of the drones' topics. `plain`: the same drones, for the placement that never changes.
        """
        people = [Participant(f"person{n}", f"people-{z}", f"alerts.{z}", (SubscribedSpan(f"alerts.{z}"),))
                  for n, z in enumerate(self.homes)]  # fmt: skip
        sensors = [Participant(f"sensor-{zone}", f"people-{zone}", f"alerts.{zone}", ()) for zone in ZONES]
        drones = [
            Participant(f"{prefix}{s}-drone{d}", f"swarm{s}", f"{prefix}.{s}", (SubscribedSpan(f"{prefix}.{s}"),), True)
            for s in range(self.swarms)
            for d in range(self.drones)
        ]
        nodes = {f"people-{zone}": ways(zone) for zone in ZONES}
        nodes |= {f"swarm{s}": ways(self.first_zone(s)) for s in range(self.swarms)}
        between = dict.fromkeys(itertools.combinations(ZONES, 2), BETWEEN_MS)
        between |= {(zone, CLOUD): CLOUD_MS for zone in ZONES}
        return Scenario(
            "city", (*ZONES, CLOUD), between, nodes, (*drones, *sensors, *people), (), BOUND_MS, DRONE_RATE, 64,
            self.seconds, self.seed,
        )  # fmt: skip

    def first_zone(self, swarm: int) -> str:
        """Where a swarm is when the story begins."""
        return str(np.random.default_rng((self.seed, swarm)).choice(ZONES))

    def topics(self) -> tuple[TopicSpec, ...]:
        """All durable. A swarm's topic and its twin begin at the same site, chosen by hash; the twin stays there."""
        found = []
        for swarm in range(self.swarms):
            site = consistent_hash(f"swarm.{swarm}", ZONES)
            found += [TopicSpec(f"swarm.{swarm}", (site,), (site, CLOUD), 1, BOUND_MS)]
            found += [TopicSpec(f"plain.{swarm}", (site,), (site, CLOUD), 1)]
        found += [TopicSpec(f"alerts.{zone}", (zone,), (zone, CLOUD), 1, ALERT_BOUND_MS) for zone in ZONES]
        return tuple(found)

    def configuration(self, address: Callable[[str], tuple[str, int]], *, cluster: bool) -> str:
        """`nearcast.toml`; the folders it names are relative to it."""
        sites = []
        for site in (*ZONES, CLOUD):
            kind: Literal["cloud", "edge"] = "cloud" if site == CLOUD else "edge"
            store = StoreSpec(Path("stores", site))
            sites.append(SiteSpec(site, kind, self.position(site), *address(site), store=store))
        return toml_text(
            processors=["nearcast.lab.demo.processors"],
            report_seconds=REPORT_SECONDS,
            site=sites,
            topic=self.topics(),
            auth=AuthSpec(Path("auth")),
            cluster=ClusterSpec("warehouse", analyse_every=0) if cluster else None,
        )


def ways(zone: str) -> dict[str, float]:
    """The delays between a client in a zone and each site."""
    others = dict.fromkeys(ZONES, ACCESS_MS + BETWEEN_MS)
    return others | {zone: ACCESS_MS, CLOUD: ACCESS_MS + CLOUD_MS}


def _degrees(x_km: float, y_km: float) -> tuple[float, float]:
    lat = _ORIGIN[0] + y_km / _KM_PER_DEGREE
    return round(lat, 6), round(_ORIGIN[1] + x_km / (_KM_PER_DEGREE * float(np.cos(np.radians(_ORIGIN[0])))), 6)
