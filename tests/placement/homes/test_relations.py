"""Relations: how many topics two clients share, factorised, strongest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.workloads.city import random_members
from nearcast.placement.homes import membership, relations
from nearcast.placement.homes.relations import factors, relation_matrix, strongest_relations

if TYPE_CHECKING:
    import pytest

# t0: 0 1 2, t1: 1 2, t2: 3 4
MEMBERS = membership([0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 1, 2, 3, 4], (3, 6))


def test_the_matrix_counts_common_topics() -> None:
    z = relation_matrix(MEMBERS).toarray()
    assert z[1, 2] == 2
    assert z[0, 1] == z[0, 2] == z[3, 4] == 1
    assert z[0, 3] == z[5, 5] == 0


def test_at_full_rank_the_factors_give_the_matrix_back() -> None:
    f = factors(MEMBERS, rank=16, seed=0)
    np.testing.assert_allclose(f @ f.T, relation_matrix(MEMBERS).toarray(), atol=1e-9)


def test_strongest_first_and_only_those_who_share_a_topic() -> None:
    found = strongest_relations(MEMBERS, count=100, rank=16, topic_limit=100, seed=0)
    lists = [found.clients[a:b].tolist() for a, b in zip(found.start, found.start[1:], strict=False)]
    assert lists[1][0] == 2
    assert lists[2][0] == 1
    assert sorted(lists[0]) == [1, 2]
    assert (lists[3], lists[4], lists[5]) == ([4], [3], [])


def test_only_as_many_as_asked_for() -> None:
    found = strongest_relations(MEMBERS, count=1, rank=16, topic_limit=100, seed=0)
    np.testing.assert_array_equal(np.diff(found.start), [1, 1, 1, 1, 1, 0])


def test_topics_that_everybody_follows_tell_nothing() -> None:
    found = strongest_relations(MEMBERS, count=9, rank=16, topic_limit=2, seed=0)
    np.testing.assert_array_equal(np.diff(found.start), [0, 1, 1, 1, 1, 0])
    assert strongest_relations(MEMBERS, 9, 16, topic_limit=1, seed=0).clients.size == 0


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    members = random_members(topics=20, clients=80, seed=3)
    whole = strongest_relations(members, 5, 8, 1000, seed=0)
    monkeypatch.setattr(relations, "BLOCK_ENTRIES", 50)
    in_blocks = strongest_relations(members, 5, 8, 1000, seed=0)
    np.testing.assert_array_equal(whole.clients, in_blocks.clients)
    np.testing.assert_array_equal(whole.start, in_blocks.start)
