"""Schedules: order, prediction against the literal oracle, and the way through a folder."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.workloads.literal import play_literally

from nearcast.errors import InputError
from nearcast.lab.workloads import ScheduleBuilder, Workload
from nearcast.lab.workloads.content import ContentParameters, content
from nearcast.lab.workloads.schedule import JOIN, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, ticks

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=40))
def test_the_prediction_equals_the_literal_play(steps: list[tuple[int, int, bool]]) -> None:
    builder = ScheduleBuilder("abcd", "tuv", "s")
    builder.add(JOIN, 0.0, range(4), site=0)
    subscribed: set[tuple[int, int]] = set()
    for time, (client, topic, publish) in enumerate(steps):
        pair = (client, topic)
        kind = PUBLISH if publish else UNSUBSCRIBE if pair in subscribed else SUBSCRIBE
        if not publish:
            subscribed ^= {pair}
        builder.add(kind, float(time), client, topic)
    schedule = builder.build()
    published, delivered = play_literally(schedule)
    predicted = schedule.predicted()
    assert predicted.published.tolist() == [published[t] for t in "tuv"]
    assert predicted.delivered.tolist() == [delivered[t] for t in "tuv"]


def test_events_of_one_instant_happen_in_the_order_of_their_kinds() -> None:
    builder = ScheduleBuilder(["a"], ["t", "u"], ["s"])
    builder.add(PUBLISH, 1.0, 0, 0)
    builder.add(SUBSCRIBE, 1.0, 0, 0)
    builder.add(UNSUBSCRIBE, 1.0, 0, 1)
    builder.add(JOIN, 0.0, 0, site=0)
    assert [e.kind for e in builder.build()] == ["join", "unsubscribe", "subscribe", "publish"]


def test_until_keeps_the_events_before_a_time() -> None:
    schedule = content(ContentParameters(nodes=5, topics=2)).schedule
    early = schedule.until(10.0)
    assert 0 < len(early) < len(schedule)
    assert early.time_s.max() < 10.0


def test_ticks_give_every_actor_one_turn_a_period() -> None:
    times, who = ticks(np.random.default_rng(1), 3, 2.0, 0.0, 10.0)
    assert np.bincount(who).tolist() == [5, 5, 5]
    assert times.min() >= 0
    assert times.max() < 10
    for played in range(3):
        assert np.diff(np.sort(times[who == played])) == pytest.approx(2.0)


def test_a_payload_has_the_size_of_its_event() -> None:
    event = next(e for e in content(ContentParameters(nodes=5, topics=2)).schedule if e.kind == "publish")
    assert abs(len(str(event.payload())) - event.size) < 8
    assert event.payload()["client"] == event.client


def test_a_workload_survives_its_folder(tmp_path: Path) -> None:
    made = content(ContentParameters(nodes=6, topics=2))
    made.save(tmp_path / "w")
    read = Workload.load(tmp_path / "w")
    # Not compared: x and y, which are not a number where an event has no position.
    told = [[dataclasses.astuple(e)[:5] for e in w.schedule] for w in (made, read)]
    assert told[0] == told[1]
    np.testing.assert_array_equal(made.schedule.x, read.schedule.x)
    np.testing.assert_array_equal(made.schedule.size, read.schedule.size)
    assert (read.name, read.plan, dict(read.about)) == (made.name, made.plan, dict(made.about))
    assert {n: list(c) for n, c in read.tables.items()} == {n: list(c) for n, c in made.tables.items()}
    assert read.tables["demand"]["rate"] == pytest.approx(made.tables["demand"]["rate"])


def test_a_folder_without_a_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload\.json is missing"):
        Workload.load(tmp_path)
    (tmp_path / "workload.json").write_text("{}")
    with pytest.raises(InputError, match="does not hold a workload"):
        Workload.load(tmp_path)
