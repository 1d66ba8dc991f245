"""Latency of topics from measured ways: where they run, and at every other site. All figures are one way, in ms.

    way(c, s)      from a client to a site, or back: half of a measured round trip
    E(t)           where the topic runs: way in + time in the worker + way out, of the worst clients of each role
    W(t, b)        the same if it ran at site b and its clients were at home there

A message goes from its publisher to the publisher's home, to the topic's site, to the subscriber's home, to the
subscriber. A site that nobody measured is reached through one that was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nearcast.coordinator.model.model import Flags, Floats, Ints
    from nearcast.coordinator.monitor import ReportColumns

__all__ = ["site_round_trips", "topic_ways"]

_BLOCK = 4096


def topic_ways(
    columns: Mapping[str, ReportColumns],
    role: int,
    number: Mapping[str, int],
    row_of: Mapping[str, int],
    managing: Flags,
    between: Floats,
) -> tuple[Floats, Floats]:
    """The worst measured ways of a role's clients (0: producers, 1: consumers), put together from the homes' reports:
    the legs to the managing site through the homes, and the ways to every site; NaN where unmeasured.

    number: rows of topics. between: round trips between sites.
    """
    legs, ways = np.full(len(managing), np.nan), np.full((len(managing), len(row_of)), np.nan)
    half = between / 2
    for home, report in columns.items():
        if home not in row_of or not len(report.way_topic[role]):
            continue
        sites = np.array([row_of.get(site, -1) for site in report.way_sites])
        known = np.array([number.get(name, -1) for name in report.names])
        topic, site = known[report.way_topic[role]], sites[report.way_site[role]]
        keep = (topic >= 0) & (site >= 0)
        for block, found in _home_ways(topic[keep], site[keep], report.way_worst[role][keep], half):
            to_site = np.where(managing[block], half[row_of[home]], np.inf).min(axis=1, initial=np.inf)
            legs[block] = np.fmax(legs[block], found[:, row_of[home]] + to_site)
            ways[block] = np.fmax(ways[block], found)
    return legs, ways


def _home_ways(topic: Ints, site: Ints, way: Floats, half: Floats) -> Iterator[tuple[Ints, Floats]]:
    """Blocks of topics, and their ways to every site as the clients of one home measured them."""
    rows, position = np.unique(topic, return_inverse=True)
    for start in range(0, len(rows), _BLOCK):
        inside = (position >= start) & (position < start + _BLOCK)
        block, row, at, ms = rows[start : start + _BLOCK], position[inside] - start, site[inside], way[inside]
        ways = np.full((len(block), half.shape[0]), np.inf)
        order = np.argsort(row, kind="stable")
        row, at, ms = row[order], at[order], ms[order]
        rank = np.arange(len(row)) - np.searchsorted(row, row)
        for n in range(int(rank.max(initial=-1)) + 1):  # through each of the few measured sites
            mine = rank == n
            ways[row[mine]] = np.minimum(ways[row[mine]], ms[mine, None] + half[at[mine]])
        ways[row, at] = ms  # what was measured counts as it is, even if a detour seems shorter
        yield block, ways


def site_round_trips(
    names: Sequence[str], measured: Mapping[str, Mapping[str, float]], estimated: Floats | None
) -> Floats:
    """Round trips between sites: measured, else estimated by coordinates, else through a third site; inf if unknown."""
    row_of = {name: row for row, name in enumerate(names)}
    found = np.full((len(names), len(names)), np.inf)
    for site, round_trips in measured.items():
        for other, ms in round_trips.items():
            if site in row_of and other in row_of:
                a, b = row_of[site], row_of[other]
                found[a, b] = found[b, a] = min(found[a, b], ms)
    if estimated is not None:
        found = np.where(np.isfinite(found), found, estimated)
    np.fill_diagonal(found, 0.0)
    if not np.isfinite(found).all():
        from scipy.sparse.csgraph import shortest_path

        direct = np.where(np.isfinite(found), np.maximum(found, 1e-6), 0.0)
        found = np.where(np.isfinite(found), found, shortest_path(direct, directed=False))
    return np.asarray(found)
