"""Follow graph: the workload of *Topic Allocation Method on Edge Servers* (RELOC), Section 7.

A line of the follow graph, a follower and the users it follows, is a topic; all publish and subscribe.
Clients of a topic lie around a random centre (Gaussian, sigma km) on a square field with L sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from nearcast.errors import InputError
from nearcast.lab.workloads.formats import Follows
from nearcast.lab.workloads.schedule import JOIN, PUBLISH, SUBSCRIBE, ScheduleBuilder, ticks
from nearcast.lab.workloads.workload import Columns, SiteMap, Workload

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["FollowParameters", "follow", "generate_follows", "memberships"]


@dataclass(frozen=True)
class FollowParameters:
    """Defaults are the paper's (Table 2); `period_s` is how often each member publishes to each topic."""

    topics: int = 64
    sites: int = 16
    sigma_km: float = 5.0
    field_km: float = 25.0
    storage: int = 640
    compute: int = 3200
    spool_per_client: int = 2
    topics_per_client: int = 4
    clients_per_topic: int = 21
    period_s: float = 10.0
    duration_s: float = 60.0
    size: int = 256
    seed: int = 1


def generate_follows(clients: int, p: FollowParameters) -> Follows:
    """A generated follow graph of p.topics lines: every client is in a line, popular ones are in several."""
    topics, largest = p.topics, p.clients_per_topic
    if not 2 * topics <= clients <= topics * largest:
        raise InputError(
            f"{clients} clients do not fit {topics} topics; "
            f"{2 * topics} to {topics * largest} do (2 to {largest} a topic)"
        )
    rng = np.random.default_rng(p.seed)
    # Sizes vary as in Fig. 13, with 1.25 memberships per client where the largest size allows it.
    mean = min(1.25 * clients / topics, largest)
    spread = min(mean - 2, largest - mean)
    size = np.rint(rng.uniform(mean - spread, mean + spread, topics)).astype(np.int64)
    while (short := clients - int(size.sum())) > 0:
        size[rng.permutation(np.flatnonzero(size < largest))[:short]] += 1

    popularity = 1 / (1 + rng.permutation(clients)) ** 0.8
    extra = np.sort(rng.choice(clients, int(size.sum()) - clients, p=popularity / popularity.sum()))
    again = np.arange(len(extra)) - np.searchsorted(extra, extra)
    extra = np.where(again < p.topics_per_client - 1, extra, -1)
    # Two clients of its own in every line, so that each line is a topic whatever the others are.
    everyone = rng.permutation(clients)
    line = np.repeat(np.arange(topics), size - 2)
    members = np.concatenate((everyone[topics : 2 * topics], rng.permutation(np.append(everyone[2 * topics :], extra))))
    follower = everyone[np.concatenate((np.arange(topics), line))]
    real = (members >= 0) & (members != follower)
    pairs = np.unique(np.stack((follower, members))[:, real], axis=1)
    return Follows([f"u{n}" for n in range(clients)], pairs[0], pairs[1], {})


def follow(follows: Follows, p: FollowParameters) -> Workload:
    """Topics, members and positions from a follow graph."""
    rng = np.random.default_rng(p.seed)
    topic, user, skipped = _memberships_and_skipped(follows, p, rng)
    users, client = np.unique(user, return_inverse=True)
    names = [f"c{follows.users[u]}" for u in users]
    topics = [f"t{n}" for n in range(int(topic[-1]) + 1)]
    sites = [f"s{n}" for n in range(p.sites)]
    x, y = _positions(topic, client, len(topics), p, rng)
    site_x, site_y = site_grid(p.sites, p.field_km)
    home = cKDTree(np.stack((site_x, site_y), 1)).query(np.stack((x, y), 1))[1]

    events = ScheduleBuilder(names, topics, sites)
    everyone = np.arange(len(names))
    events.add(JOIN, 0.0, everyone, site=home, x=x, y=y)
    events.add(SUBSCRIBE, 0.0, client, topic)
    times, member = ticks(rng, len(client), p.period_s, 0.0, p.duration_s)
    events.add(PUBLISH, times, client[member], topic[member], x=x[client[member]], y=y[client[member]], size=p.size)

    size = np.bincount(topic)
    name = np.array(names, dtype=object)
    tables: dict[str, Columns] = {
        "sites": {
            "site": sites, "x_km": site_x, "y_km": site_y,
            "storage": np.full(p.sites, p.storage), "compute": np.full(p.sites, p.compute),
        },
        "clients": {"client": names, "x_km": x, "y_km": y},
        "topics": {"topic": topics, "spool_size": p.spool_per_client * size},
        "members": {
            "topic": np.array(topics, dtype=object)[topic], "client": name[client],
            "role": np.full(len(client), "both", dtype=object),
        },
    }  # fmt: skip
    about = {
        "clients": len(names), "topics": len(topics), "memberships": len(client), "sites": p.sites,
        "sigma_km": p.sigma_km, "field_km": p.field_km, "clients_per_topic_max": int(size.max()),
        "topics_per_client_max": int(np.bincount(client).max()), "seed": p.seed,
    }  # fmt: skip
    plan = "homes --sites sites.csv --clients clients.csv --topics topics.csv --members members.csv"
    load = np.bincount(home, minlength=p.sites).astype(np.float64)
    return Workload("follow", about, plan, tables, SiteMap(sites, site_x, site_y, load), events.build(), skipped)


