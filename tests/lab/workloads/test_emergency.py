"""Emergencies: channels, sharing, users on the move, real and made-up scenes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.workloads.literal import check_prediction

from nearcast.errors import InputError
from nearcast.lab.workloads.emergency import CHANNELS, emergency
from nearcast.lab.workloads.emergency_scene import TYPES, EmergencyParameters, generate_scene, real_scene
from nearcast.lab.workloads.formats import Incidents, Positions

SMALL = EmergencyParameters(users=30, sites=3, reports=400, shelters=10, login_s=30, duration_s=300)


def test_there_are_eight_types_and_seven_channels_of_ten_twenty_and_thirty_seconds() -> None:
    assert len(set(TYPES)) == 8
    assert len({c.name for c in CHANNELS}) == 7
    assert {c.period_s for c in CHANNELS} == {10, 20, 30}
    assert {name for c in CHANNELS for name in c.parameters} == {"type", "area", "user"}


def test_the_papers_size_gives_about_its_subscriptions() -> None:
    p = EmergencyParameters()
    about = emergency(generate_scene(p), p).about
    # The paper: around 600 backend and 2,200 frontend subscriptions.
    assert about["backend_subscriptions"] == pytest.approx(600, rel=0.1)
    assert about["frontend_subscriptions"] == pytest.approx(2200, rel=0.1)


def test_the_schedule_is_playable_and_predicted() -> None:
    made = emergency(generate_scene(SMALL), SMALL)
    check_prediction(made.schedule)
    kinds = {e.kind for e in made.schedule}
    assert kinds == {"join", "move", "subscribe", "unsubscribe", "publish", "leave"}
    users = {e.client for e in made.schedule if e.kind == "leave"}
    assert users == {f"user{n}" for n in range(30)}


def test_everybody_logs_in_first_and_subscribes_next() -> None:
    for event in emergency(generate_scene(SMALL), SMALL).schedule:
        if event.client.startswith("user"):
            if event.kind == "join":
                assert 0 <= event.time_s <= SMALL.login_s
            if event.kind == "subscribe":
                assert SMALL.login_s <= event.time_s <= 2 * SMALL.login_s


def test_results_come_when_a_channel_runs_and_carry_what_matches() -> None:
    scene = generate_scene(SMALL)
    made = emergency(scene, SMALL)
    period = {c.name: c.period_s for c in CHANNELS}
    results = [e for e in made.schedule if e.kind == "publish" and e.topic.startswith("channel.")]
    for event in results:
        assert event.time_s % period[event.topic.split(".")[1]] == 0
    # A literal evaluation of one channel.
    kinds = {e.topic.split(".")[2] for e in results if e.topic.startswith("channel.reports_of_type.")}
    assert kinds
    for kind in kinds:
        mine = scene.report_type == TYPES.index(kind)
        for event in (e for e in results if e.topic == f"channel.reports_of_type.{kind}"):
            new = mine & (scene.report_s >= event.time_s - 10) & (scene.report_s < event.time_s)
            assert event.size == scene.report_size[new].sum() > 0


def test_rates_are_the_volume_of_results() -> None:
    made = emergency(generate_scene(SMALL), SMALL)
    volume = dict.fromkeys(made.tables["rates"]["subscription"], 0)
    for event in made.schedule:
        if event.kind == "publish" and event.topic.startswith("channel."):
            volume[event.topic.removeprefix("channel.")] += event.size
    rates = made.tables["rates"]["rate"]
    assert rates == pytest.approx(np.array(list(volume.values())) / SMALL.duration_s)
    subscriptions = made.tables["subscriptions"]["subscription"]
    assert set(subscriptions) == set(made.tables["rates"]["subscription"])


def test_users_are_at_their_nearest_site() -> None:
    made = emergency(generate_scene(SMALL), SMALL)
    sites = made.tables["sites"]
    for event in made.schedule:
        if event.kind in ("join", "move") and event.client.startswith("user"):
            distance = np.hypot(sites["x_km"] - event.x, sites["y_km"] - event.y)
            assert distance[sites["site"].index(event.site)] == pytest.approx(distance.min(), abs=1e-5)


def _happenings(texts: list[str], operations: list[str]) -> Incidents:
    n = len(texts)
    place = np.linspace(0, 1, n)
    return Incidents(
        np.arange(n) * 100.0,
        np.array(operations, dtype=object),
        np.array([f"h{i % 3}" for i in range(n)], dtype=object),
        38 + place,
        -122 - place,
        np.array(texts, dtype=object),
        {"no position": 4},
    )


def test_a_real_scene_takes_what_it_is_given() -> None:
    fire, crash = "cust=1|crew|Fire in the area.", "cust=1|crew|A vehicle has hit a power pole."
    events = _happenings([fire, crash, "gone", fire, crash], ["add", "update", "remove", "add", "add"])
    seconds = np.tile(np.arange(0.0, 600, 60), 30)
    cabs = np.repeat([f"cab{n}" for n in range(30)], 10).astype(object)
    rng = np.random.default_rng(1)
    traces = Positions(rng.uniform(37, 38, 300), rng.uniform(-122, -121, 300), cabs, seconds, {})
    scene = real_scene(SMALL, events, events, traces)
    assert [TYPES[t] for t in scene.report_type] == ["fire", "accident", "fire", "accident"]
    assert scene.report_s[0] == 0
    assert scene.report_s[-1] == pytest.approx(SMALL.duration_s)
    assert scene.report_s[-1] < SMALL.duration_s
    # h2 was removed last; h0 and h1 are open.
    assert scene.shelter == ("h0", "h1")
    assert scene.user_x.shape == (30, len(scene.times))
    for place in (scene.user_x, scene.user_y, scene.report_x, scene.shelter_x):
        assert place.min() >= 0
        assert place.max() <= SMALL.field_km
    assert scene.skipped == {"report: no position": 4, "shelter: no position": 4}
    check_prediction(emergency(scene, SMALL).schedule)


def test_too_few_traces_or_reports_are_refused() -> None:
    one = Positions(np.array([37.0]), np.array([-122.0]), np.array(["a"], dtype=object), np.array([1.0]), {})
    with pytest.raises(InputError, match="the traces have 1 movers; 30 users are wanted"):
        real_scene(SMALL, traces=one)
    with pytest.raises(InputError, match="fewer than two reports"):
        real_scene(SMALL, outages=_happenings(["a", "b"], ["remove", "add"]))


def test_a_day_too_short_to_log_in_is_refused() -> None:
    p = EmergencyParameters(duration_s=100)
    with pytest.raises(InputError, match="duration_s is 100; logging in and subscribing take 480"):
        emergency(generate_scene(p), p)
