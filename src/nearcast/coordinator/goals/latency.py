"""Topic latency: a topic above its bound moves and its clients follow, or its clients get other homes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.goals.goal import ClientProposal, Draft, Goal, Proposal, TopicProposal
from nearcast.coordinator.model.problems import homes_problem, partitioning_problem
from nearcast.placement.partitioning import by_latencies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model

__all__ = ["TopicLatencyGoal", "is_worth_a_move", "why_left"]

_BLOCK = 8192
_LEAST_GAIN_MS = 5.0  # smaller differences are within what measurements differ
_PARTIAL_GAIN = 0.25  # of a move that does not keep the bound, while some clients may not have told that they moved
_SPARE = 0.1  # of the bound, which moves for other goals leave


def worth_a_move(
    model: Model, rows: NDArray[np.int64], expected_ms: NDArray[np.float64], settings: CoordinatorSettings
) -> NDArray[np.bool_]:
    """Whether topics' network ways get so much shorter that moves pay: compared is estimate with estimate, so that
    time spent in a worker does not move a topic to another site."""
    topics = model.topics
    estimate = topics.estimate[rows]
    partial = topics.just_late[rows] & (expected_ms > topics.bound[rows])
    share = np.where(partial, max(settings.gain, _PARTIAL_GAIN), settings.gain)
    with np.errstate(invalid="ignore"):  # where nothing is estimated yet, there is nothing to compare
        pays = expected_ms <= estimate - np.maximum(share * estimate, _LEAST_GAIN_MS)
    return np.asarray(pays | ~topics.managing[rows][:, model.sites.alive].any(axis=1))


def is_worth_a_move(model: Model, topic: int, expected_ms: float, settings: CoordinatorSettings) -> bool:
    """As `worth_a_move`, of one topic."""
    return bool(worth_a_move(model, np.array([topic]), np.array([expected_ms]), settings)[0])


def why_left(model: Model, topic: int, settings: CoordinatorSettings) -> str:
    """Why a late topic stays where it is, in words."""
    topics, names = model.topics, model.sites.names
    live = np.flatnonzero(model.sites.alive)
    if not topics.managing[topic].any():
        return "it has no processor that could run elsewhere"
    if topics.held[topic]:
        return "its last moves did not last; it moves again when it stays late"
    if not len(live):
        return "no site is up"
    best = int(live[topics.expected[topic, live].argmin()])
    there, estimate = topics.expected[topic, best], topics.estimate[topic]
    if topics.managing[topic].sum() > 1:
        return "it runs at several sites, and no other homes of its clients would shorten its ways"
    if best == topics.site[topic] and is_worth_a_move(model, topic, there, settings):
        home = f"with its clients at home at {names[best]} it would take {there:.0f} ms"
        return f"{home}; they moved just now, or are nearer to their other topics where they are"
    if best == topics.site[topic]:
        return f"no site is nearer: best is {names[best]} with {there:.0f} ms"
    if not is_worth_a_move(model, topic, there, settings):
        return f"{names[best]} would take {there:.0f} ms instead of {estimate:.0f} ms: too little for a move"
    return f"{names[best]} would take {there:.0f} ms, and has no room"


class TopicLatencyGoal(Goal):
    """Partitioning for topics of one site (ePulsar), homes for topics of many (RELOC, refined)."""

    name = "topic latency"

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Late topics, then clients of topics that move, then clients of late topics that several sites manage."""
        moved = self._late_topics(model, settings)
        site_of = model.topics.site.copy()
        for proposal in moved:
            site_of[proposal.topic] = proposal.sites[0]
        follow = self._followers(model, settings, site_of)
        return [*moved, *follow, *self._shared(model, settings)]

    def objection(self, draft: Draft, proposal: Proposal, settings: CoordinatorSettings) -> str:
        """A client's new home must not bring one of its topics above its bound."""
        model = draft.model
        if not isinstance(proposal, ClientProposal) or not model.clients.placed[proposal.client]:
            return ""
        topics = model.topics
        mine = model.clients.pair_topic[model.clients.pairs_of(proposal.client)]
        bounded = np.isfinite(topics.bound[mine])
        if not bounded.any():
            return ""
        mine, then = mine[bounded], draft.latency_with_client_at(proposal.client, proposal.home)[bounded]
        now, bound = draft.latency[mine], topics.bound[mine]
        over = (then > now) & (then > (1 - _SPARE) * bound)
        if over.any():
            worst = int(np.where(over, then - bound, -np.inf).argmax())
            name = topics.names[mine[worst]]
            return f"topic {name} would take up to {then[worst]:.0f} ms; its bound is {bound[worst]:.0f} ms"
        return ""

    def _late_topics(self, model: Model, settings: CoordinatorSettings) -> list[TopicProposal]:
        rows, live, topics, candidates, expected = partitioning_problem(model, settings)
        late = topics.latency > topics.bound
        if not late.any() or not len(live):
            return []
        placed, found = by_latencies(topics, candidates, expected), []
        moves = late & (placed.site != topics.site) & (placed.site >= 0) & ~model.topics.held[rows]
        moves &= worth_a_move(model, rows, placed.expected, settings)
        for n in np.flatnonzero(moves).tolist():
            row, target, there = int(rows[n]), int(live[placed.site[n]]), float(placed.expected[n])
            now = float(topics.latency[n])
            takes = f"its messages take up to {now:.0f} ms" if np.isfinite(now) else "it is at no live site"
            expects = f"run at {model.sites.names[target]} they are expected to take at most {there:.0f} ms"
            why = f"{takes} and should take {topics.bound[n]:.0f} ms; {expects}"
            found.append(TopicProposal(row, model.members_at(row, (target,)), (target,), there, why))
        return found

    def _followers(self, model: Model, settings: CoordinatorSettings, site_of: NDArray[np.int64]) -> list[Proposal]:
        """Clients of topics that move or are late, if another home is nearer to their topics.

        The best home has the smallest sum of distances, over the client's topics, from client to home to topic.
        """
        clients, sites, topics = model.clients, model.sites, model.topics
        wanted = (topics.latency > topics.bound) | (site_of != topics.site)
        live = np.flatnonzero(sites.alive)
        rows = np.unique(clients.pair_client[wanted[clients.pair_topic]])
        rows = rows[clients.placed[rows] & (clients.home[rows] >= 0) & ~clients.held[rows]]
        if not len(rows) or not len(live):
            return []
        best, now, then = self._best_homes(model, rows, live, site_of)
        found: list[Proposal] = []
        worth = then < now - np.maximum(settings.gain * now, _LEAST_GAIN_MS)
        for n in np.flatnonzero((best != clients.home[rows]) & worth).tolist():
            here, there = sites.names[clients.home[rows[n]]], sites.names[best[n]]
            why = f"its topics are {then[n]:.0f} ms away when it is at {there}, {now[n]:.0f} ms when it is at {here}"
            found.append(ClientProposal(int(rows[n]), int(best[n]), why, hard=True))
        return found[: settings.client_moves]

    def _best_homes(
        self, model: Model, rows: NDArray[np.int64], live: NDArray[np.int64], site_of: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Each client's best home, and the sums of distances by its present and by its best home."""
        clients, width = model.clients, len(model.sites.names)
        number = np.full(len(clients.names), -1)
        number[rows] = np.arange(len(rows))
        mine = (number[clients.pair_client] >= 0) & (site_of[clients.pair_topic] >= 0)
        owner, target = number[clients.pair_client[mine]], site_of[clients.pair_topic[mine]]
        order = np.argsort(owner, kind="stable")
        owner, target = owner[order], target[order]
        between = model.sites.round_trip
        best, now, then = np.empty(len(rows), np.int64), np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), _BLOCK):  # in blocks: clients × sites may not fit into memory
            block = rows[start : start + _BLOCK]
            first, last = np.searchsorted(owner, (start, start + len(block)))
            cell = (owner[first:last] - start) * width + target[first:last]
            topics_at = np.bincount(cell, minlength=len(block) * width).reshape(len(block), width).astype(float)
            ways = model.client_distances(block) / 2 * np.maximum(topics_at.sum(axis=1, keepdims=True), 1)
            ways += topics_at @ between / 2
            chosen, own = live[ways[:, live].argmin(axis=1)], np.arange(len(block))
            span = slice(start, start + len(block))
            best[span], now[span], then[span] = chosen, ways[own, clients.home[block]], ways[own, chosen]
        return best, now, then

    def _shared(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Homes for clients of late topics that several sites manage: RELOC's delay model and a local search."""
        topics, clients, sites = model.topics, model.clients, model.sites
        many = topics.managing.sum(axis=1) > 1
        late = np.flatnonzero(many & (topics.latency > topics.bound))
        live = np.flatnonzero(sites.alive)
        if not len(late) or len(live) < 2:
            return []
        rows, instance = homes_problem(model, live, late)
        if not len(rows):
            return []
        from nearcast.placement.homes import refine

        position = np.full(len(sites.names), 0)
        position[live] = np.arange(len(live))
        start = position[clients.home[rows]]
        plan = refine(instance, start)
        found: list[Proposal] = []
        for n in np.flatnonzero(plan.home != start).tolist():
            there = sites.names[live[plan.home[n]]]
            why = f"its topics run at several sites, and with it at {there} their messages take less time on the whole"
            found.append(ClientProposal(int(rows[n]), int(live[plan.home[n]]), why, hard=True))
        return found[: settings.client_moves]
