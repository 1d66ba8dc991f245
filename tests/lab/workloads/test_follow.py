"""The follow-graph workload holds what the paper says about its instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.workloads.literal import check_prediction

from nearcast.errors import InputError
from nearcast.lab.workloads.follow import FollowParameters, follow, generate_follows, site_grid
from nearcast.lab.workloads.formats import Follows


@given(topics=st.integers(2, 20), per_topic=st.floats(2, 21), seed=st.integers(0, 99))
def test_limits_of_the_paper_hold_for_any_made_up_graph(topics: int, per_topic: float, seed: int) -> None:
    p = FollowParameters(topics=topics, duration_s=10, seed=seed)
    clients = int(topics * per_topic)
    made = follow(generate_follows(clients, p), p)
    members = made.tables["members"]
    names, size = np.unique(members["topic"].astype(str), return_counts=True)
    assert len(names) == topics
    assert size.min() >= 2
    assert size.max() <= p.clients_per_topic
    in_topics = np.unique(members["client"].astype(str), return_counts=True)[1]
    assert len(in_topics) == clients == len(made.tables["clients"]["client"])
    assert in_topics.max() <= p.topics_per_client
    for axis in ("x_km", "y_km"):
        assert made.tables["clients"][axis].min() >= 0
        assert made.tables["clients"][axis].max() <= p.field_km


def test_spool_is_p_messages_per_client() -> None:
    p = FollowParameters(topics=8, spool_per_client=3)
    made = follow(generate_follows(60, p), p)
    topic, size = np.unique(made.tables["members"]["topic"].astype(str), return_counts=True)
    spool = dict(zip(made.tables["topics"]["topic"], made.tables["topics"]["spool_size"], strict=True))
    assert {t: spool[t] for t in topic} == {t: 3 * n for t, n in zip(topic, size, strict=True)}


def test_members_of_a_topic_lie_within_sigma_of_a_centre() -> None:
    # One topic per client and a narrow Gaussian: the spread around each topic's mean is sigma.
    lines = np.repeat(np.arange(0, 400, 20), 19)
    others = np.concatenate([np.arange(n + 1, n + 20) for n in range(0, 400, 20)])
    follows = Follows([str(n) for n in range(400)], lines, others, {})
    p = FollowParameters(topics=20, sigma_km=0.5, field_km=1000.0)
    made = follow(follows, p)
    x, topic = made.tables["clients"]["x_km"], made.tables["members"]["topic"].astype(str)
    assert len(x) == len(topic) == 400
    position = dict(zip(made.tables["clients"]["client"], x, strict=True))
    member_x = np.array([position[c] for c in made.tables["members"]["client"]])
    spread = [member_x[topic == t].std(ddof=1) for t in np.unique(topic)]
    assert np.mean(spread) == pytest.approx(0.5, rel=0.1)


def test_a_wider_sigma_spreads_the_clients_of_a_topic() -> None:
    def spread(sigma: float) -> float:
        p = FollowParameters(sigma_km=sigma)
        made = follow(generate_follows(512, p), p)
        where = dict(zip(made.tables["clients"]["client"], made.tables["clients"]["x_km"], strict=True))
        topic = made.tables["members"]["topic"].astype(str)
        x = np.array([where[c] for c in made.tables["members"]["client"]])
        return float(np.mean([x[topic == t].std() for t in np.unique(topic)]))

    assert spread(1) < spread(5) < spread(20)


def test_clients_start_at_their_nearest_site() -> None:
    p = FollowParameters(topics=8, sites=7)
    made = follow(generate_follows(60, p), p)
    sites = made.tables["sites"]
    for event in made.schedule:
        if event.kind == "join":
            distance = np.hypot(sites["x_km"] - event.x, sites["y_km"] - event.y)
            assert distance[sites["site"].index(event.site)] == pytest.approx(distance.min(), abs=1e-5)


def test_same_seed_same_workload_and_another_seed_another() -> None:
    def made(seed: int) -> list[float]:
        p = FollowParameters(topics=8, seed=seed)
        return follow(generate_follows(60, p), p).schedule.time_s.tolist()

    assert made(3) == made(3)
    assert made(3) != made(4)


def test_lines_too_long_and_users_too_busy_are_counted() -> None:
    # User 0 is followed by everybody; line 100 has 30 followees.
    follower = np.concatenate((np.repeat(np.arange(1, 7), 2), np.full(30, 100)))
    followee = np.concatenate((np.stack((np.zeros(6), np.arange(11, 17)), 1).ravel(), np.arange(20, 50)))
    follows = Follows([str(n) for n in range(101)], follower, followee.astype(int), {"follows itself": 2})
    made = follow(follows, FollowParameters(topics=6))
    assert made.skipped == {
        "follows itself": 2,
        "line with more than 21 clients": 1,
        "membership beyond 4 topics of a client": 2,
    }


def test_the_prediction_holds() -> None:
    p = FollowParameters(topics=8)
    check_prediction(follow(generate_follows(60, p), p).schedule)


@pytest.mark.parametrize("sites", [1, 2, 3, 5, 16, 23])
def test_sites_are_all_on_the_field_and_apart(sites: int) -> None:
    x, y = site_grid(sites, 25.0)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == sites
    assert ((x > 0) & (x < 25) & (y > 0) & (y < 25)).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="10 clients do not fit 8 topics; 16 to 168 do"):
        generate_follows(10, FollowParameters(topics=8))
    with pytest.raises(InputError, match="gives 1 topics"):
        follow(Follows(["a", "b"], np.array([0]), np.array([1]), {}), FollowParameters(topics=2))