def memberships(follows: Follows, p: FollowParameters) -> tuple[Ints, Ints]:
    """Topic and user of every membership: random lines of the follow graph."""
    topic, user, _ = _memberships_and_skipped(follows, p, np.random.default_rng(p.seed))
    return topic, user


def site_grid(sites: int, field_km: float) -> tuple[Floats, Floats]:
    """Sites in rows on a square field, each row filled evenly; a perfect grid when the number is a square."""
    rows = int(np.sqrt(sites))
    per_row = np.diff(np.linspace(0, sites, rows + 1).astype(int))
    x = np.concatenate([(np.arange(n) + 0.5) * field_km / n for n in per_row])
    y = np.repeat((np.arange(rows) + 0.5) * field_km / rows, per_row)
    return x, y


def _memberships_and_skipped(
    follows: Follows, p: FollowParameters, rng: np.random.Generator
) -> tuple[Ints, Ints, dict[str, int]]:
    """Topic and user of every membership: random lines, as long as a user has room for another topic."""
    order = np.argsort(follows.follower, kind="stable")
    follower, followee = follows.follower[order], follows.followee[order]
    starts = np.flatnonzero(np.diff(follower, prepend=-1))
    ends = np.append(starts[1:], len(follower))
    fits = ends - starts < p.clients_per_topic
    skipped = dict(follows.skipped)
    if (~fits).any():
        skipped[f"line with more than {p.clients_per_topic} clients"] = int((~fits).sum())
    room = np.full(len(follows.users), p.topics_per_client).tolist()
    topic: list[int] = []
    user: list[int] = []
    made = full = 0
    for line in rng.permutation(np.flatnonzero(fits)).tolist():
        if made == p.topics:
            break
        start, end = int(starts[line]), int(ends[line])
        line_users = [int(follower[start]), *followee[start:end].tolist()]
        members = [u for u in line_users if room[u]]
        full += len(line_users) - len(members)
        if len(members) < 2:
            continue
        for u in members:
            room[u] -= 1
        topic.extend([made] * len(members))
        user.extend(members)
        made += 1
    if made < p.topics:
        raise InputError(f"the follow graph gives {made} topics of 2 to {p.clients_per_topic} clients, not {p.topics}")
    if full:
        skipped[f"membership beyond {p.topics_per_client} topics of a client"] = full
    return np.array(topic), np.array(user), skipped


def _positions(
    topic: Ints, client: Ints, topics: int, p: FollowParameters, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Each client around the centre of its first topic; the Gaussian is cut at the edges of the field."""
    first = np.zeros(int(client.max()) + 1, dtype=np.int64)
    first[client[::-1]] = topic[::-1]
    place = []
    for centre in rng.uniform(0, p.field_km, (2, topics)):
        middle = centre[first]
        if p.sigma_km == 0:
            place.append(middle)
            continue
        low, high = ndtr((0 - middle) / p.sigma_km), ndtr((p.field_km - middle) / p.sigma_km)
        within = middle + p.sigma_km * ndtri(rng.uniform(low, high))
        place.append(np.clip(within, 0, p.field_km))
    return place[0], place[1]
