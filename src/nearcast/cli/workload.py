"""`nearcast workload NAME`: make one of the papers' workloads, as tables, events and a picture."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from nearcast.cli.output import JsonOption, print_json
from nearcast.errors import InputError, NearcastError
from nearcast.lab.workloads import formats
from nearcast.lab.workloads.content import ContentParameters
from nearcast.lab.workloads.content import content as make_content
from nearcast.lab.workloads.default_workloads import DEFAULTS, TAXI_TRIPS, make_taxi
from nearcast.lab.workloads.emergency import emergency as make_emergency
from nearcast.lab.workloads.emergency_scene import EmergencyParameters, real_scene
from nearcast.lab.workloads.follow import FollowParameters, generate_follows
from nearcast.lab.workloads.follow import follow as make_follow
from nearcast.lab.workloads.game import GameParameters, generate_cities
from nearcast.lab.workloads.game import game as make_game
from nearcast.lab.workloads.schedule import KINDS
from nearcast.lab.workloads.taxi_job import TaxiParameters
from nearcast.lab.workloads.uav import UavParameters, generate_towers
from nearcast.lab.workloads.uav import uav as make_uav
from nearcast.lab.workloads.workload import Workload
from nearcast.lab.workloads.workload_plot import draw

__all__ = ["app"]

app = typer.Typer()

Out = Annotated[Path, typer.Option(help="The folder to write tables, events and workload.json to.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same workload.")]
Count = typer.Option(min=1)
Positive = typer.Option(min=1e-6)
NotNegative = typer.Option(min=0.0)
Duration = Annotated[float, typer.Option(min=1e-6, help="Length of the schedule of events.")]
RateScale = Annotated[float, typer.Option(min=1e-6, help="Events in the schedule per message the tables count with.")]


@app.command()
def follow(
    out: Out,
    graph: Annotated[
        Path | None, typer.Option(help="Edge list or KDD Cup 2012 user_sns; generated if not given.")
    ] = None,
    clients: Annotated[int, typer.Option(min=2, help="Clients of a generated graph.")] = 512,
    topics: Annotated[int, Count] = FollowParameters.topics,
    sites: Annotated[int, Count] = FollowParameters.sites,
    sigma_km: Annotated[float, typer.Option(min=0.0, help="Spread of a topic's clients.")] = FollowParameters.sigma_km,
    field_km: Annotated[float, Positive] = FollowParameters.field_km,
    storage: Annotated[int, typer.Option(min=0, help="A: spool messages a site holds.")] = FollowParameters.storage,
    compute: Annotated[int, typer.Option(min=0, help="B: publications a site processes.")] = FollowParameters.compute,
    period_s: Annotated[float, typer.Option(min=1e-6, help="A member publishes once.")] = FollowParameters.period_s,
    duration_s: Duration = FollowParameters.duration_s,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Topics from who follows whom, clients around them: tables for `nearcast plan homes`.

    Example: nearcast workload follow --out follow
    """
    p = FollowParameters(
        topics, sites, sigma_km, field_km, storage, compute, period_s=period_s, duration_s=duration_s, seed=seed
    )
    follows = generate_follows(clients, p) if graph is None else formats.read_follows(graph)
    _finish(make_follow(follows, p), out, as_json)


