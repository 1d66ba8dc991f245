"""What a move would change, without computing the whole delay again. Exact, and for many clients at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.homes.delay import local_share
from nearcast.placement.homes.problem import entries_at, pattern

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.homes.problem import HomesProblem

__all__ = ["IncrementalDelay"]


class IncrementalDelay:
    """Homes that can change, with the sums of the total delay (see `DelayWeights`) kept up to date.

    Per topic and site it holds how many publish (|C^P|), the weight sent from there and the weight received
    there; per site storage, compute, P_l and X_l. Memory: three arrays of topics × sites.
    """

    def __init__(self, problem: HomesProblem, home: Ints) -> None:
        self.problem = problem
        self.home = np.array(home, dtype=np.int64)
        weights = problem.delay_weights
        self._distance_weight = weights.distance
        self._published_by = np.asarray(weights.publishing.sum(axis=0)).ravel()
        # Per membership, grouped by client: topic, spool size if it publishes there, weights sent, received.
        members = problem.members.T.tocsr()
        self._start, self._topic = members.indptr.astype(np.int64), members.indices.astype(np.int64)
        member = np.repeat(np.arange(problem.clients), np.diff(self._start))
        publishes = pattern(problem.publications)
        self._publishes, self._sent, self._received = (
            entries_at(matrix, self._topic, member) for matrix in (publishes, weights.sending, weights.receiving)
        )
        self._spool = self._publishes * problem.spool_size[self._topic]
        self._load = np.bincount(member, self._spool, minlength=problem.clients).astype(float)
        self.recompute()

    def recompute(self) -> None:
        """Recompute all sums from the homes: removes the rounding errors that many moves have accumulated."""
        problem, shape = self.problem, (self.problem.topics, self.problem.sites)
        to_home = problem.client_site_ms[np.arange(problem.clients), self.home]
        self._distance = float(self._distance_weight @ to_home)
        site = np.repeat(self.home, np.diff(self._start))
        place = self._topic * problem.sites + site
        self._publishers, self._sent_from, self._received_at = (
            np.bincount(place, values, minlength=shape[0] * shape[1]).reshape(shape).astype(float)
            for values in (self._publishes, self._sent, self._received)
        )
        self._storage = problem.spool_size @ (self._publishers > 0)
        self._compute = problem.spool_size @ self._publishers
        self._published = np.bincount(self.home, self._published_by, minlength=problem.sites).astype(float)
        self._between = ((self._sent_from.T @ self._received_at) * problem.site_site_ms).sum(axis=1)
        self._theta = local_share(problem, self._storage, self._compute)

    def total_ms(self) -> float:
        """The sum of Eq. 3: the mean delay times the weight of all publications."""
        at_sites = self._site_cost(self._theta, self._published, self._between)
        return self._distance + float(at_sites.sum())

    def move_changes(self, clients: Ints) -> tuple[Floats, Floats]:
        """How the total changes when a client alone moves: clients × sites, and 0 where it already is.

        The second array is the change if the site it comes to had room for it, whatever it holds.
        """
        problem, site_ms, theta = self.problem, self.problem.site_site_ms, self._theta
        rows, old = np.arange(len(clients)), self.home[clients]
        entries, first, busy = self._entries(clients)
        topic, own = self._topic[entries], np.repeat(old[busy], np.diff(first, append=len(entries)))
        at = np.arange(len(entries))

        def summed(values: Floats) -> Floats:
            out = np.zeros((len(clients), *values.shape[1:]))
            if len(entries):
                out[busy] = np.add.reduceat(values, first, axis=0)
            return out

        # What the others of its topics send from and receive at each site, as this client weighs it.
        others_send = self._sent_from[topic]
        others_send[at, own] -= self._sent[entries]
        hears = summed(others_send * self._received[entries, None])
        others_receive = self._received_at[topic]
        others_receive[at, own] -= self._received[entries]
        sends = summed(others_receive * self._sent[entries, None]) @ site_ms.T  # X it makes, at each site
        heard = (theta * hears) @ site_ms  # what it hears, if it were at each site, with today's θ

        # Resources without it at the old site and with it at each other one.
        alone = self._publishers[topic, own] == 1
        freed = summed(self._spool[entries] * alone)
        new_spools = summed(self._spool[entries, None] * (self._publishers[topic] == 0))
        load = self._load[clients]
        theta_left = local_share(problem, self._storage[old] - freed, self._compute[old] - load, old)
        theta_joined = local_share(problem, self._storage + new_spools, self._compute + load[:, None])

        published = self._published_by[clients]
        left_published, left_between = self._published[old] - published, self._between[old] - sends[rows, old]
        hears_old = hears[rows, old]
        from_old = site_ms[old]  # d^S[old, ·]
        to_old = site_ms[:, old].T  # d^S[·, old]
        cost = self._site_cost(theta, self._published, self._between)
        joined_between = self._between - hears * to_old + sends
        joined_published = self._published + published[:, None]
        to_home = problem.client_site_ms[clients]
        change = self._distance_weight[clients, None] * (to_home - to_home[rows, old][:, None])
        change += (
            2 * problem.cloud_ms * ((1 - theta_left) * left_published)[:, None]
            + theta_left[:, None] * (left_between[:, None] + hears_old[:, None] * from_old)
            - cost[old][:, None]
        )
        # Sites other than the two: only the subscriber's place changes for them.
        change += heard - (theta[old] * hears_old)[:, None] * from_old
        change -= heard[rows, old][:, None] - theta * hears * to_old
        relaxed = change + self._site_cost(theta, joined_published, joined_between) - cost
        change += self._site_cost(theta_joined, joined_published, joined_between) - cost
        change[rows, old] = relaxed[rows, old] = 0.0
        return change, relaxed

    def move(self, client: int, site: int) -> None:
        """Make the move."""
        old = int(self.home[client])
        if old == site:
            return
        site_ms, to_home = self.problem.site_site_ms, self.problem.client_site_ms[client]
        entries = slice(self._start[client], self._start[client + 1])
        topic, sent, received = self._topic[entries], self._sent[entries], self._received[entries]
        publishes, spool = self._publishes[entries], self._spool[entries]
        self._publishers[topic, old] -= publishes
        self._sent_from[topic, old] -= sent
        self._received_at[topic, old] -= received
        self._storage[old] -= spool @ (self._publishers[topic, old] == 0)
        self._storage[site] += spool @ (self._publishers[topic, site] == 0)
        # Between sites: what the others send it, then what it sends the others.
        self._between += (received @ self._sent_from[topic]) * (site_ms[:, site] - site_ms[:, old])
        others = sent @ self._received_at[topic]
        self._publishers[topic, site] += publishes
        self._sent_from[topic, site] += sent
        self._received_at[topic, site] += received
        for place, sign in ((old, -1.0), (site, 1.0)):
            self._between[place] += sign * (site_ms[place] @ others)
            self._compute[place] += sign * self._load[client]
            self._published[place] += sign * self._published_by[client]
            self._distance += sign * self._distance_weight[client] * to_home[place]
        self.home[client] = site
        both = [old, site]
        self._theta[both] = local_share(self.problem, self._storage[both], self._compute[both], both)

    def _site_cost(self, theta: Floats, published: Floats, between: Floats) -> Floats:
        return 2 * self.problem.cloud_ms * (1 - theta) * published + theta * between

    def _entries(self, clients: Ints) -> tuple[Ints, Ints, Ints]:
        """The memberships of these clients in a row, where each one's begin, and who has any."""
        start, count = self._start[clients], self._start[clients + 1] - self._start[clients]
        busy = np.flatnonzero(count)
        start, count = start[busy], count[busy]
        first = np.cumsum(count) - count
        return np.arange(count.sum()) + np.repeat(start - first, count), first, busy
