"""Avatars in groups that change, played from several cities: *ePulsar*, Sections 5.1.2 and 5.8.2, Fig. 9."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.lab.scenarios.scenario import (
    CLOUD,
    FOREVER,
    Participant,
    Scenario,
    ScheduledChange,
    SubscribedSpan,
)
from nearcast.lab.workloads.game import GameParameters, GroupChange, group_changes, spread_out

if TYPE_CHECKING:
    from nearcast.lab.workloads.formats import Cities

__all__ = ["game"]

_RATE = 2.0  # messages/s of an avatar
_CLOUD_MS = 1.0  # from the first city, where the cloud is: the paper's coordinator is in New York


def game(known: Cities, p: GameParameters, origin: str) -> Scenario:
    """A node per city with its players. An avatar's topic has the others of its group as subscribers.

    origin: where the round trips are from, for the record. The cities are the widest apart, beginning with the first.
    """
    if not 2 <= p.cities <= len(known.names):
        raise InputError(f"cities is {p.cities}; 2 to {len(known.names)} are known")
    rng = np.random.default_rng(p.seed)
    picked = spread_out(known.rtt_ms, p.cities)
    cities = [re.sub(r"[^A-Za-z0-9]", "", known.names[c]) for c in picked]
    one_way = known.rtt_ms[np.ix_(picked, picked)] / 2
    between = {(a, b): float(one_way[i, j]) for i, a in enumerate(cities) for j, b in enumerate(cities) if i < j}
    between |= {(city, CLOUD): _CLOUD_MS + float(one_way[0, c]) for c, city in enumerate(cities)}
    nodes = {
        f"players-{city}": {other: p.access_ms + float(one_way[c, o]) for o, other in enumerate(cities)}
        | {CLOUD: p.access_ms + between[city, CLOUD]}
        for c, city in enumerate(cities)
    }
    city_of = rng.integers(p.cities, size=p.avatars)
    first, changes = group_changes(p, rng)
    spans, scheduled = _spans(first.tolist(), changes, p.groups)
    participants = tuple(
        Participant(f"player{a}", f"players-{cities[city_of[a]]}", _topic(a), tuple(spans[a])) for a in range(p.avatars)
    )
    note = f"{_RATE:g} messages/s and avatar instead of the paper's {p.rate:g}, for a machine with two cores; {origin}"
    return Scenario(
        "game", (*cities, CLOUD), between, nodes, participants, tuple(scheduled),
        p.bound_ms, _RATE, p.size, p.duration_s, p.seed, note, plotted=0,
    )  # fmt: skip


def _topic(avatar: int) -> str:
    return f"avatar.{avatar}"


def _spans(
    first: list[int], changes: list[GroupChange], groups: int
) -> tuple[dict[int, list[SubscribedSpan]], list[ScheduledChange]]:
    """Who subscribes to whose topic from when to when, and the changes; the newcomer's topic is the one judged."""
    together = [{avatar for avatar, group in enumerate(first) if group == g} for g in range(groups)]
    since = {(a, b): -FOREVER for members in together for a in members for b in members if a != b}
    spans: dict[int, list[SubscribedSpan]] = defaultdict(list)
    scheduled = []
    for change in changes:
        mover = change.avatar
        together[change.old].remove(mover)
        for other in sorted(together[change.old]):
            for a, b in ((mover, other), (other, mover)):
                spans[a].append(SubscribedSpan(_topic(b), since.pop((a, b)), change.time_s))
        for other in together[change.new]:
            since[mover, other] = since[other, mover] = change.time_s
        affected = tuple(_topic(avatar) for avatar in (mover, *sorted(together[change.new])))
        together[change.new].add(mover)
        names = f"group{change.old}", f"group{change.new}"
        scheduled.append(ScheduledChange(change.time_s, _topic(mover), (_topic(mover),), affected, *names))
    for (a, b), start in since.items():
        spans[a].append(SubscribedSpan(_topic(b), start))
    return spans, scheduled
