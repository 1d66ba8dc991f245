"""Finding feasible sets without looking at all subsets: Property 1(b) prunes, batches make it fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.problem import MAX_LOAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.colocation.problem import Feasibility

__all__ = ["FirstSets", "feasible_pairs", "fill"]

FIRST_BATCH = 4
LARGEST_BLOCK = 4096  # what the layers of a network make of it still fits the processor's cache


def feasible_pairs(possible: Feasibility, topics: Ints) -> Bools:
    """Which pairs of topics may share a worker: a symmetric matrix over the positions in `topics`."""
    n = len(topics)
    matrix = np.zeros((n, n), dtype=bool)
    one, other = np.triu_indices(n, 1)
    for start in range(0, len(one), LARGEST_BLOCK):
        rows = slice(start, start + LARGEST_BLOCK)
        pairs = np.stack([topics[one[rows]], topics[other[rows]]], axis=1)
        matrix[one[rows], other[rows]] = possible.sets(pairs)
    return matrix | matrix.T


def fill(possible: Feasibility, members: list[int], waiting: Ints, k: int) -> list[int]:
    """First fit on one worker: go once through the waiting topics and take each that still fits, up to k.

    Subsets are asked about once, when the worker is done: if it is feasible, so was every step to it. If not,
    since the learned model is not monotone there, it is filled again with all questions asked.
    """
    quick = _filled(possible, members, waiting, k, possible.may_be)
    if possible.sets(np.array([quick]))[0]:
        return quick
    return _filled(possible, members, waiting, k, possible.extended)


def _filled(
    possible: Feasibility, members: list[int], waiting: Ints, k: int, feasible: Callable[[Ints], Bools]
) -> list[int]:
    """Newcomers are asked in growing batches; large ones first by the newcomer's own prediction only, which
    turns nearly all of them away once a worker is nearly full. A refusal stays one: members only get more."""
    now = np.array(members)
    start, batch = 0, FIRST_BATCH
    while len(now) < k and start < len(waiting):
        asked = waiting[start : start + batch]
        hopeful = np.flatnonzero(possible.load[asked] <= MAX_LOAD - possible.load[now].sum())
        if batch > FIRST_BATCH and len(hopeful):
            hopeful = hopeful[possible.newcomer_may_join(now, asked[hopeful])]
        if len(hopeful):
            sets = np.empty((len(hopeful), len(now) + 1), dtype=np.int64)
            sets[:, :-1], sets[:, -1] = now, asked[hopeful]
            hopeful = hopeful[feasible(sets)]
        if len(hopeful):
            now = np.append(now, asked[hopeful[0]])
            start, batch = start + int(hopeful[0]) + 1, FIRST_BATCH
        else:
            start, batch = start + batch, min(batch * 4, LARGEST_BLOCK)
    return [int(topic) for topic in now]


class FirstSets:
    """The first feasible set of `size` topics, in the order given, again and again until none is left.

    The search goes depth first through blocks of prefixes, extended all at once. A prefix is dropped when its
    own prediction fails (Property 1(b)), when the lightest topics behind it already overload the worker,
    or when too few topics behind it go together with each of its members.
    """

    def __init__(self, possible: Feasibility, topics: Ints, size: int) -> None:
        self.possible = possible
        self.size = size
        self.topics = topics
        self.pairs = feasible_pairs(possible, topics)
        self.waiting = np.ones(len(topics), dtype=bool)
        self.root = 0

    def remove(self, topics: list[int]) -> None:
        """These topics have been placed."""
        self.waiting[np.isin(self.topics, topics)] = False

    def next(self) -> list[int] | None:
        """The first set among the topics that wait. What was refused before is not asked again: sets that
        start with an earlier topic were all found infeasible, and removing topics makes none feasible."""
        lightest = self._lightest_sums()
        while self.root < len(self.topics):
            if self.waiting[self.root]:
                prefix = np.array([[self.root]])
                mates = self.pairs[self.root] & self.waiting & (np.arange(len(self.topics)) > self.root)
                found = self._search(prefix, mates[None, :], lightest)
                if found is not None:
                    return [int(t) for t in self.topics[found]]
            self.root += 1
        return None

    def _search(self, prefixes: Ints, mates: Bools, lightest: Floats) -> Ints | None:
        missing = self.size - prefixes.shape[1]
        if missing == 0:
            full = (row for row in prefixes if self.possible.sets(self.topics[row][None, :])[0])
            return next(full, None)
        start, block = 0, 1
        while start < len(prefixes):
            rows = slice(start, start + block)
            children, their_mates = self._extend(prefixes[rows], mates[rows], missing, lightest)
            found = self._search(children, their_mates, lightest) if len(children) else None
            if found is not None:
                return found
            start += block
            block = min(block * 2, max(1, LARGEST_BLOCK // len(self.topics)))
        return None

    def _extend(self, prefixes: Ints, mates: Bools, missing: int, lightest: Floats) -> tuple[Ints, Bools]:
        parent, newest = np.nonzero(mates)
        load = self.possible.load[self.topics[prefixes]].sum(axis=1)[parent]
        load = load + self.possible.load[self.topics[newest]] + lightest[missing - 1, newest]
        light = load <= MAX_LOAD + 1e-12
        parent, newest = parent[light], newest[light]
        children = np.concatenate([prefixes[parent], newest[:, None]], axis=1)
        behind = np.arange(mates.shape[1]) > newest[:, None]
        their_mates = mates[parent] & self.pairs[newest] & behind
        enough = their_mates.sum(axis=1) >= missing - 1
        children, their_mates = children[enough], their_mates[enough]
        good = self.possible.may_be(self.topics[children]) if len(children) else np.zeros(0, dtype=bool)
        return children[good], their_mates[good]

    def _lightest_sums(self) -> Floats:
        """lightest[m, i]: the load of the m lightest waiting topics behind i; infinite if fewer wait."""
        load = np.where(self.waiting, self.possible.load[self.topics], np.inf)
        sums = np.zeros((self.size, len(load)))
        kept: list[float] = []
        for position in range(len(load) - 1, -1, -1):
            padded = kept + [np.inf] * (self.size - 1 - len(kept))
            sums[1:, position] = np.cumsum(padded)
            kept = sorted([*kept, float(load[position])])[: self.size - 1]
        return sums