@app.command()
def taxi(
    out: Out,
    trips: Annotated[
        str | None, typer.Option(help="Trips in DEBS 2015 format: a file, a folder or a URL; generated if not given.")
    ] = None,
    generate: Annotated[int, typer.Option(min=1, help="Number of generated trips.")] = TAXI_TRIPS,
    window_s: Annotated[int, typer.Option(min=1, help="Load is summed up per window.")] = TaxiParameters.window_s,
    step_s: Annotated[int, typer.Option(min=1, help="Taxis are looked at this often.")] = TaxiParameters.step_s,
    sample_trips: Annotated[int, typer.Option(min=1, help="Trips in the schedule.")] = TaxiParameters.sample_trips,
    master: Annotated[str, typer.Option(help="Spark master.")] = TaxiParameters.master,
    memory: Annotated[str, typer.Option(help="Memory of a local Spark.")] = TaxiParameters.memory,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Taxi trips to regions, by a Spark job: tables for `nearcast plan colocation`.

    Example: nearcast workload taxi --out taxi
    """
    p = TaxiParameters(
        step_s=step_s, window_s=window_s, sample_trips=sample_trips, seed=seed, master=master, memory=memory
    )
    _refuse_file(out)
    _finish(make_taxi(trips, generate, out, p), out, as_json)


@app.command()
def uav(
    out: Out,
    towers: Annotated[Path | None, typer.Option(help="CSV with latitude, longitude; generated if not given.")] = None,
    zones: Annotated[int, Count] = UavParameters.zones,
    swarms: Annotated[int, Count] = UavParameters.swarms,
    drones: Annotated[int, typer.Option(min=2, help="Drones of a swarm, its leader included.")] = UavParameters.drones,
    speed_m_s: Annotated[float, NotNegative] = UavParameters.speed_m_s,
    rate: Annotated[float, typer.Option(min=1e-6, help="Messages a drone publishes per second.")] = UavParameters.rate,
    rate_scale: RateScale = UavParameters.rate_scale,
    duration_s: Duration = UavParameters.duration_s,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Swarms of drones over the zones of a city: tables for `nearcast plan partition`.

    Example: nearcast workload uav --out uav
    """
    p = UavParameters(zones, swarms, drones, speed_m_s, rate, rate_scale=rate_scale, duration_s=duration_s, seed=seed)
    known = generate_towers(300, seed) if towers is None else formats.read_towers(towers)
    _finish(make_uav(known, p), out, as_json)


@app.command()
def game(
    out: Out,
    servers: Annotated[Path | None, typer.Option(help="WonderProxy servers.csv; generated if not given.")] = None,
    pings: Annotated[Path | None, typer.Option(help="WonderProxy pings, needed with --servers.")] = None,
    country: Annotated[str | None, typer.Option(help="Only cities of this country.")] = None,
    cities: Annotated[int, Count] = GameParameters.cities,
    avatars: Annotated[int, Count] = GameParameters.avatars,
    groups: Annotated[int, Count] = GameParameters.groups,
    dwell: Annotated[
        Literal["uniform", "exponential"], typer.Option(help="How long an avatar stays in a group.")
    ] = GameParameters.dwell,
    rate: Annotated[float, typer.Option(min=1e-6, help="Actions of an avatar per second.")] = GameParameters.rate,
    rate_scale: RateScale = GameParameters.rate_scale,
    duration_s: Duration = GameParameters.duration_s,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Players in cities, groups that change: tables for `nearcast plan partition`.

    Example: nearcast workload game --out game
    """
    if (servers is None) != (pings is None):
        raise InputError("--servers and --pings belong together; give both or neither")
    p = GameParameters(
        cities, avatars, groups, dwell, rate=rate, rate_scale=rate_scale, duration_s=duration_s, seed=seed
    )
    known = generate_cities() if servers is None or pings is None else formats.read_cities(servers, pings, country)
    _finish(make_game(known, p), out, as_json)


@app.command()
def content(
    out: Out,
    nodes: Annotated[int, typer.Option(min=2)] = ContentParameters.nodes,
    topics: Annotated[int, Count] = ContentParameters.topics,
    popularity: Annotated[float, typer.Option(help="Zipf exponent s_p.")] = ContentParameters.popularity_exponent,
    locality: Annotated[float, typer.Option(help="Zipf exponent s_l.")] = ContentParameters.locality_exponent,
    graph: Annotated[Literal["tree", "general"], typer.Option()] = ContentParameters.graph,
    rate_scale: RateScale = ContentParameters.rate_scale,
    duration_s: Duration = ContentParameters.duration_s,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Requests for stored content on a network of sites: tables for `nearcast plan stores`.

    Example: nearcast workload content --out content
    """
    p = ContentParameters(
        nodes, topics, popularity, locality, graph=graph, rate_scale=rate_scale, duration_s=duration_s, seed=seed
    )
    _finish(make_content(p), out, as_json)


@app.command()
def emergency(
    out: Out,
    outages: Annotated[Path | None, typer.Option(help="Events to take reports from; generated if not given.")] = None,
    shelters: Annotated[Path | None, typer.Option(help="Events to take shelters from; generated if not given.")] = None,
    traces: Annotated[Path | None, typer.Option(help="Cab traces users move along; generated if not given.")] = None,
    users: Annotated[int, Count] = EmergencyParameters.users,
    sites: Annotated[int, typer.Option("--sites", "--brokers", min=1)] = EmergencyParameters.sites,
    reports: Annotated[int, Count] = EmergencyParameters.reports,
    login_s: Annotated[float, typer.Option(min=1e-6, help="Users log in this long.")] = EmergencyParameters.login_s,
    duration_s: Duration = EmergencyParameters.duration_s,
    seed: Seed = 1,
    as_json: JsonOption = False,
) -> None:
    """Reports, users on the move and seven channels: tables for `nearcast plan balance`.

    Example: nearcast workload emergency --out emergency
    """
    p = EmergencyParameters(users, sites, reports, login_s=login_s, duration_s=duration_s, seed=seed)
    scene = real_scene(
        p,
        None if outages is None else formats.read_incidents(outages),
        None if shelters is None else formats.read_incidents(shelters),
        None if traces is None else formats.read_cab_positions(traces),
    )
    _finish(make_emergency(scene, p), out, as_json)


@app.command()
def show(
    what: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A folder of a workload, or a workload's name.")],
    picture: Annotated[Path | None, typer.Option(help="The PNG; else next to the file, or NAME.png here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a workload is and draw it: positions, topics, rates over time.

    Example: nearcast workload show emergency
    """
    path = Path(what)
    if what in DEFAULTS and not path.exists():
        workload = DEFAULTS[what]()
        target = picture or Path(f"{what}.png")
    elif path.exists():
        folder = path if path.is_dir() else path.parent
        workload = Workload.load(folder)
        target = picture or folder / "workload.png"
    else:
        raise InputError(f"{what} is neither a folder of a workload nor a name; names: {', '.join(DEFAULTS)}")
    if target.suffix != ".png" or not target.parent.is_dir():
        raise InputError(f"{target} is no place for the picture; a .png in a folder that exists is needed")
    draw(workload, target)
    _print(workload, {"picture": str(target)}, as_json)


@app.command()
def play(
    folder: Annotated[Path, typer.Argument(help="A folder of a workload.")],
    broker: Annotated[list[str], typer.Option(help="URL of a site's broker; once for each site.")],
    speed: Annotated[
        float, typer.Option(min=1e-6, max=math.inf, help="Seconds of the schedule per second; inf: at once.")
    ] = 1.0,
    until_s: Annotated[float, typer.Option(min=0.0, max=math.inf, help="Play the events before this time.")] = math.inf,
    as_json: JsonOption = False,
) -> None:
    """Play a workload's events against running sites; exit code 1 when not exactly what it predicts arrives.

    Example: nearcast workload play emergency --broker nats://127.0.0.1:4222
    """
    from nearcast.lab.workloads.player import play as play_events

    schedule = Workload.load(folder).schedule.until(until_s)
    predicted = schedule.predicted()
    played = asyncio.run(play_events(schedule, broker, speed=speed))
    delivered = np.array([played.delivered.get(topic, 0) for topic in schedule.topics])
    wrong = np.flatnonzero(delivered != predicted.delivered)
    if as_json:
        print_json(
            {
                "published": sum(played.published.values()),
                "seconds": round(played.seconds, 3),
                "delivered": int(delivered.sum()),
                "predicted": int(predicted.delivered.sum()),
                "most_late_s": round(played.most_late_s, 3) if math.isfinite(speed) else None,
                "topics_that_differ": [schedule.topics[number] for number in wrong],
            }
        )
    else:
        print(f"published  {sum(played.published.values()):,} in {played.seconds:.1f} s")
        print(f"delivered  {delivered.sum():,} of {predicted.delivered.sum():,} predicted")
        if math.isfinite(speed):
            print(f"late       by {played.most_late_s:.2f} s at most")
    if len(wrong):
        topic, want = schedule.topics[wrong[0]], predicted.delivered[wrong[0]]
        raise NearcastError(f"{len(wrong)} topics differ, the first is {topic}: {delivered[wrong[0]]} for {want}")


def _finish(workload: Workload, out: Path, as_json: bool) -> None:
    _refuse_file(out)
    try:
        workload.save(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from None
    _print(workload, {"written": str(out)}, as_json)


def _refuse_file(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")


def _print(workload: Workload, where: dict[str, str], as_json: bool) -> None:
    """What a workload is. where: what was written, under its label."""
    schedule, predicted = workload.schedule, workload.schedule.predicted()
    events = {kind: n for k, kind in enumerate(KINDS) if (n := schedule.count(k))}
    rows = {name: len(next(iter(columns.values()))) for name, columns in workload.tables.items()}
    published, delivered = int(predicted.published.sum()), int(predicted.delivered.sum())
    if as_json:
        described = {"workload": workload.name, "about": workload.about, "skipped": workload.skipped, "events": events}
        counted = {"published": published, "delivered": delivered, "rows": rows, "plan": workload.plan}
        print_json(described | counted | where)
        return
    print(f"workload   {workload.name}")
    for name, value in workload.about.items():
        print(f"           {name} {value:,}" if isinstance(value, int) else f"           {name} {value}")
    for reason, count in workload.skipped.items():
        print(f"skipped    {count:,} {reason}")
    print(f"events     {', '.join(f'{n:,} {kind}' for kind, n in events.items())}")
    print(f"messages   {published:,} published, {delivered:,} delivered")
    for name, columns in workload.tables.items():
        print(f"table      {name}.csv, {rows[name]:,} rows: {', '.join(columns)}")
    print(f"plan       nearcast plan {workload.plan}")
    for label, file in where.items():
        print(f"{label:<10} {file}")
